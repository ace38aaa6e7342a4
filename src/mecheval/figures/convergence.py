"""How mixers learn: the share of runs that learn by learning rate, and when accuracy and mechanism appear."""

from __future__ import annotations

from collections.abc import Sequence

from mecheval.figures import vegalite as vl
from mecheval.intervene.intervals import mean_interval
from mecheval.studies import StudyTable
from mecheval.studies.axes import say
from mecheval.studies.convergence import LEARNT, says
from mecheval.types import MISSING

CELL, HIGH = 46, 22
"""Width of a learning rate and height of a mixer, in pixels."""
WIDE = 260
NAMES = {"jumps": "accuracy jumps", "appears": "mechanism appears", "to_90": "accuracy reaches 90 %"}
LOOKS = {"jumps": ("#0072b2", "circle"), "appears": ("#d55e00", "triangle-up"), "to_90": ("#5c6670", "diamond")}


def convergence(table: StudyTable, title: str) -> vl.Chart:
    """For each width a map of the share of runs that learn, by mixer and learning rate, and their steps beside it."""
    frame = table.frame[table.frame["status"].isin(["done", "diverged"])]
    mixers, lines = table.axis("mixer"), []
    rates = [say("lr", rate) for rate in reversed(table.axis("lr"))]
    for width in table.axis("d_model"):
        cells, points = [], []
        for (mixer, rate), own in frame[frame["d_model"] == width].groupby(["mixer", "lr"], sort=False):
            learnt = ((own["status"] == "done") & (own["test_accuracy"] >= LEARNT)).to_numpy(float)
            low, high = mean_interval(learnt)
            score = own["test_accuracy"].iloc[0]
            alone = MISSING if score != score else f"{score:.2f}"
            cells.append({
                "mixer": mixer, "lr": say("lr", rate), "share": float(learnt.mean()),
                "text": f"{learnt.mean():.0%}" if len(own) > 1 else alone,
                "runs": f"{int(learnt.sum())} of {len(own)}", "interval": f"{low:.0%} to {high:.0%}",
            })  # fmt: skip
        best = frame[(frame["d_model"] == width) & (frame["test_accuracy"] >= LEARNT)]
        for row in best.to_dict("records"):
            about = {"mixer": row["mixer"], "lr": say("lr", row["lr"]), "run": row["run"]}
            points += [{**about, "step": row[name], "what": NAMES[name]} for name in NAMES if row[name] == row[name]]
        both = vl.beside([_map(cells, mixers, rates, width), _steps(points, mixers)], 5 * vl.GAP)
        lines.append({**both, "resolve": {"scale": dict.fromkeys(("color", "shape"), "independent")}})
    seeds = int(frame["seed"].nunique())
    shown = "Numbers: share of seeds that learn" if seeds > 1 else "Numbers: test accuracy"
    notes = [
        f"{shown} (dark: test accuracy of at least {100 * LEARNT:.0f} %), by learning rate; white: not run. Right, for "
        "each run that learns: when its accuracy rises most above chance, when its final verdict is there to stay, and "
        "when its accuracy reaches 90 %."
    ]
    chart = vl.below(lines, 2 * vl.GAP)
    return vl.finish(chart, title, notes, CELL * len(rates) + WIDE + 260, f"{title} {' '.join(says(table))}")


def _map(cells: Sequence[vl.Row], mixers: list[str], rates: list[str], width: int) -> vl.Spec:
    at = {
        "x": vl.field("lr:O", title="learning rate", scale={"domain": rates}, axis={"labelAngle": 0}),
        "y": vl.field("mixer:N", sort=mixers, title=None, scale={"domain": mixers}),
        "tooltip": vl.tooltips(["mixer", "lr", "runs", "interval"]),
    }
    fill = {**at, "color": vl.field("share:Q", scale=vl.FILL, legend=None)}
    text = {**at, "text": vl.field("text:N"), "color": vl.ink("share")}
    layers = [vl.layer("rect", fill, stroke="white"), vl.layer("text", text, fontSize=10)]
    head = vl.heading(f"runs that learn, d_model {width}", 240)
    return vl.panel(layers, {"step": CELL}, {"step": HIGH}, cells, title=head)


def _steps(points: Sequence[vl.Row], mixers: list[str]) -> vl.Spec:
    texts = list(NAMES.values())
    hues, shapes = zip(*LOOKS.values(), strict=True)
    unnamed = {"labels": False, "grid": True}
    at = {
        "x": vl.field("step:Q", title="step", axis={"grid": True, "tickCount": 5}),
        "y": vl.field("mixer:N", sort=mixers, title=None, scale={"domain": mixers, "padding": 0}, axis=unnamed),
        "yOffset": vl.field("what:N", sort=texts),
        **vl.marks("what", texts, {"title": "step at which"}, color=hues, shape=shapes),
        "tooltip": vl.tooltips(["mixer", "what", "step", "lr", "run"]),
    }
    marks = vl.layer("point", at, rows=points, filled=True, opacity=0.8, size=30)
    return vl.panel(
        [marks], WIDE, {"step": HIGH, "for": "position"}, title=vl.heading("when accuracy and mechanism come", WIDE)
    )
