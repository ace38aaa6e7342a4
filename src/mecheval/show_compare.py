"""Our numbers beside the paper's, as they look in a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from mecheval.paper import OUTCOMES, Comparison, Judged, Setting
from mecheval.paper.numbers import PUBLISHED
from mecheval.paper.thresholds import LEARNT, TOLERANCE

if TYPE_CHECKING:  # slow to import
    import pandas as pd

STYLES = {"reproduced": "green", "contradicted": "bold red", "not tested": "yellow"}
SIDES = {"ours": "bold", "paper": "dim", "diff": ""}
MISSING = "–"
WIDE = 130
"""Terminal columns from which a model's numbers fit into one line."""
CHOICE = "The paper has one seed and chose rates on the documents that it reports; we choose on dev and report test."
HELD_OUT = "The paper has one seed; rates are chosen on dev, there as here."
NUMBERS = (
    "Likelihood of the right answer in %: for the original document, for the corrupted one, and with one activation of "
    "the original put back; differences in percentage points."
)
HEADERS = {
    "restored_key": "at key", "restored_value": "at value", "restored_query": "at query",
    "conv0_at_value": "conv 0\nat value", "conv0_at_next_key": "conv 0 at\nnext key",
    "conv1_at_value": "conv 1\nat value",
}  # fmt: skip


def heading(study: str, figure: str, question: str, scale: str) -> Text:
    """Which study this is."""
    return Text.assemble((study, "bold"), f" (figure {figure}), {scale} scale\n{question}")


def settings_text(ours: Mapping[str, Setting]) -> Text:
    """In what the two sides differ, in numbers."""
    lines = []
    for task, setting in ours.items():
        mine, paper = setting.describe(), Setting.paper(task).describe()
        told = f"both: {mine}" if mine == paper else f"ours: {mine}; the paper: {paper}"
        lines.append(f"{task.upper()}, {told}." if len(ours) > 1 else f"{told[0].upper()}{told[1:]}.")
    apart = all(setting.options.get("holdout") for setting in ours.values())  # only then the paper had a dev set
    return Text("\n".join([*lines, HELD_OUT if apart else CHOICE]))


def runs_text(frame: pd.DataFrame, study: str, scale: str) -> Text | None:
    """How much of the grid is in the store; nothing is said where it is complete."""
    counts = Counter(frame["status"])
    ended = counts["done"] + counts["diverged"]
    if ended == len(frame):
        return None
    rest = ", ".join(f"{n:,} {status}" for status, n in counts.most_common() if status not in ("done", "diverged"))
    command = f"mecheval study {study}" + ("" if scale == "laptop" else f" --scale {scale}")
    told = f"Only {ended:,} of {len(frame):,} runs have ended ({rest}), and what follows is about those"
    return Text(f"{told}; `{command}` trains the rest.", style="yellow")


def cells_text(comparison: Comparison) -> Text:
    """What the numbers are; and how close the two sides, where they did the same."""
    both = comparison.cells.dropna(subset=["difference"])
    about = f"{NUMBERS} The paper's are means over {PUBLISHED[comparison.study].documents} documents."
    if comparison.scale != "paper" or both.empty:
        return Text(about)
    near = (both["difference"].abs() <= TOLERANCE + 1e-9).sum()
    worst = both.loc[both["difference"].abs().idxmax()]
    return Text(
        f"{about} {near} of {len(both)} numbers are within {100 * TOLERANCE:g} points; the largest difference is "
        f"{_points(worst['difference'])} ({worst['mixer']}, d {worst['d_model']}, {worst['quantity']})."
    )


