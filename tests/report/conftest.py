from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def tablet(browser: Any, written: Path) -> Iterator[Any]:
    """The page on a tablet, shared like `shared`."""
    with opened_page(browser, written, 768) as page:
        yield page


@pytest.fixture(scope="module")
def shared(browser: Any, written: Path) -> Iterator[Any]:
    """One page for all tests that work in whatever state the others leave it: to load and draw it takes a second."""
    with opened_page(browser, written) as page:
        yield page


@pytest.fixture(scope="module")
def phone(browser: Any, written: Path) -> Iterator[Any]:
    """The page on a phone, shared like `shared`."""
    with opened_page(browser, written, 360) as page:
        yield page


@pytest.fixture(scope="module")
def dark(browser: Any, written: Path) -> Iterator[Any]:
    """The page where the system is dark, for the paper first and then for the reader's own choice."""
    with opened_page(browser, written, scheme="dark") as page:
        yield page


@pytest.fixture(scope="module")
def fresh(browser: Any, written: Path) -> Iterator[Any]:
    """The page with nothing in focus and charts that nobody has seen, for the PDF first and then for the keyboard."""
    with opened_page(browser, written) as page:
        yield page
