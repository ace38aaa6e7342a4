"""What all tests share: the order of the files, the command line, and an end that names what was skipped.

Two workers with one thread each beat one process with two: so every test process computes on one thread.
"""

from __future__ import annotations

import os

# Read when torch is first imported, hence here and not in a fixture. With OMP_NUM_THREADS=2, the threads of two test
# processes would otherwise spin while they wait for each other, which takes four times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import atexit
import gc
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from mecheval.custom import VARIABLE
from mecheval.mixers import MIXERS
from mecheval.sweep import HereEngine, LocalEngine

gc.disable()  # until all tests are collected: imports make millions of objects that stay to the end
IN_MEMORY = Path("/dev/shm")
if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))  # a fifth of the time went into waiting for the disk

CHROME = ["--no-sandbox", "--disable-gpu", "--in-process-gpu"]
"""There is no GPU to draw with, so nothing needs a process of its own for it."""
FIRST = (
    "sweep/test_ray.py",
    "laws/test_interventions.py",
    "training/test_loop.py",
    "report/test_browser.py",
    "sweep/test_local.py",
    "test_docs.py",
    "test_examples.py",
    "test_trained_models.py",
    "training/test_killed.py",
    "report/test_hostile.py",
)
"""Files that start first. `make test` gives whole files to its workers in this order. Those that take longest are
among them, so that none is left to a single worker at the end. On a fresh clone the second and third compile the
kernels of all mixers and tasks while the other worker is busy with Ray, so that few kernels are compiled twice."""


@pytest.fixture(autouse=True)
def own_mixers_stay_in_their_test() -> Iterator[None]:
    """Commands name custom mixers in the environment, for their workers, and evaluations register them.

    The next test must not find them there.
    """
    before, registered = os.environ.get(VARIABLE), set(MIXERS.registered())
    yield
    for name in set(MIXERS.registered()) - registered:
        MIXERS._classes.pop(name, None)
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real browser, one for all pages of a test process: Playwright runs one loop in a process."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright for the tests of the pages")
    names = ("chromium", "chromium-browser", "google-chrome")
    chrome = next((path for name in names if (path := shutil.which(name))), None)
    if chrome is None:
        pytest.skip("there is no Chromium to open pages in; install it (apt-get install chromium) to test them, too")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome, args=CHROME)
        yield browser
        browser.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(FIRST)))


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what imports and collection have made, and look for garbage less often.

    Otherwise it goes through millions of objects that stay to the end, again and again: a second in thirty.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    atexit.register(gc.unfreeze)  # DuckDB would print a list of all that is not freed at the end


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was skipped, by reason; a reason says how to get what is missing."""
    skipped = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, tests in skipped.items():
        what = f"{tests} test{'s' * (tests > 1)} skipped"
        terminalreporter.write_line(f"{what}: {reason.removeprefix('Skipped: ')}", yellow=True)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, run inside the test."""
    return Command(monkeypatch, capsys)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers take seconds to start; where they are not the point, this process does their work."""
    monkeypatch.setattr(LocalEngine, "run", lambda _, jobs, store, tell: HereEngine().run(jobs, store, tell))
