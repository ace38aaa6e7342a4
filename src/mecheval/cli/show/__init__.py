"""Tables and texts for a terminal, and the parts that they share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd


def plain_table(
    heads: Sequence[str], words: Collection[str] = (), wrapped: Collection[str] = (), gap: int = 2
) -> Table:
    """An empty table without lines, with `gap` spaces between columns.

    Columns among `words` are aligned left and all others, which hold numbers, right; only those among `wrapped` wrap.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    vertical: Literal["top", "bottom"] = "bottom" if any("\n" in head for head in heads) else "top"
    for head in heads:
        justify: Literal["left", "right"] = "left" if head in words else "right"
        table.add_column(Text(head), justify=justify, no_wrap=head not in wrapped, vertical=vertical)
    return table


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame by column; of columns with the same name, the last one counts."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False, name=None)]


def score(value: float) -> str:
    """A fraction with three digits; NaN is missing."""
    return f"{value:.3f}" if value == value else MISSING
