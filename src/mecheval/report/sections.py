"""A section for each study: its question, its charts, what they can be filtered by, and its table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mecheval.figures import curves, draw
from mecheval.figures.heatmap import split_site
from mecheval.figures.matrix import QUANTITIES
from mecheval.figures.over_time import mechanism_over_time
from mecheval.figures.scatter import PAIRS
from mecheval.report.grids import Found
from mecheval.report.plain import columns, levels
from mecheval.report.specs import FIELDS, Spec, field_texts, page_spec
from mecheval.store.store import Snapshot
from mecheval.studies.axes import NAMES, ordered, say

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Section = tuple[dict[str, Any], list[Spec]]
"""Plain data, and charts."""
SEED, QUANTITY = "seed", "quantity"
SCORES = ("test_accuracy", "dev_accuracy", "test_likelihood")
AT_ONCE = 24
"""Runs whose mechanism is drawn along training."""


def study_data(found: Found, history: pd.DataFrame, scale: str) -> Section:
    """A study as plain data, and its charts; each chart listens to the signals of all chips."""
    study, every = found.study, found.table.frame
    axes = [axis for axis in found.table.varying() if axis != SEED]
    heard = [*axes, QUANTITY]
    about = f"{study.name}, figure {study.figure}, scale {scale}"
    specs = [page_spec(draw(found.best, f"Results ({about})"), heard)]
    own = history[history["run"].isin(set(every["run"]))]
    if len(own):
        specs.append(page_spec(curves(own, every, f"Learning curves ({about})"), heard))
    chips = [_chip(axis, every) for axis in axes]
    measured = quantities(specs[0])
    if len(measured) > 1:
        chips.append({"axis": QUANTITY, "name": "shown", "values": list(measured), "columns": measured})
    rates = {text for spec in specs for text in field_texts(spec, FIELDS["lr"])}
    data = {
        "name": study.name, "figure": study.figure, "question": study.question, "chips": chips,
        "rates": sorted(rates), "note": _note(found), "table": _table(found, axes),
    }  # fmt: skip
    return data, specs


def quantities(spec: Spec) -> dict[str, list[str]]:
    """The quantities that a chart has panels for, each with its columns in the table."""
    known = {text: [name] for name, text in QUANTITIES.items()} | {name: list(pair) for name, pair in PAIRS.items()}
    return {text: known[text] for text in field_texts(spec, QUANTITY) if text in known}


def _chip(axis: str, frame: pd.DataFrame) -> dict[str, Any]:
    values = [say(axis, value) for value in ordered(axis, frame[axis])]
    return {"axis": axis, "name": NAMES.get(axis, axis), "values": values}


def _note(found: Found) -> str:
    """What of the grid is there, and how it was chosen."""
    counts = Counter(found.table.frame["status"])
    done, seeds = counts.pop("done", 0), len(found.seeds)
    rest = ", ".join(f"{n:,} {status}" for status, n in counts.most_common())
    said = f"{done:,} of {len(found.table.frame):,} runs are done{f' ({rest})' if rest else ''}, "
    said += f"{seeds} seed{'s' * (seeds > 1)}. "
    if found.study.every_rate:
        return said + "Every learning rate is shown."
    return said + "Of the learning rates, the one with the highest accuracy on dev counts; shown is test."


def _table(found: Found, axes: list[str]) -> dict[str, Any]:
    """The chosen runs: axes as levels, so that they sort as charts do; then numbers and the verdict."""
    frame = found.best.frame
    usual = [axis for axis in (*axes, "lr") if axis in frame]
    shown = list(dict.fromkeys([*usual, *([SEED] if len(found.seeds) > 1 else [])])) or ["mixer"]
    codes = {axis: levels(axis, list(frame[axis]))["codes"] for axis in shown}
    frame = frame.iloc[sorted(range(len(frame)), key=lambda row: [codes[axis][row] for axis in shown])]
    names = list(frame.columns)
    after = names[names.index("status") + 1 : names.index("verdict")]
    readings = [name for name in after if name not in ("step", "seconds", "dev_likelihood", *SCORES)]
    scores = SCORES if readings == ["original", "corrupted"] else SCORES[:-1]  # the likelihood is among the readings
    return {
        "axes": {axis: levels(axis, list(frame[axis])) for axis in shown},
        "numbers": columns(frame, [*scores, *readings]),
        **columns(frame, ["run", "status", "verdict", "agreement"]),
    }


def training_data(frame: pd.DataFrame, store: Snapshot, history: pd.DataFrame) -> Section:
    """Mechanisms along training, of some of the runs that were intervened on then; `frame`: the most telling first."""
    shown = frame[frame["run"].isin(store.probed)].head(AT_ONCE)
    order = {run: place for place, run in enumerate(shown["run"])}
    effects = store.on_the_way(list(order)).sort_values("run", key=lambda runs: runs.map(order), kind="stable")
    effects = effects[effects["site"].map(lambda site: split_site(site)[0] is not None).astype(bool)]
    shown = shown[shown["run"].isin(set(effects["run"]))]
    if shown.empty:
        return {"runs": 0, "shown": 0, "chips": []}, []
    axes = [axis for axis in ("task", "mixer", "d_model") if shown[axis].nunique() > 1]
    own = history[history["run"].isin(order)]
    chart = mechanism_over_time(effects, own, "Restored shares along training", shown)
    chips = [_chip(axis, shown) for axis in axes]
    return {"runs": len(store.probed), "shown": len(shown), "chips": chips}, [page_spec(chart, axes)]
