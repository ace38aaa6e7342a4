"""Tables and texts for a terminal, and for papers and other programs (LaTeX, Markdown, CSV)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from mecheval.errors import UserError
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

ESCAPED = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", MISSING: "--",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
"""Characters with a special meaning in LaTeX."""


def plain_table(
    heads: Sequence[str], words: Collection[str] = (), wrapped: Collection[str] = (), gap: int = 2
) -> Table:
    """An empty table without lines, with `gap` spaces between columns.

    Columns among `words` are aligned left and all others, which hold numbers, right; only those among `wrapped` wrap.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    deepest = max(head.count("\n") for head in heads)
    for head in heads:
        justify: Literal["left", "right"] = "left" if head in words else "right"
        low = "\n" * (deepest - head.count("\n")) + head  # heads end on one line, cells begin on one
        table.add_column(Text(low), justify=justify, no_wrap=head not in wrapped)
    return table


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame by column; of columns with the same name, the last one counts."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False, name=None)]


def score(value: float) -> str:
    """A fraction with three digits; NaN is missing."""
    return f"{value:.3f}" if value == value else MISSING


def format_of(**given: bool) -> str | None:
    """The one format that was asked for; None for the table of a terminal."""
    asked = [name for name, wanted in given.items() if wanted]
    if len(asked) > 1:
        raise UserError(f"choose one of {', '.join(f'--{name}' for name in given)}.")
    return asked[0] if asked else None


def formatted(frame: pd.DataFrame, kind: str) -> str:
    """A frame as text of this kind; CSV has all digits, the others three decimals."""
    if kind == "csv":
        return str(frame.to_csv(index=False))
    rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False, name=None)]
    heads = [str(name) for name in frame.columns]
    if kind == "markdown":
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (heads, ["---"] * len(heads), *rows)]
        return "".join(f"| {' | '.join(row)} |\n" for row in cells)
    numbers = ["r" if dtype.kind in "iuf" else "l" for dtype in frame.dtypes]
    lines = [" & ".join(map(_escaped, row)) + r" \\" for row in (heads, *rows)]
    head, *body = lines
    parts = [f"\\begin{{tabular}}{{{''.join(numbers)}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}", ""])


def _cell(value: Any) -> str:
    if (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or type(value).__name__ in ("NAType", "NaTType")
    ):
        return MISSING
    if isinstance(value, float):
        return f"{value:.3f}" if value == 0 or 1e-2 <= abs(value) < 1e6 else f"{value:.3g}"
    return " ".join(str(value).split())


def _escaped(text: str) -> str:
    return "".join(ESCAPED.get(sign, sign) for sign in text)
