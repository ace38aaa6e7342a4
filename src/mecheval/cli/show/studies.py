"""Studies in a terminal: the list, the table of one, and one beside the paper."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mecheval.cli.show import plain_table, score
from mecheval.paper import Compared, Comparison, Judged, Setting, counted
from mecheval.paper.arms import NEW, SAME, Arms
from mecheval.paper.judging import spreads_said
from mecheval.paper.limits import USUAL
from mecheval.paper.numbers import PUBLISHED
from mecheval.studies import Study, StudyTable
from mecheval.studies.axes import say
from mecheval.studies.table import GAP
from mecheval.training.progress import duration
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

SHORT = {"d_model": "d", "n_layers": "layers", "kernel_size": "kernel", "short_conv": "convolution"}
"""Heads of axes whose names are long."""
WORDS = ("mixer", "task", "positions", "convolution")
"""Axes with values in words, which are aligned left."""
ACCURACY = "test\nacc"
BELOW = (
    "Below a verdict: where a clean input of layer 1 restores most of what the corruption loses, its share, and a 95 % "
    "interval; over several seeds the mean, and from the lowest end of their intervals to the highest."
)
STYLES = {"reproduced": "green", "contradicted": "bold red", "inconclusive": "yellow", "not tested": "dim"}
SIDES = {"ours": "bold", "paper": "dim", "diff": ""}
"""The lines of a model in the comparison, and their styles."""
WIDE = 130
"""Terminal columns from which a model's numbers fit into one line."""
CHOICE = "The paper has one seed and chose rates on the documents that it reports; we choose on dev and report test."
HELD_OUT = "The paper has one seed and chose rates on dev, as we do."
NUMBERS = (
    "Likelihood of the right answer in %: for the original document, for the corrupted one, and after patching in one "
    "clean activation; differences in percentage points."
)


class Listed(NamedTuple):
    """A study at a scale, and what the store has of it."""

    study: Study
    runs: int
    done: int
    seconds: float  # that the rest takes on this machine's cores


def study_table(listed: Sequence[Listed], scale: str) -> Table:
    """The studies with their runs, how many are done, and the time that the rest takes."""
    question = f"question (scale {scale})"
    table = plain_table(
        ("study", "figure", "runs", "done", "time left", question), ("study", "figure", question), (question,)
    )
    for study, runs, done, seconds in listed:
        left = "" if done == runs else f"~{duration(seconds)}"
        table.add_row(study.name, study.figure, f"{runs}", f"{done}", left, Text(study.question))
    return table


def reading_heads(titles: Mapping[str, str], gap: str = "\n") -> dict[str, str]:
    """Short heads of columns of readings: what all titles begin with ("restored at value") is left out ("at value")."""
    parts = {name: title.partition(" at ") for name, title in titles.items()}
    several = len({stem for stem, _, _ in parts.values()}) > 1
    return {
        name: f"{stem}\nat {place}" if several else f"at{gap}{place}" if place else stem
        for name, (stem, _, place) in parts.items()
    }


def result_table(table: StudyTable, restored: pd.DataFrame | None = None) -> Table:
    """A row for each setting of a table of chosen runs; over several seeds the means, and all verdicts.

    With `restored`, that of `studies.restoring`, the share that is restored most stands below the verdict.
    """
    frame, study = table.frame, table.study
    axes = [name for name in table.varying() if name != "seed" and (name != "lr" or study.every_rate)] or ["mixer"]
    readings = [reading for reading in table.readings if reading.split == "test"]
    heads = {"test_accuracy": ACCURACY, **GAP, **reading_heads({each.name: each.title for each in readings})}
    names = [SHORT.get(name, name) for name in axes]
    shown = plain_table((*names, *heads.values(), "verdict"), (*WORDS, "verdict"), ("verdict",), gap=1)
    for values, rows in frame.groupby(axes, sort=False, dropna=False):
        cells = [
            say(name, value) if name != "n_layers" else str(value) for name, value in zip(axes, values, strict=True)
        ]
        cells += [score(rows[name].mean()) for name in heads]
        most = "" if restored is None else _most(rows, restored)
        shown.add_row(*map(Text, (*cells, f"{_verdicts(rows)}\n{most}".strip())))
    return shown


def _most(rows: pd.DataFrame, restored: pd.DataFrame) -> str:
    """Where the clean input of layer 1 restores most, and how much of the loss: the mean over the runs that learnt.

    The interval reaches from the lowest end of the runs' 95 % intervals to the highest: it holds seeds and documents.
    """
    learnt = rows.loc[rows["verdict"].notna() & (rows["verdict"] != "not_learnt"), "run"]
    found = restored[restored.index.isin(learnt)]
    if found.empty:
        return ""
    role = found["role"].iloc[0] if found["role"].nunique() == 1 else "several"
    return f"{role} {found['share'].mean():.2f}{_interval(found['share_low'].min(), found['share_high'].max())}"


