"""How many pairs models recall, by the size of their state."""

from __future__ import annotations

from typing import Any

from mecheval.figures import vegalite as vl
from mecheval.figures.cells import number
from mecheval.figures.vegalite import mixer_marks
from mecheval.studies import StudyTable
from mecheval.studies.convergence import LEARNT

SIDES = 460, 300
"""Pixels across and down."""


def capacity(table: StudyTable, title: str) -> vl.Chart:
    """The largest number of pairs that each mixer and width recalls, over the numbers that its state holds.

    All numbers of pairs up to that one must be recalled, too. The state is that after a document of so many pairs.
    """
    points = largest(table)
    mixers = list(dict.fromkeys(point["mixer"] for point in points)) or ["attention"]
    hues, shapes, _ = zip(*mixer_marks(mixers).values(), strict=True)
    axis = {"grid": True, "tickCount": 6}
    at = {
        "x": vl.field("state:Q", title="numbers in the state", scale={"type": "log"}, axis=axis),
        "y": vl.field("pairs:Q", title="pairs", scale={"type": "log", "base": 2, "domain": [1, 64]}, axis=axis),
        **vl.marks("mixer", mixers, color=hues, shape=shapes),
        "tooltip": vl.tooltips(["mixer", "d_model", "seed", "state", "pairs", "run"]),
    }
    chart = vl.panel([vl.layer("point", at, filled=True, opacity=0.9, size=80)], *SIDES, points)
    note = f"the most pairs recalled with a test accuracy of at least {100 * LEARNT:.0f} %"
    said = ", ".join(f"{p['mixer']} d_model {p['d_model']}: {p['pairs']} pairs, state {p['state']}" for p in points)
    return vl.finish(chart, title, [note], SIDES[0] + 150, f"{title}. {note}. {said or 'No results'}.")


def largest(table: StudyTable) -> list[dict[str, Any]]:
    """A point for each mixer, width and seed that recalls at least the smallest number of pairs."""
    from mecheval.model import LM

    points = []
    for (mixer, width, seed), runs in table.frame.groupby(["mixer", "d_model", "seed"], sort=False):
        best = None
        for run in runs.sort_values("pairs").to_dict("records"):
            if (number(run, "test_accuracy") or 0) < LEARNT:
                break
            best = run
        if best is not None:
            pairs = int(best["pairs"])
            state = LM(1, int(width), mixer=str(mixer)).state_size(2 * pairs + 3)
            points.append({
                "mixer": mixer, "d_model": int(width), "seed": int(seed), "pairs": pairs, "state": state,
                "run": best["run"],
            })  # fmt: skip
    return points
