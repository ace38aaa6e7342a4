"""The sweep over states in a terminal: a line a layer, and numbers at the positions that have names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mecheval.cli.show import plain_table
from mecheval.cli.show.effects import DONE
from mecheval.figures.heatmap import label
from mecheval.figures.states import HALF, aligned, entered, named, reached, spelt

if TYPE_CHECKING:  # slow to import
    import pandas as pd

BARS = "▁▂▃▄▅▆▇█"
"""Shares from 0 to 1 as bars."""
MARGIN = 10
"""Characters before the bars."""


def sweep_text(swept: pd.DataFrame) -> Text:
    """What the numbers of a sweep mean."""
    whole = swept.sort_values("n").iloc[-1]
    done = DONE.get(str(whole["corruption"]), DONE["other"])
    before, after = f"{whole['original']:.3f}", f"{whole['corrupted']:.3f}"
    if swept["share"].isna().all():
        return Text(
            f"The task is not learnt: the likelihood of the answer is {before}, and {after} with {done}, so there is "
            "nothing to restore."
        )
    return Text(
        f"With {done}, the likelihood of the answer falls from {before} to {after}. Restored share: how much of this "
        "loss the clean state of one layer undoes, put in after each position, counted from the {aligned(swept)}."
    )


def sweep_table(swept: pd.DataFrame, roles: Mapping[str, int], width: int = 80) -> Group:
    """The share at every offset as bars, a line a layer; below it as numbers where a position has a name."""
    along = reached(swept)
    offsets = sorted(int(offset) for offset in along["offset"].unique())[: max(1, width - MARGIN)]
    bars, letters = Table.grid(padding=(0, 1)), _letters(offsets, roles)
    bars.add_row("", letters)
    table = plain_table(["layer", *(numbers := named(swept, roles)).columns], gap=1)
    for layer, row in numbers.iterrows():
        share = along[along["layer"] == layer].set_index("offset")["share"]
        bars.add_row(f"layer {layer}", "".join(_bar(float(share.get(offset, math.nan))) for offset in offsets))
        table.add_row(str(layer), *(label(value) for value in row))
    legend = ", ".join(f"{role[0]} {role}" for role, at in roles.items() if at in offsets)
    ends = f"{spelt(offsets[0], {})} to {spelt(offsets[-1], {})}"
    return Group(bars, Text(f"({ends}; {legend})"), Text(""), table)


def _letters(offsets: Sequence[int], roles: Mapping[str, int]) -> str:
    """The first letter of each role above its offset."""
    at = {offset: role[0] for role, offset in roles.items()}
    return "".join(at.get(offset, " ") for offset in offsets)


def sweep_summary(swept: pd.DataFrame, roles: Mapping[str, int]) -> Group:
    """A sentence for each layer: where what was corrupted enters its state, and whether it stays."""
    lines = []
    [landmark, *_] = swept.loc[swept["role"] != aligned(swept), "role"].unique()
    end = swept[swept["role"] == landmark].set_index("layer")["share"]
    for layer, found in entered(swept).items():
        if found is None:
            lines.append(Text(f"layer {layer}: its clean state alone never restores half of the loss."))
            continue
        offset, share = found
        last = float(end.get(layer, math.nan))
        stays = "stays in it" if last >= HALF else "is no longer needed there"
        lines.append(
            Text(
                f"layer {layer}: what was corrupted enters the state at {spelt(offset, roles)} (share {label(share)}) "
                f"and {stays} ({landmark} {label(last)})."
            )
        )
    return Group(*lines)


def _bar(share: float) -> str:
    return " " if math.isnan(share) else BARS[round(min(1.0, max(0.0, share)) * (len(BARS) - 1))]