def _interval(low: float, high: float) -> str:
    return f" [{low:.2f}, {high:.2f}]" if low == low else ""


def mechanism_table(frame: pd.DataFrame, restored: pd.DataFrame) -> Table:
    """A row for each run of `frame`: how well it recalls, which activation restores it, and what mechanism that is.

    `restored` is that of `studies.restoring`.
    """
    words = ("mixer", "verdict", "restored\nat", "share [95 %]")
    heads = (*words[:2], ACCURACY, "chance", *words[2:], "agree-\nment")
    table = plain_table(heads, words, ("mixer",))
    for row in frame.to_dict("records"):
        role, share = MISSING, ""
        if row["run"] in restored.index and row["verdict"] != "not_learnt":
            found = restored.loc[row["run"]]
            role, share = (
                str(found["role"]),
                f"{found['share']:.2f}{_interval(found['share_low'], found['share_high'])}",
            )
        judged = isinstance(row["verdict"], str)
        verdict = row["verdict"] if judged else row["status"]
        agreement, chance = (f"{row[name]:.2f}" if judged and row[name] == row[name] else MISSING
                             for name in ("agreement", "chance"))  # fmt: skip
        table.add_row(*map(Text, (row["mixer"], verdict, score(row["test_accuracy"]), chance, role, share, agreement)))
    return table


def _verdicts(rows: pd.DataFrame) -> str:
    """The verdict, or each with its count; a run without one has its status there."""
    found = Counter(rows["verdict"].where(rows["verdict"].notna(), rows["status"]))
    return ", ".join(f"{count} {word}" if len(rows) > 1 else str(word) for word, count in found.items())


def comparison_parts(one: Compared, scale: str, wanted: str | None, width: int) -> Iterator[RenderableType]:
    """A study beside the paper, part by part; `wanted` is the one table to show, a name of `TABLES`."""
    study, comparison = one.table.study, one.comparison
    yield Text.assemble((study.name, "bold"), f" (figure {study.figure}), {scale} scale\n{study.question}")
    yield settings_text(one.settings)
    progress = runs_text(one.table.frame, study.name, scale)
    if progress is not None:
        yield progress
    yield ""
    tables = {
        "cells": (cells_text(comparison), "", cells_table(comparison, width)) if len(comparison.cells) else (),
        "patterns": (patterns_table(comparison),) if len(comparison.patterns) else (),
        "arms": (Text(one.arms.said), "", arms_table(one.arms)) if one.arms and len(one.arms.settings) else (),
        "claims": (Text(counted(one.claims)), Text(spreads_said(one.spreads)), "", claims_table(one.claims))
        if one.claims
        else (),
    }
    for name, parts in tables.items():
        if parts and wanted in (None, name):
            yield from (*parts, "")


def settings_text(ours: Mapping[str, Setting]) -> Text:
    """In what the two sides differ, in numbers."""
    lines = []
    for task, setting in ours.items():
        mine, paper = setting.describe(), Setting.paper(task).describe()
        line = f"both: {mine}" if mine == paper else f"ours: {mine}; the paper: {paper}"
        lines.append(f"{task.upper()}, {line}." if len(ours) > 1 else f"{line[0].upper()}{line[1:]}.")
    apart = all(setting.options.get("holdout") for setting in ours.values())  # only then the paper had a dev set
    return Text("\n".join([*lines, HELD_OUT if apart else CHOICE]))


def runs_text(frame: pd.DataFrame, study: str, scale: str) -> Text | None:
    """How much of the grid is in the store; None if it is complete."""
    counts = Counter(frame["status"])
    ended = counts["done"] + counts["diverged"]
    if ended == len(frame):
        return None
    rest = ", ".join(f"{n:,} {status}" for status, n in counts.most_common() if status not in ("done", "diverged"))
    command = f"mecheval study {study}" + ("" if scale == "laptop" else f" --scale {scale}")
    said = f"Only {ended:,} of {len(frame):,} runs have ended ({rest}), and what follows is about those"
    return Text(f"{said}; `{command}` trains the rest.", style="yellow")


def cells_text(comparison: Comparison) -> Text:
    """What the numbers are and, at the paper's scale, how close the two sides are."""
    both = comparison.cells.dropna(subset=["difference"])
    about = f"{NUMBERS} The paper's are means over {PUBLISHED[comparison.study].documents} documents."
    if comparison.scale != "paper" or both.empty:
        return Text(about)
    worst = both.loc[both["difference"].abs().idxmax()]
    return Text(
        f"{about} {comparison.agreement} The largest difference is {_points(worst['difference'])} ({worst['mixer']}, "
        f"d_model {worst['d_model']}, {comparison.titles[worst['quantity']]})."
    )


