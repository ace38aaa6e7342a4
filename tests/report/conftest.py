from __future__ import annotations

from pathlib import Path

import pytest

from mecheval.report import write_report
from mecheval.store import Store
from report.stores import make


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make(tmp_path_factory.mktemp("report") / "store")


@pytest.fixture(scope="session")
def written(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(store, tmp_path_factory.mktemp("page") / "report.html", title="Our <runs> & more")
