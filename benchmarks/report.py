"""A store of 2,000 runs: how long it takes to list them, to list the studies, and to write and to open their report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from mecheval.config import RunConfig
from mecheval.files import sha256
from mecheval.store import TABLES, RunFolder, Store
from mecheval.store.guard import Record, write_record
from mecheval.store.tables import connect, load_rows
from mecheval.studies import STUDIES, study_points
from mecheval.sweep import Job, work

LIMIT_MB, LIMIT_SECONDS = 15, 3.0
"""Size of a report, and the time until a browser shows its first chart."""
COMMANDS = {"runs": 2.0, "list studies": 3.0, "report": 15.0}
"""Commands, and the seconds that each should take for 2,000 runs on a quiet machine."""
COPIED = ("history", "scores", "effects", "verdicts")
CHROMES = ("chromium", "chromium-browser", "google-chrome")


def made(folder: str | Path, n: int) -> Store:
    """A store with the whole of study `ar` and many seeds of it, all with the results of one short run."""
    store = Store(folder)
    points = study_points(STUDIES["ar"], "laptop")
    data = points[0].config.to_dict()
    data["data"]["steps"], data["evaluate"]["documents"] = 100, 64
    short = RunConfig.read(data)
    work(Job(short), str(store.path), lambda event: None)
    source = store.folder(short.id)
    with connect() as connection:
        for name in COPIED:
            load_rows(connection, TABLES[name], source.read(name))
        configs = (replace(point.config, seed=seed) for seed in count() for point in points)
        for config in islice(configs, n - 1):
            _write(store.folder(config.id), config, source.status(), connection)
    return store


def _write(folder: RunFolder, config: RunConfig, status: Mapping[str, Any], connection: Any) -> None:
    """Another run, as its trainer would leave it; without waiting for the disk."""
    folder.path.mkdir()
    files = {}
    for name in COPIED:
        path = folder.table(name)
        connection.execute(f"COPY (SELECT * REPLACE ('{folder.id}' AS run) FROM {name}) TO '{path}' (FORMAT parquet)")
        files[path.name] = sha256(path.read_bytes())
    row = {**status, "run": folder.id, "mixer": config.mixer.name, "d_model": config.model.d_model}
    row |= {"lr": config.optimiser.lr, "seed": config.seed, "config": config.to_dict()}
    (folder.path / "status.json").write_bytes(write_record(Record(row, files)))


def timed(*words: str) -> tuple[float, float]:
    """Seconds that a command takes in a process of its own, by the clock and of the processor."""
    program = [sys.executable, "-c", "from mecheval.cli import main; main()", *words]
    before, spent = time.perf_counter(), os.times()
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    now = os.times()
    return time.perf_counter() - before, (now[2] + now[3]) - (spent[2] + spent[3])  # of children


def opening(path: Path) -> tuple[float, float] | None:
    """Seconds until text stands and until the first chart is drawn; None where there is no browser."""
    chrome = next((found for name in CHROMES if (found := shutil.which(name))), None)
    if chrome is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        before = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_selector("#runs tbody tr")
        text = time.perf_counter() - before
        page.wait_for_selector(".drawing svg, .drawing canvas")
        drawn = time.perf_counter() - before
        browser.close()
    return text, drawn


def main(n: int = 2000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made(folder, n)
        path = Path(folder) / "report.html"
        print(f"a store of {n:,} runs")
        for command, goal in COMMANDS.items():
            words = [*command.split(), "--store", folder, *(["--out", str(path)] if command == "report" else [])]
            took, computed = timed(*words)
            print(f"mecheval {command}: {took:.1f} s, {computed:.1f} s of the processor (goal {goal:g} s)")
        print(f"the report: {path.stat().st_size / 1e6:.1f} MB (limit {LIMIT_MB})")
        opened = opening(path)
    if opened is not None:
        print(f"opened: text after {opened[0]:.1f} s, a chart after {opened[1]:.1f} s (limit {LIMIT_SECONDS:g} s)")


if __name__ == "__main__":
    main()
