"""The runs of a store as columns: what each is, how well it answers, its verdict, its config and its map."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mecheval.figures.by_mechanism import apart, meaning_of, mixer_names, setting_of, task_names, usual_values
from mecheval.figures.heatmap import AFTER, BEFORE, in_depth
from mecheval.report.page import columns, tidy
from mecheval.sites import Site, sites_in
from mecheval.store import Store
from mecheval.store.schema import AS_IN_THE_PAPER
from mecheval.studies import best_rows, restoring
from mecheval.studies.axes import is_custom, ordered, plain
from mecheval.types import LAST, in_order

if TYPE_CHECKING:  # slow to import
    import pandas as pd

SHOWN = (
    "run", "status", "task", "mixer", "d_model", "n_layers", "lr", "seed", "steps", "step", "parameters",
    "test_accuracy", "test_likelihood", "dev_accuracy", "dev_likelihood", "seconds", "message",
    "task_name", "mixer_name",
)  # fmt: skip
VERDICT = ("label", "layer", "agreement", "chance", "summary", "evidence")
PARTS = (*BEFORE, *AFTER)
"""Parts of a block that maps show, beside the outputs of short convolutions."""
MAPPED = (
    "run", "split", "site", "block", "part", "kind", "role", "share", "restored", "original", "corrupted", "n",
)  # fmt: skip
"""Columns of table effects from which maps are made."""
SPLIT = "test"


def run_frame(store: Store) -> pd.DataFrame:
    """Table runs with the verdict on the last state and test documents; config as plain data.

    The names of tasks and mixers say in what a run differs from most others of that name.
    """
    frame = store.runs()
    rows = {row["run"]: row["config"] for row in store.rows()}
    configs = [rows[run] if isinstance(rows[run], dict) else {} for run in frame["run"]]
    frame["config"] = configs
    frame["task_name"] = task_names([plain(name) for name in frame["task"]], configs)
    frame["mixer_name"] = mixer_names([plain(name) for name in frame["mixer"]], configs)
    verdicts = store.query(
        f"select run, {', '.join(VERDICT)} from verdicts where state = '{LAST}' and split = '{SPLIT}'"
    )
    frame = frame.merge(verdicts, on="run", how="left")
    of_the_task = frame.groupby("task_name", dropna=False)["chance"].transform("median")  # older verdicts lack it
    return frame.assign(chance=frame["chance"].fillna(of_the_task))


def best_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """The run of each setting, in which all is alike but the learning rate: the highest dev accuracy, then likelihood.

    A setting whose runs all failed or diverged is there, too, with its first.
    """
    settings = [setting_of(run, config) for run, config in zip(frame["run"], frame["config"], strict=True)]
    return arranged(best_rows(frame.assign(setting=settings), ["setting"]))


def arranged(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs in the order of the page: by task, custom mixers first, the usual before the varied, mixer, depth, width."""
    names = {axis: frame[axis].fillna("?") for axis in ("task", "mixer")}
    for axis, values in names.items():
        places = {value: place for place, value in enumerate(ordered(axis, values))}
        frame = frame.assign(**{f"{axis}_place": values.map(places)})
    varied = (frame["mixer_name"] != names["mixer"]).astype(int) + ~frame["n_layers"].isin(frame["n_layers"].mode()[:1])
    built_in = ~frame["mixer"].map(is_custom)
    frame = frame.assign(other_task=frame["task_name"] != names["task"], varied=varied, built_in=built_in)
    order = ["task_place", "built_in", "other_task", "varied", "mixer_place", "n_layers", "d_model", "seed"]
    return frame.sort_values(order, kind="stable")


def speaking(frame: pd.DataFrame) -> pd.DataFrame:
    """The best run of each task and mixer that has a verdict, which the top of the page describes.

    It is one with the usual options, if there is any.
    """
    judged = frame[frame["label"].notna() & frame["mixer"].notna()]
    usual = judged["mixer_name"] == judged["mixer"]
    some = usual.groupby([judged["task"], judged["mixer"]], dropna=False).transform("any")
    return best_rows(judged[usual | ~some], ["task", "mixer"])


def overview(frame: pd.DataFrame) -> dict[str, Any]:
    """How many runs, tasks, mixers, seeds and hours there are, and when a run last changed, as far as that is known."""
    latest = frame["updated"].max()
    return {
        "runs": len(frame), "statuses": dict(Counter(frame["status"]).most_common()),
        "tasks": [str(each) for each in ordered("task", frame["task"].dropna())],
        "mixers": [str(each) for each in ordered("mixer", frame["mixer"].dropna())],
        "seeds": int(frame["seed"].nunique()), "hours": tidy(frame["seconds"].sum() / 3600),
        "updated": "an unknown time" if latest != latest else f"{latest:%Y-%m-%d %H:%M} UTC",
    }  # fmt: skip