def cells_table(comparison: Comparison, width: int = 80) -> Table:
    """Percentages: for each model ours, the paper's, and the difference in points.

    They stand side by side in a wide terminal, else below each other; so does the range of ours over several seeds.
    """
    cells = comparison.cells
    rates, several = cells["lr"].notna().any(), (cells["seeds"] > 1).any()
    wide = width >= WIDE and not several
    quantities = list(dict.fromkeys(cells["quantity"]))
    places = PUBLISHED[comparison.study].places
    heads = comparison.titles | reading_heads({place: comparison.titles[place] for place in places}, gap=" ")
    numbers = [
        head for name in quantities for head in ((f"{heads[name]}\nours", "paper", "diff") if wide else (heads[name],))
    ]
    first = "lr" if rates else "mixer"
    table = plain_table((first, "d", *(() if wide else ("",)), *numbers), (first, ""))
    for (mixer, lr, d), model in cells.groupby(["mixer", "lr", "d_model"], dropna=False, sort=False):
        found = {row["quantity"]: row for row in model.to_dict("records")}
        place = [Text(f"{lr:g}" if rates else str(mixer)), Text(str(d))]
        lines = _lines([found[quantity] for quantity in quantities])
        styled = {side: [Text(each, SIDES.get(side, "")) for each in line] for side, line in lines.items()}
        if wide:
            table.add_row(*place, *(each for column in zip(*styled.values(), strict=True) for each in column))
            continue
        for side, line in styled.items():
            if side != "diff" or set(lines[side]) != {MISSING}:
                table.add_row(*place, Text(side, SIDES.get(side, "")), *line)
                place = [Text(), Text()]
    return table


def _lines(row: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The numbers of one model by side, quantity by quantity."""
    seeds = max(cell["seeds"] for cell in row)
    ranges = [
        MISSING if math.isnan(cell["low"]) else f"{_percent(cell['low'])}–{_percent(cell['high'])}" for cell in row
    ]
    return {
        "ours": [_percent(cell["ours"]) for cell in row],
        **({f"{seeds} seeds": ranges} if seeds > 1 else {}),
        "paper": [_percent(cell["paper"]) for cell in row],
        "diff": [_points(cell["difference"]) for cell in row],
    }


def patterns_table(comparison: Comparison) -> Table:
    """Where runs that learnt are restored most, ours and the paper's."""
    title = (
        f"Where models are restored most, if the corruption loses more than {100 * USUAL.lost:g} point of likelihood:"
    )
    table = Table(box=None, header_style="bold", pad_edge=False, title=Text(title), title_justify="left", expand=True)
    table.title_style = ""
    for name in ("mixer", "ours", "paper", "same place"):
        table.add_column(name, ratio=None if name in ("mixer", "same place") else 1, no_wrap=name == "mixer")
    for row in comparison.patterns.to_dict("records"):
        same = f"{row['same']} of {row['learnt']} runs" if row["main"] and row["learnt"] else MISSING
        table.add_row(*(Text(text or MISSING) for text in (row["mixer"], row["ours"], row["paper"], same)))
    return table


def arms_table(arms: Arms) -> Table:
    """For each setting that has both orders of documents how far each is from the paper, in points."""
    rates = "lr" in arms.settings
    heads = ("mixer", *["lr"] * rates, "d", "points from the paper,\nsame order", "\nnew order", "gap closed")
    table = plain_table(heads, ("mixer",))
    for row in arms.settings.to_dict("records"):
        closed = MISSING if math.isnan(row["closed"]) else f"{row['closed']:.0%}"
        lr = [f"{row['lr']:g}"] if rates else []
        cells = (row["mixer"], *lr, str(row["d_model"]), _percent(row[SAME]), _percent(row[NEW]), closed)
        table.add_row(*map(Text, cells))
    return table


def claims_table(judged: Sequence[Judged]) -> Table:
    """Each claim with its outcome, what the paper says and we found, what that rests on, and what is missing."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for number, one in enumerate(judged):
        if number:
            table.add_row()
        table.add_row(Text(one.outcome, STYLES[one.outcome]), Text(f"{one.says} ({one.where})", "bold"))
        lines = {
            "paper": one.paper, "tested": one.tested, "found": one.evidence, "rests on": one.rests,
            "missing": one.needs, "most": one.lenient and f"{one.lenient} if it is enough that most parts hold",
            "limits": one.flips,
        }  # fmt: skip
        for name, text in lines.items():
            if text:
                table.add_row(f"  {name}", Text(text))
    return table


def _percent(value: float) -> str:
    return MISSING if math.isnan(value) else f"{100 * value:.1f}"


def _points(value: float) -> str:
    return MISSING if math.isnan(value) else f"{100 * value:+.1f}".replace("-0.0", "+0.0").replace("+0.0", "0.0")
