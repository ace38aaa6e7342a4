"""The sections of the page about mechanisms, studies, training and the paper, as plain data and charts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures import curves, draw
from mecheval.figures.by_mechanism import mechanism_rows, shares_figure, ways_figure
from mecheval.figures.matrix import pairs
from mecheval.figures.mechanisms import TITLE
from mecheval.figures.mixers import mixers
from mecheval.figures.over_time import mechanism_over_time
from mecheval.figures.vegalite import Spec
from mecheval.paper import Judged, Setting, compare_studies, counted
from mecheval.paper.picture import DRAWN, picture
from mecheval.paper.standings import panels, standings
from mecheval.report.page import EXACT, FIELDS, columns, field_texts, levels, page_spec, tidy
from mecheval.store import Store
from mecheval.store.published import Published
from mecheval.store.store import Snapshot, snapshot_of
from mecheval.studies import PAPER, STUDIES, Study, StudyTable, study_points, study_table, with_seed
from mecheval.studies.axes import NAMES, ordered, say
from mecheval.studies.finding import finding
from mecheval.studies.peers import is_small
from mecheval.studies.placing import HEADS, Placing, legend
from mecheval.sweep import Point
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Section = tuple[dict[str, Any], list[Spec]]
"""Plain data, and charts."""
TASKS = 8
"""Largest number of tasks whose mechanisms are drawn, in the order of charts."""
MOST_SEEDS = 200
"""Largest number of seeds of a study that are shown, the smallest first."""
AT_ONCE = 24
"""Largest number of runs whose mechanism is drawn along training."""
QUANTITY = "quantity"
UNTESTED = "not tested"
SCORES = {"test_accuracy": "test accuracy", "dev_accuracy": "dev accuracy", "test_likelihood": "test likelihood"}
"""Columns of scores in the table of a study, with their titles."""


@dataclass(frozen=True)
class Found:
    """A study of which the store has runs: its grid with the seeds that are there, and a row for each point."""

    points: list[Point]
    table: StudyTable

    @cached_property
    def best(self) -> StudyTable:
        """The runs at the best learning rate."""
        return self.table.best()

    @staticmethod
    def there(table: StudyTable) -> StudyTable:
        """The table without runs that the store does not have."""
        return replace(table, frame=table.frame[table.frame["status"] != "missing"])

    @property
    def seeds(self) -> list[int]:
        """All seeds, sorted."""
        return sorted({point.config.seed for point in self.points})


def found_studies(store: Store, scale: str) -> list[Found]:
    """The studies of which the store has runs, in the order of the paper.

    Studies share runs. A study, and each seed of it, is shown only where it adds a run to those of the studies before
    it; otherwise the seven runs of a quickstart would stand for half the paper.
    """
    store = snapshot_of(store, "effects", "verdicts", "history")
    seeds: dict[str, set[int]] = defaultdict(set)
    for row in store.rows():
        config = row["config"]
        if config is not None and config.get("seed") is not None:
            seeds[_without_seed(config)].add(config["seed"])
    found: list[Found] = []
    shown: set[tuple[str, int]] = set()
    for study in STUDIES.values():
        grid = study_points(study, scale)
        own = {_without_seed(point.config.to_dict()) for point in grid}
        runs = {(config, seed) for config in own for seed in seeds.get(config, ())}
        there = sorted({seed for _, seed in runs - shown})[:MOST_SEEDS]
        shown |= runs
        points = [with_seed(point, seed) for seed in there for point in grid]
        if points:
            found.append(Found(points, study_table(study, points, store)))
    return found


def _without_seed(config: Mapping[str, Any]) -> str:
    """What runs that differ only in their seed have in common."""
    return json.dumps({name: value for name, value in config.items() if name != "seed"}, sort_keys=True)


def findings_data(store: Store, best: pd.DataFrame, placed: Sequence[Placing]) -> Section:
    """For each task one sentence, and where a mixer recalls two pictures, of the best run of each mixer (`best`).

    Before them come custom mixers at the paper's size: for each task and width the sentence, the table of all mixers
    with published results, and their pictures.
    """
    said: list[dict[str, Any]] = []
    specs: list[Spec] = []
    for place in placed:
        own = place.own()
        said.append({
            "task": place.title, "text": " ".join(map(place.sentence, own)), "heads": HEADS, "rows": place.cells(),
            "own": [int(each) for each in place.frame["own"]],
            "notes": [*(text for mixer in own for text in place.details(mixer)), *filter(None, [place.spread()])],
        })  # fmt: skip
        specs += _drawn(Published(store.path), place.task, set(place.runs), place.title) or []
    if placed:
        said[-1]["notes"].append(legend(placed))
    shown = {run for place in placed for run in place.runs}
    for task in ordered("task", best["task"].dropna())[:TASKS]:
        rows = best[best["task"] == task]
        if set(rows["run"]) <= shown:
            continue
        charts = _drawn(store, task, set(rows["run"]), say("task", task))
        if charts is None:
            continue
        small = any(is_small(task, config) for config in rows["config"])
        text = finding(dict(zip(rows["mixer"], rows["label"], strict=True)), small=small)
        said.append({"task": say("task", task), "text": text})
        specs += charts
    return {"findings": said}, specs


def mixers_charts(store: Store, scale: str) -> list[Spec]:
    """The picture of all mixers on pairs and on trees; none where fewer than two have runs of both."""
    frame = standings(store, scale)
    both = [set(own["mixer"]) for _, own in frame[frame["option"] == ""].groupby("task")]
    if len(both) < 2 or len(both[0] & both[1]) < 2:
        return []
    return [page_spec(mixers(panels(frame, scale), "Likelihood on pairs and on trees, and the mechanisms"))]


def _drawn(store: Store, task: str, among: set[str], name: str) -> list[Spec] | None:
    """The two pictures of the mechanisms of these runs; an empty list if no run has one, None if none has a verdict."""
    try:
        rows = mechanism_rows(store, task, among)
    except UserError:  # or a width or a depth is missing
        return None
    if (rows["verdict"] == "not_learnt").all():
        return []
    drawn = ways_figure(rows, f"{TITLE} ({name})"), shares_figure(rows, f"What each position restores ({name})")
    return [page_spec(chart) for chart in drawn]


def study_data(found: Found, history: pd.DataFrame, scale: str) -> Section:
    """A study as plain data, and its charts, which listen to the signals of all chips."""
    table, best, study = found.there(found.table), found.there(found.best), found.table.study
    axes = [axis for axis in table.varying() if axis != "seed"]
    heard = [*axes, QUANTITY]
    about = f"{study.name}, {figure_of(study)}scale {scale}"
    specs = [page_spec(draw(best, f"Results ({about})"), heard)]
    own = history[history["run"].isin(set(table.frame["run"]))]
    if len(own):
        specs.append(page_spec(curves(table, own, f"Learning curves ({about})"), heard))
    chips = [_chip(axis, table.axis(axis)) for axis in axes]
    measured = quantities(table, specs[0])
    if len(measured) > 1:
        chips.append({"axis": QUANTITY, "name": "shown", "values": list(measured), "columns": measured})
    rates = {text for spec in specs for text in field_texts(spec, FIELDS["lr"])}
    data = {
        "name": study.name, "figure": figure_of(study).strip(", "), "question": study.question, "chips": chips,
        "rates": sorted(rates), "note": _note(found), "table": _table(found, axes),
    }  # fmt: skip
    return data, specs


def figure_of(study: Study) -> str:
    """The study's place in the paper, `figure 3, `; empty where it has none."""
    return "" if study.figure == MISSING else f"figure {study.figure}, "


