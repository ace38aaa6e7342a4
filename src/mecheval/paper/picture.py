"""One picture of a figure: the paper's numbers above ours, cell by cell, with the differences marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.vegalite import FAINT, GREY
from mecheval.paper.arms import NEW, SAME
from mecheval.paper.claims.atr import INDUCTION, PLACES
from mecheval.paper.comparison import Compared
from mecheval.paper.limits import RESTORED, USUAL
from mecheval.paper.numbers import PUBLISHED, published
from mecheval.studies.axes import ordered
from mecheval.studies.finding import NAMES

if TYPE_CHECKING:  # slow to import
    import pandas as pd

DRAWN = ("ar", "atr")
"""The studies that are drawn: figures 3 and 7."""
PAPER = "paper"
CELL = 31, 15
"""Pixels of a cell, across and down."""
HERE, HIT = "●", "#d55e00"
"""The mark of a place where the paper's runs are restored, if it printed no numbers; and the colour of differences."""
SAID = {("atr", "based", 256): 0.922, ("atr", "base_conv", 256): 0.897}
"""Likelihoods without an intervention that the paper's text has of a figure without numbers."""
Row = dict[str, Any]
Cells = dict[tuple[str, int], Mapping[str, Any]]
"""Numbers by mixer and width."""


def picture(one: Compared) -> vl.Chart:
    """A study beside the paper, both arms: for each mixer a row for the paper, and one for each arm of ours."""
    name = one.table.study.name
    if name not in DRAWN:
        raise UserError(f"the paper's picture is of studies {' and '.join(DRAWN)}.")
    titles = {reading: title.removeprefix("restored ") for reading, title in one.comparison.titles.items()}
    arms = {SAME: _means(one.table.best().frame), NEW: _means(one.shuffled.best().frame)}
    theirs = _papers(name, one.table.frame)
    rows = list(_rows(name, arms, theirs, titles))
    mixers, widths = (ordered(axis, [row[axis] for row in rows]) for axis in ("mixer", "d_model"))
    lines = []
    for mixer in mixers:
        own = [row for row in rows if row["mixer"] == mixer]
        sources = [source for source in (PAPER, SAME, NEW) if any(row["source"] == source for row in own)]
        lines.append(vl.beside(_line(own, mixer, sources, widths, titles, mixer == mixers[0], mixer == mixers[-1]), 6))
    marked = sum(row["differs"] for row in rows)
    about = f"Outlined: more than {100 * USUAL.tolerance:g} points from the paper."
    if name not in PUBLISHED:
        about = (
            f"Of this figure, the paper printed two numbers; {HERE} is where it says that a mixer is restored, of two "
            f"places at one at least. Outlined: a share of {RESTORED} or more is restored elsewhere, or at neither."
        )
    notes = [f"Likelihood of the answer in %, by width; means over seeds. White: not run yet. {about}"]
    if len(arms[NEW]):
        notes[0] += f" {NEW.capitalize()}: documents in a new order in every epoch."
    title = f"The paper and our runs, figure {one.table.study.figure}"
    said = f"{title}. {len(rows)} cells, of which {marked} are marked as different. {' '.join(notes)}"
    pixels = len(titles) * (CELL[0] * len(widths) + 6) + 150
    return vl.finish(vl.below(lines, 5), title, notes, pixels, said)


def _means(frame: pd.DataFrame) -> Cells:
    """The means over seeds of each mixer and width."""
    done = frame[frame["status"] == "done"]
    numbers = done.select_dtypes("number").columns.difference(["d_model"])
    groups = done.groupby(["mixer", "d_model"])
    return {place: dict(group[numbers].mean()) | {"seeds": len(group)} for place, group in groups}


