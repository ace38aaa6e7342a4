"""Runs and query results as they look in a terminal."""

from __future__ import annotations

from datetime import datetime
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # slow to import
    import pandas as pd  # type: ignore[import-untyped]

STYLES = {"running": "cyan", "interrupted": "yellow", "done": "green", "diverged": "magenta", "failed": "bold red"}
MISSING = "–"
WIDE = 115
"""Terminal columns from which the run table is complete."""
SHORT_ID = 8
COLUMNS, CUT = 12, 60
"""Columns of a frame and characters of a cell; more cannot be read in a terminal."""


def run_table(frame: pd.DataFrame, width: int = 80) -> Table:
    """`Store.runs()`, newest last.

    Where the terminal is narrow there are no layers, seed and dev accuracy, and of the id what is enough to name a run.
    """
    wide = width >= WIDE
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1) if wide else (0, 1, 0, 0))
    headers = list(_run_cells(dict.fromkeys(frame.columns), wide))
    for name in headers:
        text, squeezable = name in ("run", "status", "task", "mixer"), name in ("task", "mixer")
        table.add_column(name, justify="left" if text else "right", vertical="bottom", no_wrap=not squeezable)
    for row in frame.to_dict("records"):
        table.add_row(*_run_cells(row, wide).values())
    return table


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of any frame, by column; of columns with the same name, the last one counts."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False, name=None)]


def frame_table(frame: pd.DataFrame, limit: int = 50) -> Table:
    """Any frame: its first `limit` rows and `COLUMNS` columns, and how many more there are."""
    shown = frame.iloc[:limit, :COLUMNS]
    left_out = [
        f"{whole - part:,} more {name}{'s' if whole - part > 1 else ''}"
        for name, whole, part in zip(("row", "column"), frame.shape, shown.shape, strict=True)
        if whole > part
    ]
    table = Table(box=None, header_style="bold", pad_edge=False)
    if left_out:
        table.caption, table.caption_justify = f"… {', '.join(left_out)}", "left"
        table.min_width = len(table.caption)  # or it is wrapped below a narrow table
    for name, dtype in zip(shown.columns, shown.dtypes, strict=True):
        number, text = dtype.kind in "iuf", dtype.kind == "O"  # text gives way first, but does not vanish
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(Text(str(name)), justify=justify, no_wrap=not text, min_width=4 if text else None)
    for row in shown.itertuples(index=False, name=None):
        table.add_row(*(Text(_shorten(_cell(value))) for value in row))
    return table


def _run_cells(row: dict[str, Any], wide: bool) -> dict[str, Text]:
    """What the run table says about one run, by header."""
    status = _cell(row["status"])
    cells = {
        "run": _cell(row["run"]) if wide else _cell(row["run"])[:SHORT_ID],
        "status": status,
        "task": _cell(row["task"]),
        "mixer": _cell(row["mixer"]),
        "d": _cell(row["d_model"]),
        "layers": _cell(row["n_layers"]),
        "lr": _cell(row["lr"]),
        "seed": _cell(row["seed"]),
        "step": f"{_cell(row['step'])}/{_cell(row['steps'])}",
        "dev\nlik": _share(row["dev_likelihood"]),
        "dev\nacc": _share(row["dev_accuracy"]),
        "test\nacc": _share(row["test_accuracy"]),
        "time": _duration(row["seconds"]),
    }
    if not wide:
        del cells["layers"], cells["seed"], cells["dev\nacc"]
    return {name: Text(cell, STYLES.get(status, "") if name == "status" else "") for name, cell in cells.items()}


def _is_missing(value: Any) -> bool:
    import pandas as pd

    return pd.isna(value) is True  # of a list it is an array


def _cell(value: Any) -> str:
    """Whole numbers as they are, fractions with four digits, times to the second."""
    if _is_missing(value):
        return MISSING
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, Real) and not isinstance(value, Integral):
        return _fraction(float(value))
    return str(value)


def _fraction(number: float) -> str:
    if abs(number) >= 10_000:
        return f"{number:.1f}"
    text = f"{number:.4g}"
    return f"{number:.3e}".replace("e-0", "e-") if len(text) > 8 else text


def _shorten(text: str) -> str:
    return text if len(text) <= CUT else text[: CUT - 1] + "…"


def _share(value: Any) -> str:
    return MISSING if _is_missing(value) else f"{value:.3f}"


def _duration(seconds: Any) -> str:
    """12s, 3m05s, 2h07m or 3d04h."""
    if _is_missing(seconds):
        return MISSING
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02}h"
    if hours:
        return f"{hours}h{m:02}m"
    return f"{minutes}m{s:02}s" if minutes else f"{s}s"