def quantities(table: StudyTable, spec: Spec) -> dict[str, list[str]]:
    """The quantities for which a chart has panels, each with its columns in the table."""
    known = {title: [name] for name, title in table.titles.items()}
    known |= {title: list(pair) for title, pair in pairs(table).items()}
    return {text: known[text] for text in field_texts(spec, QUANTITY) if text in known}


def _chip(axis: str, values: Sequence[Any]) -> dict[str, Any]:
    return {"axis": axis, "name": NAMES.get(axis, axis), "values": [say(axis, value) for value in values]}


def _note(found: Found) -> str:
    """How much of the grid is there, and how the runs were chosen."""
    counts = Counter(found.table.frame["status"])
    done, seeds = counts.pop("done", 0), len(found.seeds)
    counts.pop("missing", None)
    rest = ", ".join(f"{n:,} {status}" for status, n in counts.most_common())
    said = f"{done:,} of {len(found.table.frame):,} runs are done{f' ({rest})' if rest else ''}, "
    said += f"{seeds} seed{'s' * (seeds > 1)}. "
    chosen = "Best run per setting (chosen on dev, scored on test)."
    return said + ("Every learning rate is shown." if found.table.study.every_rate else chosen)


def _table(found: Found, axes: list[str]) -> dict[str, Any]:
    """The chosen runs: axes as levels, so that they sort as charts do, then numbers with their titles, and verdicts."""
    frame, table = found.there(found.best).frame, found.table
    shown = list(dict.fromkeys([*axes, "lr", *(["seed"] if len(found.seeds) > 1 else [])]))
    codes = {axis: levels(axis, list(frame[axis]))["codes"] for axis in shown}
    frame = frame.iloc[sorted(range(len(frame)), key=lambda row: [codes[axis][row] for axis in shown])]
    scores = list(SCORES)[: 1 if table.readings else 3]  # readings are likelihoods already
    titles = {**{name: SCORES[name] for name in scores}, **table.titles}
    return {
        "axes": {axis: levels(axis, list(frame[axis])) for axis in shown}, "titles": titles,
        "numbers": columns(frame, titles), **columns(frame, ["run", "status", "verdict", "agreement"]),
    }  # fmt: skip