def cells_table(comparison: Comparison, width: int = 80) -> Table:
    """Percentages: for each model ours, the paper's, and the difference in points.

    They stand side by side in a wide terminal, else below each other; so does the range of ours over several seeds.
    """
    cells = comparison.cells
    rates, several = cells["lr"].notna().any(), (cells["seeds"] > 1).any()
    wide = width >= WIDE and not several
    quantities = list(dict.fromkeys(cells["quantity"]))
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("lr" if rates else "mixer", "d", *(() if wide else ("",))):
        table.add_column(name, no_wrap=True, justify="right" if name == "d" else "left", vertical="bottom")
    for name in quantities:
        head = HEADERS.get(name, name)
        for header in (f"{head}\nours", "paper", "diff") if wide else (head,):
            table.add_column(header, justify="right", vertical="bottom", no_wrap=True)
    for (mixer, lr, d), model in cells.groupby(["mixer", "lr", "d_model"], dropna=False, sort=False):
        found = {row["quantity"]: row for row in model.to_dict("records")}
        place = [Text(f"{lr:g}" if rates else str(mixer)), Text(str(d))]
        lines = _lines([found[quantity] for quantity in quantities])
        if wide:
            columns = zip(*([Text(each, SIDES[side]) for each in line] for side, line in lines.items()), strict=True)
            table.add_row(*place, *(each for column in columns for each in column))
            continue
        for side, line in lines.items():
            if side == "diff" and set(line) == {MISSING}:
                continue
            table.add_row(*place, Text(side, SIDES.get(side, "")), *(Text(each, SIDES.get(side, "")) for each in line))
            place = [Text(), Text()]
    return table


def _lines(row: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What is said of one model, quantity by quantity."""
    seeds = max(cell["seeds"] for cell in row)
    ranges = {f"{seeds} seeds": [_range(cell) for cell in row]} if seeds > 1 else {}
    return {
        "ours": [_percent(cell["ours"]) for cell in row], **ranges,
        "paper": [_percent(cell["paper"]) for cell in row],
        "diff": [_points(cell["difference"]) for cell in row],
    }  # fmt: skip


def patterns_table(comparison: Comparison) -> Table:
    """Where runs that learnt are restored most, ours and the paper's."""
    title = f"Where models that learnt (original - corrupted above {100 * LEARNT:g} points) are restored most:"
    table = Table(box=None, header_style="bold", pad_edge=False, title=Text(title), title_justify="left", expand=True)
    table.title_style = ""
    for name in ("mixer", "ours", "paper", "same place"):
        table.add_column(name, ratio=None if name in ("mixer", "same place") else 1, no_wrap=name == "mixer")
    for row in comparison.patterns.to_dict("records"):
        same = f"{row['same']} of {row['learnt']} runs" if row["main"] and row["learnt"] else MISSING
        table.add_row(*(Text(text or MISSING) for text in (row["mixer"], row["ours"], row["paper"], same)))
    return table


def claims_text(judged: Sequence[Judged]) -> Text:
    """How many claims have which outcome."""
    counts = Counter(one.outcome for one in judged)
    told = [Text(f"{counts[outcome]} {outcome}", STYLES[outcome]) for outcome in OUTCOMES if counts[outcome]]
    return Text.assemble(f"{len(judged)} claim{'s' if len(judged) > 1 else ''} of the paper: ", Text(", ").join(told))


def claims_table(judged: Sequence[Judged]) -> Table:
    """Each claim with its outcome, what the paper says, what was tested, and the evidence."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for number, one in enumerate(judged):
        if number:
            table.add_row()
        table.add_row(Text(one.outcome, STYLES[one.outcome]), Text(f"{one.claim} (section {one.where})", "bold"))
        table.add_row("  the paper", Text(f"{one.setting}; {one.said}"))
        table.add_row("  tested", Text(one.tested))
        table.add_row("  found", Text(one.evidence))
    return table


def _percent(value: float) -> str:
    return MISSING if math.isnan(value) else f"{100 * value:.1f}"


def _points(value: float) -> str:
    return MISSING if math.isnan(value) else f"{100 * value:+.1f}".replace("-0.0", "+0.0").replace("+0.0", "0.0")


def _range(cell: Mapping[str, Any]) -> str:
    return MISSING if math.isnan(cell["low"]) else f"{100 * cell['low']:.1f}–{100 * cell['high']:.1f}"
