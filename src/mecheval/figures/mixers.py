"""Every mixer by its likelihood on pairs and on trees, marked by the mechanisms that it has on both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.canvas import breadth
from mecheval.figures.mechanisms import ASSOCIATES, BOTH, RETRIEVES, VERDICTS, words
from mecheval.studies.axes import plain
from mecheval.studies.finding import named

if TYPE_CHECKING:  # slow to import
    import pandas as pd

DASH = "M-1,-0.35L1,-0.35L1,0.35L-1,0.35Z"
MARKS = {
    "induction": (RETRIEVES, "circle"), "conv_association": (ASSOCIATES, "square"),
    "direct_retrieval": (BOTH, "triangle-up"), "pointer": ("#009e73", "diamond"), "redundant": ("#7b4fa3", "cross"),
    "joint": ("#e69f00", "triangle-down"), "mixed": ("#cc79a7", "triangle-right"),
    "undetermined": ("#7a7a7a", "triangle-left"), "not_learnt": ("#98a1ab", DASH),
}  # fmt: skip
"""Colour and shape of each verdict; where mechanisms are drawn with arrows, the first three are colours of those."""
WIDTH, HEIGHT = 640.0, 330.0
"""Pixels of a panel across and down, without its strip."""
LINE = 14.0
"""Height in pixels of a line of the strip: each mixer without a run on trees has one."""
APART = 4.5
"""Pixels from the place of a mixer to the middle of its mark for pairs (left) and for trees (right)."""
SIZE, LETTER = 10, 12.0
"""Text size of names, and the height that a name takes, in pixels."""
DISTANCES, STEPS, ROUNDS = [13.0 + 6 * i for i in range(18)], 32, 4
"""Distances of a name from its point that are tried, in pixels, the number of directions, and of times."""
LED = 16.0
"""Distance in pixels from which a line leads from a point to its name."""

TASKS = ("ar", "atr")
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""
Place = tuple[float, float]
Point = dict[str, Any]


def mixers(panels: Mapping[str, pd.DataFrame], title: str) -> vl.Chart:
    """Likelihood on pairs across and on trees up, two marks and a name for each mixer: a panel for each title.

    The frames are those of `paper.standings.panels`. Mixers without a run on trees stand in a strip below the panel.
    """
    shown = {name: found for name, frame in panels.items() if (found := points(frame))}
    if not shown:
        raise UserError("mixers: there are no finished runs on pairs (AR) to show; `mecheval study newer` makes some.")
    every = [point for found in shown.values() for point in found]
    trees = [point["trees"] for point in every if point["trees"] is not None]
    ends = math.floor(20 * min(trees, default=0.5)) / 20, math.ceil(20 * max(trees, default=1.0)) / 20
    ends = ends if ends[0] < ends[1] else (ends[0], ends[0] + 0.05)
    verdicts = [each for each in VERDICTS if any(words(each) in (p["on_pairs"], p["on_trees"]) for p in every)]
    drawn = [_panel(found, name, ends, verdicts) for name, found in shown.items()]
    notes = [
        "Left mark: the mechanism on pairs (AR). Right mark: the mechanism on trees (ATR). Means over seeds on test; "
        "the learning rate is chosen on dev."
    ]
    notes += ["Below the dashed line: no run on trees."] * (len(trees) < len(every))
    said = " ".join(f"{name.capitalize()}: {'; '.join(map(_said, found))}." for name, found in shown.items())
    return vl.finish(vl.below(drawn, 2 * vl.GAP), title, notes, WIDTH + 150, f"{title}. {said}")


def points(frame: pd.DataFrame) -> list[Point]:
    """A point for each mixer that has a run on pairs, with what it does on trees."""
    on = {task: {row["mixer"]: row for row in frame[frame["task"] == task].to_dict("records")} for task in TASKS}
    found = []
    for mixer, pairs in on["ar"].items():
        trees = on["atr"].get(mixer)
        found.append({
            "name": name_of(str(mixer)), "pairs": float(pairs["likelihood"]),
            "trees": None if trees is None else float(trees["likelihood"]), "on_pairs": words(_verdict(pairs)),
            "on_trees": "" if trees is None else words(_verdict(trees)),
            "runs": ", ".join(str(row["runs"]) for row in (pairs, trees) if row is not None),
        })  # fmt: skip
    return found


def name_of(mixer: str) -> str:
    """A mixer, or each of a hybrid, as prose writes it."""
    return " + ".join(named([part]) for part in mixer.split("+"))


def _verdict(row: Mapping[str, Any]) -> str:
    return str(plain(row["verdict"]) or "undetermined")


def _said(point: Point) -> str:
    trees = "" if point["trees"] is None else f", trees {100 * point['trees']:.1f} % ({point['on_trees']})"
    return f"{point['name']}: pairs {100 * point['pairs']:.1f} % ({point['on_pairs']}){trees}"


def _panel(found: list[Point], title: str, ends: tuple[float, float], verdicts: Sequence[str]) -> vl.Spec:
    """The marks, the names and the lines that lead to them, for one width; places are in pixels."""
    low, high = ends
    apart = sorted((point for point in found if point["trees"] is None), key=lambda point: -point["pairs"])
    bottom = HEIGHT + LINE * (len(apart) + 1) * bool(apart)
    for point in found:
        up = HEIGHT + LINE * (apart.index(point) + 1) if point["trees"] is None else point["trees"]
        point["x"], point["y"] = WIDTH * point["pairs"], up if up > 1 else HEIGHT * (high - up) / (high - low)
    there = [point for point in found if point["trees"] is not None]
    places = dict(zip([point["name"] for point in there], place_names(there), strict=True))
    for point in found:
        wide = breadth(point["name"], SIZE) / 2
        side = -1 if point["pairs"] > 0.5 else 1  # in the strip, towards the middle
        x, y = places.get(point["name"], (point["x"] + side * (wide + 10), point["y"]))
        near = min(max(point["x"], x - wide), x + wide), min(max(point["y"], y - LETTER / 2), y + LETTER / 2)
        led = math.dist((point["x"], point["y"]), near) > LED
        point |= {"label_x": x, "label_y": y, "line_x": near[0], "line_y": near[1], "led": led}
    steps = round((high - low) / 0.05)
    ticks = [HEIGHT * i / steps for i in range(steps + 1)]
    x = vl.field("x:Q", title="likelihood on pairs (AR), %", scale={"domain": [0, WIDTH], "nice": False},
                 axis={"values": [WIDTH * i / 5 for i in range(6)], "grid": True,
                       "labelExpr": f"round(100 * datum.value / {WIDTH})"})  # fmt: skip
    y = vl.field("y:Q", title="likelihood on trees (ATR), %",
                 scale={"domain": [0, bottom], "nice": False, "zero": False, "reverse": True},
                 axis={"values": ticks, "grid": True,
                       "labelExpr": f"round(100 * ({high} - datum.value * {(high - low) / HEIGHT}))"})  # fmt: skip
    names = [words(verdict) for verdict in verdicts]
    hues, shapes = zip(*(MARKS[verdict] for verdict in verdicts), strict=True)
    looks = {"color": hues, "shape": shapes}
    tips = vl.tooltips(["name", "pairs", "trees", "on_pairs", "on_trees", "runs"])
    marks = [
        vl.layer("point", {"x": x, "y": y, **vl.marks(field, names, {"title": "mechanism"}, **looks), "tooltip": tips},
                 where=f"datum.{field} !== ''", filled=True, size=60, opacity=1, xOffset=side)
        for side, field in ((-APART, "on_pairs"), (APART, "on_trees"))
    ]  # fmt: skip
    lead = {"x": x, "y": y, "x2": {"field": "line_x"}, "y2": {"field": "line_y"}}
    text = {"x": vl.field("label_x:Q"), "y": vl.field("label_y:Q"), "text": vl.field("name:N")}
    lines = [vl.layer("rule", lead, where="datum.led", stroke=vl.GREY, strokeWidth=0.7)]
    lines += [vl.layer("rule", {"y": {"datum": HEIGHT}}, stroke=vl.GREY, strokeDash=[4, 3])] * bool(apart)
    words_of = vl.layer("text", text, fontSize=SIZE, align="center", baseline="middle")
    return vl.panel([*lines, *marks, words_of], WIDTH, bottom, found, title=vl.heading(title, WIDTH))


def place_names(found: Sequence[Point]) -> list[Place]:
    """The middle of each name in pixels: near its point, inside the panel, on no other name and on no mark."""
    wide = [breadth(point["name"], SIZE) for point in found]
    at = [(float(point["x"]), float(point["y"])) for point in found]
    marks = [(x - 10, y - 5, x + 10, y + 5) for x, y in at]
    boxes: dict[int, Box] = {}
    for _, i in product(range(ROUNDS), range(len(found))):  # again, because the first did not know of the last
        others = [*marks, *(box for j, box in boxes.items() if j != i)]
        tried = [_box(at[i], wide[i], distance, turn) for distance in DISTANCES for turn in range(STEPS)]
        costs = [_cost(box, at[i], others) for box in tried]
        boxes[i] = tried[costs.index(min(costs))]
    return [((boxes[i][0] + boxes[i][2]) / 2, (boxes[i][1] + boxes[i][3]) / 2) for i in range(len(found))]


def _box(point: Place, wide: float, distance: float, turn: int) -> Box:
    """The box of a name whose near edge is about `distance` from its point, in one of the directions."""
    angle = 2 * math.pi * turn / STEPS
    x = point[0] + (distance + wide / 2) * math.cos(angle)
    y = point[1] + distance * math.sin(angle)
    return x - wide / 2, y - LETTER / 2, x + wide / 2, y + LETTER / 2


def _cost(box: Box, point: Place, others: Sequence[Box]) -> float:
    """How bad a place is: its distance, and much more where it leaves the panel or covers something."""
    outside = max(0.0, -box[0], -box[1], box[2] - WIDTH, box[3] - HEIGHT)
    covered = sum(_overlap(box, other) for other in others)
    near = min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])
    return math.dist(point, near) + 100 * outside + 10 * covered


def _overlap(one: Box, other: Box) -> float:
    wide, high = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0
