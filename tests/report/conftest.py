from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mecheval.report import write_report
from mecheval.store import Store, StoreWarning
from mecheval.store.store import Snapshot
from report.pages import opened_page
from report.stores import FORGED, make


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make(tmp_path_factory.mktemp("report") / "store")


@pytest.fixture(scope="session")
def taken(store: Store) -> Snapshot:
    with pytest.warns(StoreWarning, match=f"run {FORGED[3]} is left out"):
        return Snapshot(store)


@pytest.fixture(scope="session")
def written(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.warns(StoreWarning, match=f"run {FORGED[3]} is left out"):
        return write_report(store, tmp_path_factory.mktemp("page") / "report.html", title="Our <runs> & more")


@pytest.fixture
def opened(browser: Any, written: Path) -> Iterator[Any]:
    """Opens the page in a window of its own, of some width and colour scheme."""
    with ExitStack() as stack:
        yield lambda *given, **named: stack.enter_context(opened_page(browser, written, *given, **named))


@pytest.fixture(scope="module")
def shared(browser: Any, written: Path) -> Iterator[Any]:
    """One page for all tests that work in whatever state the others leave it: to load and draw it takes a second."""
    with opened_page(browser, written) as page:
        yield page


@pytest.fixture(scope="module")
def phone(browser: Any, written: Path) -> Iterator[Any]:
    """The page on a phone, shared like `shared`."""
    with opened_page(browser, written, 390) as page:
        yield page