def training_data(frame: pd.DataFrame, store: Snapshot, history: pd.DataFrame) -> Section:
    """Mechanisms along training, of the first runs of `frame` that were intervened on then, and more than once."""
    shown = frame[frame["run"].isin(store.probed)].head(AT_ONCE)
    order = {run: place for place, run in enumerate(shown["run"])}
    effects = store.on_the_way(list(order)).sort_values("run", key=lambda runs: runs.map(order), kind="stable")
    effects = effects[effects["block"].notna()]
    measured = effects[effects["share"].notna()].groupby("run")["step"].nunique()
    shown = shown[shown["run"].isin(set(measured.index[measured > 1]))]  # a single point shows nothing that forms
    effects = effects[effects["run"].isin(set(shown["run"]))]
    if shown.empty:
        return {"runs": 0, "shown": 0, "chips": []}, []
    axes = [axis for axis in ("task", "mixer", "d_model") if shown[axis].nunique() > 1]
    own = history[history["run"].isin(order)]
    chart = mechanism_over_time(effects, own, "Restored shares along training", shown)
    chips = [_chip(axis, ordered(axis, shown[axis])) for axis in axes]
    return {"runs": len(store.probed), "shown": len(shown), "chips": chips}, [page_spec(chart, axes)]


def comparison_data(studies: Sequence[Found], store: Store, scale: str) -> Section:
    """For each study with numbers of ours its settings, cells and patterns beside the paper's; and all claims.

    Claims are judged as `mecheval compare all` does, with all runs of the store, and those that it cannot test counted.
    """
    if not any(found.table.study.name in PAPER for found in studies):
        return {"studies": [], "claims": [], "counted": ""}, []
    shown, claims, specs = [], list[Judged](), list[Spec]()
    for one in compare_studies(PAPER, store, scale):
        study, claims = one.table.study, claims + one.claims
        cells, patterns = one.comparison.cells, one.comparison.patterns
        cells, patterns = cells[cells["ours"].notna()], patterns[patterns["ours"].astype(bool)]
        if cells.empty and patterns.empty and all(claim.outcome == UNTESTED for claim in one.claims):
            continue
        shown.append({
            "study": study.name, "figure": study.figure, "question": study.question,
            "settings": [
                {"task": task.upper(), "ours": ours.describe(), "paper": Setting.paper(task).describe()}
                for task, ours in one.settings.items()
            ],
            "agreement": one.comparison.agreement if len(cells) else "",
            "arms": one.arms.said if one.arms and len(one.shuffled.frame) else "",
            "cells": columns(cells, cells.columns), "patterns": columns(patterns, patterns.columns),
        })  # fmt: skip
        if study.name in DRAWN and scale == "paper":
            specs.append(page_spec(picture(one)))
    tested = [{**asdict(claim), "rests": claim.rests} for claim in claims if claim.outcome != UNTESTED]
    return {"studies": shown, "claims": tidy(tested, EXACT), "counted": counted(claims)}, specs
