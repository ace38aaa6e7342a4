"""Runs, query results and the state of a store in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mecheval.cli.show import plain_table, records
from mecheval.store.bounds import name_of
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.store.upkeep import Verified

STYLES = {"running": "cyan", "interrupted": "yellow", "done": "green", "diverged": "magenta", "failed": "bold red"}
"""The style of each status of a run."""
WIDE = 115
"""Smallest width of a terminal in columns at which the run table is complete."""
SHORT_ID = 8
"""Number of characters of a run's id in a narrow terminal."""
LEFT, SQUEEZABLE = ("run", "status", "task", "mixer"), ("task", "mixer")
"""Columns of the run table that are aligned left, and those that shrink in a narrow terminal."""
NARROWEST = 4
"""Smallest width in columns to which these shrink."""
HUGE = 1e12
"""Numbers from here on are written as a power of ten, or not at all; no real run has one."""
COLUMNS, CUT = 12, 60
"""Largest number of columns of a frame, and of characters of a cell, that a terminal shows."""


@dataclass(frozen=True)
class RunTable:
    """A table of plain text: rich's own, which can wrap and style any cell, takes seconds for thousands of runs."""

    heads: list[list[str]]  # lines of the head
    rows: list[list[str]]
    gap: int  # spaces between columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """The head in bold, then the runs, each status in its colour; long names are cut if a line is too long."""
        cells = [*self.heads, *self.rows]
        names = self.heads[-1]
        widths = [max(cell_len(line[place]) for line in cells) for place in range(len(names))]
        room = options.max_width - sum(widths) - self.gap * (len(names) - 1)
        for place in sorted(map(names.index, SQUEEZABLE), key=lambda place: -widths[place]):
            less = min(max(-room, 0), max(widths[place] - NARROWEST, 0))
            widths[place], room = widths[place] - less, room + less
        bold = console.get_style("bold")
        styles = {status: console.get_style(style) for status, style in STYLES.items()}
        for number, line in enumerate(cells):
            head = number < len(self.heads)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True)):
                style = bold if head else styles.get(cell) if names[place] == "status" else None
                yield Segment(_fitted(cell, width, left=names[place] in LEFT), style)
                if place + 1 < len(line):
                    yield Segment(" " * self.gap)
            yield Segment.line()


def run_table(frame: pd.DataFrame, width: int = 80) -> RunTable:
    """The table of `Store.runs()`, newest last.

    A narrow terminal gets a short id, and no layers, seed and dev accuracy.
    """
    wide = width >= WIDE
    heads = [name.split("\n") for name in _run_cells(dict.fromkeys(frame.columns), wide)]
    tall = max(map(len, heads))
    lines = [list(line) for line in zip(*([""] * (tall - len(head)) + head for head in heads), strict=True)]
    return RunTable(lines, [list(_run_cells(row, wide).values()) for row in records(frame)], 2 if wide else 1)


def _fitted(text: str, width: int, *, left: bool) -> str:
    """The text padded, or cut, to this many terminal columns."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return text + " " * (width - size) if left else " " * (width - size) + text


def frame_table(frame: pd.DataFrame, limit: int = 50) -> Table:
    """The first `limit` rows and `COLUMNS` columns of any frame, and how many more there are."""
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
        number, text = dtype.kind in "iuf", dtype.kind == "O"  # text shrinks first, but does not vanish
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(Text(str(name)), justify=justify, no_wrap=not text, min_width=4 if text else None)
    for row in shown.itertuples(index=False, name=None):
        table.add_row(*(Text(_shorten(_cell(value))) for value in row))
    return table


def _run_cells(row: dict[str, Any], wide: bool) -> dict[str, str]:
    """The cells of one run, by head."""
    cells = {
        "run": _cell(row["run"]) if wide else _cell(row["run"])[:SHORT_ID],
        "status": name_of(_cell(row["status"])),
        "task": name_of(_cell(row["task"])),
        "mixer": name_of(_cell(row["mixer"])),
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
    return cells


def _is_missing(value: Any) -> bool:
    if value is None or isinstance(value, str | int):
        return value is None
    import pandas as pd

    return pd.isna(value) is True  # for a list it is an array


def _cell(value: Any) -> str:
    """Whole numbers as they are, fractions with four digits, times to the second."""
    if _is_missing(value):
        return MISSING
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "seconds")  # strftime does not know all years
    if isinstance(value, Real) and not isinstance(value, Integral):
        return _fraction(float(value))
    return str(value)


def _fraction(number: float) -> str:
    if abs(number) >= HUGE:
        return f"{number:.3g}"
    if abs(number) >= 10_000:
        return f"{number:.1f}"
    text = f"{number:.4g}"
    return f"{number:.3e}".replace("e-0", "e-") if len(text) > 8 else text


def _shorten(text: str) -> str:
    return text if len(text) <= CUT else text[: CUT - 1] + "…"


def _share(value: Any) -> str:
    return MISSING if _is_missing(value) else f"{value:.3f}" if abs(value) < HUGE else f"{value:.3g}"


def _duration(seconds: Any) -> str:
    """12s, 3m05s, 2h07m or 3d04h."""
    if _is_missing(seconds) or abs(seconds) >= HUGE:
        return MISSING
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02}h"
    if hours:
        return f"{hours}h{m:02}m"
    return f"{minutes}m{s:02}s" if minutes else f"{s}s"


def problem_table(found: Iterable[Verified]) -> Table:
    """What `mecheval verify` found wrong, a row for each problem."""
    table = plain_table(("run", "problem"), ("run", "problem"), ("problem",))
    for each in found:
        for problem in each.problems:
            table.add_row(each.run, problem)
    return table
