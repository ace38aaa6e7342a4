"""A report on 2,000 runs: how large it is, how long it takes to make, and to open in a browser."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

from mecheval.config import RunConfig
from mecheval.report import write_report
from mecheval.store import RunFolder, Store
from mecheval.studies import STUDIES, study_points
from mecheval.sweep import Job, work

LIMIT_MB, LIMIT_SECONDS = 15, 3.0
TABLES = ("history", "evaluations", "effects", "verdicts")
CHROMES = ("chromium", "chromium-browser", "google-chrome")


def made(folder: str, n: int) -> Store:
    """A store with the whole of study `ar` and many seeds of it, all with the results of one short run."""
    store = Store(folder)
    points = study_points(STUDIES["ar"], "laptop")
    data = points[0].config.to_dict()
    data["data"]["steps"], data["evaluate"]["documents"] = 100, 64
    short = RunConfig.read(data)
    work(Job(short), str(store.path), lambda event: None)
    source = store.folder(short.id)
    rows = {table: [{k: v for k, v in row.items() if k != "run"} for row in source.read(table)] for table in TABLES}
    configs = (replace(point.config, seed=seed) for seed in count() for point in points)
    for _, config in zip(range(n - 1), configs, strict=False):
        _write(store.folder(config.id), config, source, rows)
    return store


def _write(folder: RunFolder, config: RunConfig, source: RunFolder, rows: dict[str, list[dict[str, object]]]) -> None:
    with folder.exclusive():
        for table in TABLES:
            folder.write(table, rows[table])
        status = {name: value for name, value in source.status().items() if name not in ("run", "started", "updated")}
        status |= {"mixer": config.mixer.name, "d_model": config.model.d_model, "lr": config.optimiser.lr}
        folder.set_status(**{**status, "seed": config.seed, "config": config.to_dict()})


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
        store = made(folder, n)
        before = time.perf_counter()
        path = write_report(store, Path(folder) / "report.html")
        took = time.perf_counter() - before
        size = path.stat().st_size / 1e6
        print(f"a report on {n:,} runs: {size:.1f} MB (limit {LIMIT_MB}), made in {took:.0f} s")
        opened = opening(path)
    if opened is not None:
        print(f"opened: text after {opened[0]:.1f} s, a chart after {opened[1]:.1f} s (limit {LIMIT_SECONDS:g} s)")


if __name__ == "__main__":
    main()
