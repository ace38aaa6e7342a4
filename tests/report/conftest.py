from __future__ import annotations

from pathlib import Path

import pytest

from mecheval.report import write_report
from mecheval.store import Store, StoreWarning
from mecheval.store.store import Snapshot
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