def runs_data(frame: pd.DataFrame, store: Store) -> dict[str, Any]:
    """Columns of all runs, with their configs, maps, and the role that restores most at the input of layer 1."""
    layouts, maps = maps_data(mean_effects(store))
    learnt = frame["run"][frame["label"] != "not_learnt"]
    top = restoring(store, list(learnt))
    restored = {run: [role, tidy(share)] for run, role, share in zip(top.index, top["role"], top["share"], strict=True)}
    return {
        **columns(frame, (*SHOWN, *VERDICT)), "config": packed(list(frame["config"])), "layouts": layouts,
        "done": {str(task): meaning_of(str(task)).done("key") for task in frame["task"].dropna().unique()},
        "own": [int(is_custom(mixer)) for mixer in frame["mixer"]],
        "map": [maps.get(run) for run in frame["run"]], "restored": [restored.get(run) for run in frame["run"]],
    }  # fmt: skip


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without its nesting, model.d_model -> 64; values deeper than two levels stay as they are."""
    paths: dict[str, Any] = {}
    for part, value in config.items():
        inside = isinstance(value, Mapping)
        paths |= {f"{part}.{name}": each for name, each in value.items()} if inside else {part: value}
    return paths


def packed(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`bases`: a flat config for each kind of run; `runs`: for each run the number of its base, and its differences.

    Runs are of a kind if they have the same task, mixer and paths. Whole configs would be most of the page.
    """
    flats = [flat(config) for config in configs]
    kinds = [(repr(each.get("task.name")), repr(each.get("mixer.name")), *each) for each in flats]
    usual = usual_values(kinds, flats)
    numbers = {kind: number for number, kind in enumerate(usual)}
    runs = [[numbers[kind], apart(each, usual[kind])] for kind, each in zip(kinds, flats, strict=True)]
    return {"bases": list(usual.values()), "runs": runs}


def is_mapped(site: Site) -> bool:
    """Whether maps of the page have a row for this site: ends of blocks and of their parts, convolutions, heads."""
    return site.part in PARTS or site.kind in ("short_conv", "head")


def mean_effects(store: Store) -> pd.DataFrame:
    """Effects of the last state at the sites that maps show: on test, or else on the split that there is."""
    effects = store.query(f"select {', '.join(MAPPED)} from effects where state = '{LAST}' and {AS_IN_THE_PAPER}")
    effects = effects[effects["site"].isin({site for site in sites_in(effects) if is_mapped(site)})]
    splits = dict.fromkeys((SPLIT, "dev", "train", *effects["split"].unique()))
    rank = effects["split"].map({split: place for place, split in enumerate(splits)})
    return effects[rank == rank.groupby(effects["run"]).transform("min")]


def maps_data(effects: pd.DataFrame) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """Layouts (sites and roles), and the map of each run; runs of one kind of model share a layout.

    A map is [number of its layout, whether it shows shares, original, corrupted, a number for each site and role].
    """
    every_site = in_depth(sites_in(effects))
    depth = {str(site): place for place, site in enumerate(every_site)}
    column = {role: place for place, role in enumerate(in_order(effects["role"].unique()))}
    layouts: dict[tuple[tuple[Site, ...], tuple[str, ...]], int] = {}
    maps: dict[str, list[Any]] = {}
    names = ("site", "role", "share", "restored", "original", "corrupted", "n")
    every = {name: effects[name].to_numpy() for name in names}
    for run, rows in effects.groupby("run", sort=False).indices.items():
        own = {name: values[rows] for name, values in every.items()}
        sites = tuple(every_site[place] for place in sorted({depth[site] for site in own["site"]}))
        roles = tuple(sorted(set(own["role"]), key=column.__getitem__))
        shares = not np.isnan(own["share"]).all()  # or else nothing is learnt
        cells = zip(own["site"], own["role"], strict=True)
        numbers = own["share" if shares else "restored"].astype(float)
        value = dict(zip(cells, shown_numbers(numbers), strict=True))
        whole = own["n"].argmax()  # not every document has every role
        maps[run] = [
            layouts.setdefault((sites, roles), len(layouts)), int(shares),
            *(tidy(float(own[name][whole])) for name in ("original", "corrupted")),
            [value.get((site, role)) for site in sites for role in roles],
        ]  # fmt: skip
    return [layout_of(*layout) for layout in layouts], maps


def layout_of(sites: Iterable[Site], roles: Iterable[str]) -> dict[str, Any]:
    """The rows (block, part) and columns of a map."""
    return {"sites": [[site.block, site.part] for site in sites], "roles": list(dict.fromkeys(roles))}


def shown_numbers(numbers: NDArray[np.float64]) -> list[float | int | None]:
    """The numbers of a map with the two decimals that it shows; None for those that are not finite."""
    short = np.round(numbers, 2).tolist()
    return [None if not math.isfinite(each) else int(each) if each == int(each) else each for each in short]
