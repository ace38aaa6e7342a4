"""Charts of points: how often verdicts are right, how many pairs models recall, and the shares behind a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.cells import number
from mecheval.figures.vegalite import mixer_marks
from mecheval.studies import StudyTable
from mecheval.studies.convergence import LEARNT

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.intervene import Verdict

TITLE = "How often is the verdict right?"
TITLES = {
    "untrained": "untrained: no name is right", "shuffled": "trained to guess: no name is right",
    "chance": "hand-set to guess: no name is right", "handmade": "hand-set to recall: the built mechanism is right",
}  # fmt: skip
GOAL = 0.95
"""The share of right verdicts that a dashed line marks."""
STEP, HEIGHT, NARROW = 62, 150, 130
"""Pixels of a level of noise across, of a panel of rates down, and of the narrowest such panel."""
SIDES = 460, 300
"""Pixels of the chart of capacity across and down."""
MARKS = {
    ("key", "restore"): ("key: restored", vl.HUES["based"], "circle"),
    ("key", "destroy"): ("key: destroyed", vl.HUES["mamba"], "square"),
    ("key", "control"): ("key: from another document", vl.OTHER_HUES[2], "cross"),
    ("value", "restore"): ("value: restored", vl.HUES["delta_net"], "diamond"),
    ("value", "destroy"): ("value: destroyed", vl.HUES["hyena"], "triangle-up"),
    ("query", "destroy"): ("query: brought for another", vl.HUES["h3"], "triangle-down"),
}
"""Name, colour and shape of each corruption and direction that a verdict looks at."""
WIDTH, LINE = 300, 30
"""Width of a panel of shares, and distance from one position to the next, in pixels."""


def calibration(frame: pd.DataFrame, title: str = TITLE) -> vl.Chart:
    """The rates of `evaluation.calibration.counted` with their 95 % intervals: a panel for each kind of model."""
    shown = frame[frame["counted"] > 0]
    if shown.empty:
        raise UserError("calibration: there is no verdict to show.")
    sizes = sorted(int(n) for n in shown["documents"].unique())
    kinds = [kind for kind in TITLES if (shown["kind"] == kind).any()]
    panels = [_panel(shown[shown["kind"] == kind], kind, sizes, first=kind == kinds[0]) for kind in kinds]
    notes = [
        "Share of right verdicts with its 95 % interval, by the noise on the weights. Hand-set models count as long as "
        f"they recall with a likelihood of at least 0.9. Dashed: {100 * GOAL:.0f} %."
    ]
    pixels = sum(each["width"] + vl.GAP for each in panels) + 120
    return vl.finish(vl.beside(panels, vl.GAP), title, notes, pixels, describe(shown, title))


def _panel(part: pd.DataFrame, kind: str, sizes: list[int], *, first: bool) -> vl.Spec:
    rows = vl.rows_of(part.assign(noise=[f"{x:g}" for x in part["noise"]]))
    levels = [f"{x:g}" for x in sorted(part["noise"].unique())]
    width = max(NARROW, STEP * len(levels))
    colour = vl.field("documents:O", scale={"domain": sizes, "range": vl.shades(len(sizes))}, title="documents")
    shape = vl.field("documents:O", scale={"domain": sizes, "range": list(vl.SHAPES[: len(sizes)])}, title="documents")
    axis = {**vl.PERCENT, "labels": first, "title": "right, %" if first else None}
    shared = {
        "x": vl.field("noise:O", sort=levels, title="noise", axis={"labelAngle": 0}),
        "xOffset": vl.field("documents:O", sort=sizes),
        "color": colour,
        "tooltip": [vl.field(f"{name}:N") for name in ("kind", "noise", "documents", "counted", "right", "labels")],
    }
    up: dict[str, Any] = {"scale": {"domain": [0, 1]}, "axis": axis}
    spans = vl.layer("rule", {**shared, "y": vl.field("low:Q", **up), "y2": {"field": "high"}}, size=2)
    dots = {**shared, "y": vl.field("rate:Q", **up), "shape": shape}
    points = vl.layer("point", dots, filled=True, size=55, opacity=1)
    goal = vl.layer("rule", {"y": {"datum": GOAL}}, strokeDash=[4, 3], stroke=vl.GREY)
    return vl.panel([goal, spans, points], width, HEIGHT, rows, title=vl.heading(TITLES[kind], width))


def describe(shown: pd.DataFrame, title: str) -> str:
    """The chart in words, for readers who cannot see it."""
    said = []
    for kind in TITLES:
        part = shown[shown["kind"] == kind]
        if len(part):
            worst = part.loc[part["rate"].idxmin()]
            said.append(
                f"{kind}: {int(part['right'].sum())} of {int(part['counted'].sum())} verdicts are right, the fewest "
                f"({100 * worst['rate']:.0f} %) with noise {worst['noise']:g} and {worst['documents']} documents"
            )
    return f"{title} {'; '.join(said)}."


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


def shares(verdict: Verdict, title: str) -> vl.Chart:
    """A panel for each site that the verdict looks at, a line for each position, points with 95 % intervals."""
    frame = verdict.shares
    kinds = list(zip(frame["corruption"], frame["direction"], strict=True))
    frame = frame.assign(kind=[MARKS[kind][0] for kind in kinds])
    if frame["share"].isna().all():
        raise UserError(f"this verdict looks at no share that could be drawn: {verdict.finding}.")
    there = [mark for kind, mark in MARKS.items() if kind in kinds]
    names = [name for name, _, _ in there]
    look = {
        "color": vl.field("kind:N", title=None, scale={"domain": names, "range": [hue for _, hue, _ in there]}),
        "shape": vl.field("kind:N", title=None, scale={"domain": names, "range": [shape for _, _, shape in there]}),
    }
    panels = []
    for site, part in frame.groupby("site", sort=False):
        y = vl.field("role:N", title=None, sort=list(part["role"].unique()), axis={"grid": True})
        x = vl.field("share:Q", title="share", axis={"grid": True, "values": [0, 0.5, 1]}, scale={"nice": True})
        apart = {"yOffset": vl.field("kind:N", sort=names)}
        tips = vl.tooltips(["site", "role", "kind", "share", "low", "high"])
        ends = {"x": vl.field("low:Q"), "x2": {"field": "high"}, "y": y, **apart, "color": look["color"]}
        points = {"x": x, "y": y, **apart, **look, "tooltip": tips}
        height = LINE * part["role"].nunique()
        panels.append(vl.panel(
            [vl.layer("rule", ends), vl.layer("point", points, filled=True, size=40, opacity=1)], WIDTH, height,
            vl.rows_of(part), title=vl.heading(str(site), WIDTH),
        ))  # fmt: skip
    said = "; ".join(verdict.evidence[1:3]).rstrip(".")
    notes = [f"95 % intervals, {verdict.n} documents"]
    description = f"{title}. Shares with intervals, by site and position. {said}."
    return vl.finish(vl.below(panels, vl.GAP), title, notes, WIDTH + 200, description)