def _papers(study: str, frame: pd.DataFrame) -> Cells:
    """The paper's numbers, at least an empty row for each mixer and width of the grid."""
    cells: Cells = {(mixer, width): {} for mixer, width in zip(frame["mixer"], frame["d_model"], strict=True)}
    cells |= {(mixer, width): {"original": value} for (name, mixer, width), value in SAID.items() if name == study}
    if study in PUBLISHED:
        cells |= {(row["mixer"], row["d_model"]): row for row in published(study).to_dict("records")}
    return cells


def _rows(study: str, arms: Mapping[str, Cells], theirs: Cells, titles: Mapping[str, str]) -> Iterator[Row]:
    places = sorted({*theirs, *(place for arm in arms.values() for place in arm)})
    for (mixer, width), (name, title) in product(places, titles.items()):
        cell = {"mixer": mixer, "d_model": width, "quantity": title}
        expected = PLACES["the value" if mixer in INDUCTION else "key or query"]
        paper, marked = theirs.get((mixer, width), {}).get(name), study not in PUBLISHED
        label = f"{100 * paper:.0f}" if paper is not None else HERE * (marked and name in expected)
        yield {**cell, "source": PAPER, "value": paper, "label": label, "differs": False, "seeds": 1}
        for source, arm in arms.items():
            if (mixer, width) in arm:
                run = arm[mixer, width]
                value, restored = float(run[name]), marked and name.startswith("restored")
                apart = paper is not None and abs(value - paper) > USUAL.tolerance
                yield {
                    **cell, "source": source, "value": value, "label": f"{100 * value:.0f}", "seeds": run["seeds"],
                    "differs": apart or (restored and _elsewhere(run, name, expected)),
                }  # fmt: skip


def _elsewhere(run: Mapping[str, Any], name: str, expected: Sequence[str]) -> bool:
    """Whether a run is restored at a place where the paper's are not, or at none of those where they are."""
    gap = run["original"] - run["corrupted"]
    restored = [each for each in ("restored_key", "restored_value", "restored_query")
                if run[each] - run["corrupted"] >= RESTORED * gap]  # fmt: skip
    return name in restored if name not in expected else not {*expected} & {*restored}


def _line(
    rows: Sequence[Row], mixer: str, sources: Sequence[str], widths: Sequence[int], titles: dict[str, str], first: bool,
    last: bool,
) -> list[vl.Spec]:  # fmt: skip
    """The panels of a mixer, one a quantity."""
    panels = list[vl.Spec]()
    for quantity in titles.values():
        own, left = [row for row in rows if row["quantity"] == quantity], not panels
        title = {"title": NAMES.get(mixer, mixer), "titleAngle": 0, "titleAlign": "right", "titleFontWeight": "bold"}
        axis = {"labelOpacity": float(left), "titleOpacity": float(left)} | title
        at = {
            "x": vl.field("d_model:O", sort=widths, title=None, scale={"domain": widths},
                          axis={"labels": last, "labelAngle": 0}),
            "y": vl.field("source:N", sort=sources, scale={"domain": sources}, axis=axis),
            "tooltip": vl.tooltips(["mixer", "d_model", "quantity", "source", "value", "seeds"]),
        }  # fmt: skip
        full, empty = "isValid(datum.value)", "!isValid(datum.value)"
        layers = [
            vl.layer("rect", {"color": vl.field("value:Q", scale=vl.FILL, legend=None)}, where=full, stroke="white"),
            vl.layer("rect", {}, where=empty, fill="white", stroke=FAINT),
            vl.layer("rect", {}, where="datum.differs", fill=None, stroke=HIT, strokeWidth=2),
            vl.layer("text", {"text": vl.field("label:N"), "color": vl.ink("value")}, where=full, fontSize=9),
            vl.layer("text", {"text": vl.field("label:N")}, where=empty, fontSize=9, color=GREY),
        ]
        wide, high = CELL[0] * len(widths), CELL[1] * len(sources)
        head = {"title": vl.heading(quantity, wide)} if first else {}
        panels.append(vl.panel(layers, wide, high, own, encoding=at, **head))
    return panels
