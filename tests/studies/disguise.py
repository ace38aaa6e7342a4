"""Published runs of a built-in mixer in the disguise of a custom one, whose place among the others is then known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mecheval.files import run_id
from mecheval.store import RESULTS, Store
from mecheval.store.folder import RunFolder
from mecheval.studies.peers import _is_standard

NAME = "Mine@3f9a2c1b"
Change = Callable[[dict[str, Any]], dict[str, Any]]


def disguised(store: Path, task: str, mixer: str, rates: tuple[float, ...], change: Change = lambda row: {}) -> Store:
    """A store with the published runs of a built-in mixer at width 32, as runs of a custom one."""
    published = Store(RESULTS)
    for row in published.rows():
        if (row["task"], row["mixer"], row["d_model"], row["seed"]) != (task, mixer, 32, 0) or not _is_standard(row):
            continue
        if row["lr"] in rates and row["n_layers"] == 2:
            config = {**row["config"], "mixer": {"name": NAME}}
            folder = RunFolder(store / "runs" / run_id(config))
            folder.path.mkdir(parents=True)
            for table in ("history", "scores", "effects", "verdicts"):
                folder.write(table, published.folder(row["run"]).read(table))
            folder.seal({**row, "run": folder.id, "mixer": NAME, "config": config, **change(row)})
    return Store(store)
