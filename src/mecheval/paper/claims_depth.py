"""What the paper says about positions and about which layer retrieves, as questions to the rows of one seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mecheval.paper.checks import Check, check, gaps, labels, learnt, listed, none_learnt, percent, pick
from mecheval.paper.thresholds import TIE

if TYPE_CHECKING:  # slow to import
    import pandas as pd


def positions_hurt(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Mixers but attention are worse with position embeddings in most pairs; a level pair is not worse."""
    of = rows[rows["mixer"] != "attention"]
    missing = gaps(of, "test_accuracy")
    if missing:
        return missing
    done = pick(of, status="done")
    place = ["task", "mixer", "d_model"]
    pairs = done.pivot_table(index=place, columns="positions", values="test_accuracy").reindex(
        columns=["none", "learned"]
    )
    change = (pairs["learned"] - pairs["none"]).dropna()
    worse, better = change[change < -TIE], change[change > TIE]
    said = f"{len(worse)} worse, {len(better)} better, {len(change) - len(worse) - len(better)} level"
    if len(better):
        told = [f"{mixer} on {task.upper()}, d {d} (by {percent(gain)})" for (task, mixer, d), gain in better.items()]
        said += f"; better: {listed(told)}"
    return [check(2 * len(worse) > len(change), said)]


def first_layer(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Hyena retrieves in layer 0; Mamba mostly too, else in its last layer."""
    return [
        *_retrieving(rows, "hyena", main=0, allowed=lambda layer, last: layer == 0),
        *_retrieving(rows, "mamba", main=0, allowed=lambda layer, last: layer in (0, last)),
    ]


def second_layer(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Attention and Based mostly retrieve in layer 1, else in layer 2; so does BaseConv where it learnt."""
    checks = []
    for mixer in ("attention", "based", "base_conv"):
        found = _retrieving(rows, mixer, main=1, allowed=lambda layer, last: layer > 0)
        optional = mixer == "base_conv" and all(one.result == "open" for one in found)
        checks += [Check("aside", one.said) for one in found] if optional else found
    return checks


def _retrieving(rows: pd.DataFrame, mixer: str, main: int, allowed: Callable[[int, int], bool]) -> list[Check]:
    """Is the layer with the highest attribution at the query mostly `main`, and always `allowed(it, the last one)`?

    Models of one layer have no choice, so they do not count.
    """
    of = rows[(rows["mixer"] == mixer) & (rows["n_layers"] > 1)]
    missing, able = gaps(of, "original"), learnt(of)
    if missing or able.empty:
        return missing or [none_learnt(f"{mixer} of 2 or 3 layers")]
    found = able[[f"mixer{layer}_at_query" for layer in range(3)]].to_numpy(dtype=float)
    tops = [max(range(3), key=lambda layer: -1.0 if row[layer] != row[layer] else row[layer]) for row in found]
    fine = [allowed(top, n - 1) for top, n in zip(tops, able["n_layers"], strict=True)]
    at_main = sum(top == main for top in tops)
    others = [f"{name}: layer {top}" for name, top in zip(labels(able, of), tops, strict=True) if top != main]
    said = f"{mixer}: layer {main} in {at_main} of {len(tops)} runs" + (f" ({listed(others)})" if others else "")
    return [check(all(fine) and 2 * at_main > len(tops), said)]
