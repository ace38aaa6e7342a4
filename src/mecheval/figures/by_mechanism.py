"""The runs of a store by mechanism: names that show how runs differ, rows for drawings, and two of the drawings."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures.canvas import QUIET, Canvas, breadth, cut
from mecheval.figures.heatmap import label
from mecheval.figures.mechanisms import (
    AFTER_VALUE,
    BAND,
    COLUMNS,
    LINE,
    LONGEST,
    SHARES,
    VERDICTS,
    describe,
    draw_legend,
    draw_mechanism,
    grouped,
    short,
    words,
)
from mecheval.figures.vegalite import RAMP, WHITE_FROM, Chart, wrapped
from mecheval.store.bounds import name_of
from mecheval.store.store import snapshot_of
from mecheval.studies import best_rows
from mecheval.studies.axes import is_custom, ordered
from mecheval.tasks import TASKS
from mecheval.types import CARRIERS, FRAMED, LAST, Meaning

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.store import Store


Config = Mapping[str, Any]
SETTING, TRAINING = ("task", "mixer", "model", "seed"), ("optimiser", "schedule", "data")
"""Parts of a config that are equal among the runs from which the best learning rate is chosen, but for that rate."""
SPLIT = "test"
DECIDING = "block is not null and (part = 'input' or kind = 'short_conv')"
"""SQL condition that holds for the sites whose shares are needed here."""
WAY = ["verdict", "layer", "stored_by", "stored_at", "found_by", "n_layers"]
"""Columns in which mixers with the same mechanism agree."""
HEADS = (*CARRIERS, "value", "next_key")
"""Positions of the columns `SHARES`."""
CELL, HEIGHT, BLOCK = (56.0, 20.0), 23.0, 8.0
"""Width and height of a cell, distance between mixers, and space before a group of them, in pixels."""
STEP, LEFT, GAP = 42.0, 40.0, 20.0
"""Pixels between two positions of a drawing, to its left, and between two drawings."""
ACROSS, MOST = 2, 40
"""Number of drawings side by side, and largest number of drawings."""


def mechanism_rows(store: Store, task: str, among: Collection[str] | None = None) -> pd.DataFrame:
    """A row for each setting of a task: of its runs, the one with the highest dev accuracy (ties: dev likelihood).

    `among` are the ids of the runs that count, by default all. Runs without a verdict on the last state and test
    documents never count. A mixer whose runs differ in its options or position embeddings is named with these.
    """
    store = snapshot_of(store, "runs", "effects", "verdicts")
    verdicts = store.query(f"select * from verdicts where state = '{LAST}' and split = '{SPLIT}'")
    frame = store.runs().merge(verdicts.drop(columns=["state", "split", "step"]), on="run")
    frame = frame if among is None else frame[frame["run"].isin(among)]
    there = sorted(set(frame["task"].dropna()))
    frame = frame[frame["task"] == task].dropna(subset=["mixer", "n_layers", "d_model"]).reset_index(drop=True)
    if frame.empty:
        others = f"there are some of {', '.join(there)}" if there else "`mecheval intervene RUN` makes one"
        raise UserError(f"no run of task {task!r} in {store.path} has a verdict on {SPLIT}; {others}.")
    whole = {row["run"]: row["config"] or {} for row in store.rows()}
    configs = [whole[run] for run in frame["run"]]
    frame["setting"] = [setting_of(run, config) for run, config in zip(frame["run"], configs, strict=True)]
    frame["mixer"] = mixer_names(list(frame["mixer"]), configs, all_same=True)
    chosen = best_rows(frame, ["setting"]).rename(columns={"label": "verdict"}).reset_index(drop=True)
    meaning = meaning_of(task)
    chosen["stored_at"] = [each if each is None or each != each else meaning.like(each) for each in chosen["stored_at"]]
    return chosen.join(_shares(store, chosen, meaning), on="run").loc[:, ["run", *COLUMNS]]


def meaning_of(task: str) -> Meaning:
    """What the roles of a task mean; those of framed documents for a task that is not known here."""
    try:
        return TASKS.get(task).meaning
    except UserError:
        return FRAMED


def _shares(store: Store, chosen: pd.DataFrame, meaning: Meaning) -> pd.DataFrame:
    """The columns `SHARES` of these runs, by run, for what their roles mean; NaN where a share was not measured."""
    import pandas as pd

    effects = store.query(
        "select run, block, part, kind, role, share from effects "
        f"where state = '{LAST}' and split = '{SPLIT}' and {DECIDING} and direction = 'restore' and corruption = 'key'"
    )
    cells: dict[str, dict[tuple[int, str, str], float]] = {run: {} for run in chosen["run"]}
    convolutions = set(effects.loc[effects["kind"] == "short_conv", "part"])
    for run, block, part, _, role, share in effects[effects["run"].isin(set(chosen["run"]))].itertuples(index=False):
        alike = meaning.like(role)
        place = int(block), part, "next_key" if alike in AFTER_VALUE else alike
        cells[run][place] = max(float(share), cells[run].get(place, -math.inf))
    found = {}
    for run, layer in zip(chosen["run"], chosen["layer"], strict=True):
        own, known = cells[run], None if pd.isna(layer) else int(layer)  # the layer that retrieves
        shares = [own.get((known or 1, "input", role), math.nan) for role in CARRIERS]
        inside = sorted({part for block, part, _ in own if block == known and part in convolutions})
        pairs = [[own.get((known or 0, part, role), math.nan) for role in ("value", "next_key")] for part in inside]
        most = max((pair for pair in pairs if not math.isnan(sum(pair))), key=sum, default=[math.nan, math.nan])
        found[run] = [*shares, *most]
    return pd.DataFrame.from_dict(found, orient="index", columns=list(SHARES))


def setting_of(run: str, config: Config) -> str:
    """A key that runs share if they differ only in their learning rate; a run without a config has one of its own."""
    return json.dumps([*(config.get(part) for part in SETTING), trained(config)], sort_keys=True) if config else run


def task_names(names: Sequence[str | None], configs: Sequence[Config]) -> list[str]:
    """Each task with the options in which a run differs from most runs of it: atr · query sibling."""
    return _named(names, [()] * len(configs), [options(config, "task") for config in configs])


def mixer_names(names: Sequence[str | None], configs: Sequence[Config], *, all_same: bool = False) -> list[str]:
    """Each mixer with the options in which a run differs from most runs of it on that task: mamba · d_conv 2.

    Position embeddings, Canon convolutions and the lack of MLPs count as options, because they change what a mixer can
    do, and so does how it was trained, but for the learning rate. With `all_same`, an option is left out only where all
    these runs have the same value.
    """
    around = [options(each, "model") for each in configs]
    own = [
        options(each, "mixer")
        | {"positions": model.get("positions"), "canon": model.get("canon") or "none", "mlp": model.get("mlp", True)}
        | trained(each)
        for each, model in zip(configs, around, strict=True)
    ]
    return _named(names, [(options(config, "task").get("name"),) for config in configs], own, all_same)


def trained(config: Config) -> dict[str, Any]:
    """How a run was trained, without its learning rate."""
    return {name: value for part in TRAINING for name, value in options(config, part).items() if name != "lr"}


def options(config: Config, part: str) -> dict[str, Any]:
    """A part of a config; empty where a damaged config has none."""
    found = config.get(part)
    return dict(found) if isinstance(found, Mapping) else {}


def usual_values(
    kinds: Sequence[tuple[Hashable, ...]], every: Sequence[Config], *, all_same: bool = False
) -> dict[tuple[Hashable, ...], dict[str, Any]]:
    """For each kind of run, the commonest value of every option, the first of those that tie.

    With `all_same`, only options that all runs of the kind have, with the same value.
    """
    groups: dict[tuple[Hashable, ...], list[Config]] = defaultdict(list)
    for kind, each in zip(kinds, every, strict=True):
        groups[kind].append(each)
    usual: dict[tuple[Hashable, ...], dict[str, Any]] = {}
    for kind, group in groups.items():
        usual[kind] = {}
        for option in dict.fromkeys(option for each in group for option in each):
            values = [each[option] for each in group if option in each]
            counts = Counter(map(_key, values)).most_common()
            if not all_same or counts[0][1] == len(group):
                usual[kind][option] = next(value for value in values if _key(value) == counts[0][0])
    return usual


def apart(own: Config, usual: Config) -> dict[str, Any]:
    """The options whose values are not the usual ones."""
    return {option: value for option, value in own.items() if option not in usual or _key(value) != _key(usual[option])}


def _named(
    names: Sequence[str | None], kinds: Sequence[tuple[Hashable, ...]], own: Sequence[Config], all_same: bool = False
) -> list[str]:
    kinds = [(name, *kind) for name, kind in zip(names, kinds, strict=True)]
    usual = usual_values(kinds, own, all_same=all_same)
    named = []
    for name, kind, each in zip(names, kinds, own, strict=True):
        others = [f"{option} {_said(value)}" for option, value in apart(each, usual[kind]).items() if option != "name"]
        named.append(name_of(" · ".join([name or "?", *others])) if others else name or "?")
    return named


def _key(value: Any) -> Hashable:
    """What distinguishes values: 1 is neither 1.0 nor true."""
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else (type(value), value)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def ways_figure(rows: pd.DataFrame, title: str) -> Chart:
    """One drawing for each mechanism below the mixers that have it, two in a row; `rows` as from `mechanism_rows`.

    Mixers whose short convolutions join key and value at different positions have drawings of their own. Those that
    did not learn have no drawing.
    """
    later = (rows["verdict"] == "conv_association") & (rows["conv_next_key"] > rows["conv_value"])
    alike = rows.assign(mixer=rows["mixer"].astype(str), later=later).groupby([*WAY, "later"], dropna=False)
    together = alike["mixer"].transform(lambda names: "\n".join(ordered("mixer", names)))
    groups = grouped(rows.assign(mixer=together))
    drawn, plain = (
        [group for group in groups if group.way()[0]][:MOST],
        [group for group in groups if not group.way()[0]],
    )
    wide = LEFT + STEP * len(CARRIERS)
    canvas, top, colours = Canvas(ACROSS * wide + (ACROSS - 1) * GAP, 0), 0.0, set[str]()
    for first in range(0, len(drawn), ACROSS):
        line = drawn[first : first + ACROSS]
        named = [wrapped(", ".join(group.names), wide, 6) for group in line]
        floor = top + LINE * (2.5 + max(map(len, named))) + BAND * max(group.n_layers for group in line)
        for i, (group, names) in enumerate(zip(line, named, strict=True)):
            left = i * (wide + GAP)
            _heading(canvas, left, top, short(group.findings[0][0]), names)
            place = {role: left + LEFT + STEP * (j + 0.5) for j, role in enumerate(CARRIERS)}
            for role, x in place.items():
                y = floor - BAND * group.n_layers - LINE
                canvas.text(x, y, role, align="center", size=10, colour=QUIET, what="position")
            colours |= draw_mechanism(canvas, group, place, floor)
        top = floor + GAP
    for group in plain[:MOST]:
        names = wrapped(", ".join(group.names), canvas.width, 6)
        _heading(canvas, 0, top, words(group.findings[0][0].label), names)
        top += LINE * (1 + len(names)) + BLOCK
    canvas.height = draw_legend(canvas, colours, 0, top + LINE) if colours else top
    notes = ["Arrows: the way from key to query. Number: the share restored there."]
    return canvas.chart(title, notes if colours else [], describe(groups, title))


def _heading(canvas: Canvas, x: float, y: float, verdict: str, names: list[str]) -> None:
    canvas.text(x, y + LINE / 2, verdict, bold=True, size=12, what="verdict")
    for i, text in enumerate(names):
        canvas.text(x, y + (i + 1.5) * LINE, text, size=12, what="mixer")


def shares_figure(rows: pd.DataFrame, title: str) -> Chart:
    """What each position restores, a line for each mixer, grouped by verdict."""
    known = [verdict for verdict in (*VERDICTS, *sorted(set(rows["verdict"]))) if (rows["verdict"] == verdict).any()]
    left = max(breadth(cut(name, LONGEST), 14 if is_custom(name) else 13) for name in map(str, rows["mixer"])) + 20
    shown = [name for name in SHARES if name in SHARES[: len(CARRIERS)] or rows[name].notna().any()]
    place = {name: left + (i + 0.5) * CELL[0] + 20 * (i >= len(CARRIERS)) for i, name in enumerate(shown)}
    canvas = Canvas(max(place.values()) + CELL[0] / 2 + 8, 0)
    canvas.text(left, 5, "before the layer that retrieves, or layer 1", colour=QUIET, size=10, what="head")
    if len(shown) > len(CARRIERS):
        canvas.text(place[SHARES[len(CARRIERS)]] - CELL[0] / 2, 5, "in its convolution", colour=QUIET, size=10,
                    what="head")  # fmt: skip
    for name, head in zip(SHARES, HEADS, strict=True):
        if name in place:
            canvas.text(place[name], 20, head, align="center", colour=QUIET, what="position")
    y, said = 38.0, []
    for verdict in dict.fromkeys(known):
        own = rows[rows["verdict"] == verdict].set_index("mixer")
        canvas.text(0, y, words(verdict), bold=True, what="verdict")
        if verdict == "not_learnt":  # the shares would be meaningless
            for text in wrapped(", ".join(cut(name, LONGEST) for name in ordered("mixer", own.index)), canvas.width, 6):
                y += HEIGHT
                canvas.text(0, y, text, size=12, what="mixer")
            own = own.iloc[:0]
        for mixer in ordered("mixer", own.index):
            y += HEIGHT
            canvas.text(0, y, cut(mixer, LONGEST), size=12, bold=is_custom(mixer), what="mixer")
            row = own.loc[[mixer]].iloc[0]
            for name in shown:
                _cell(canvas, place[name], y, float(row[name]))
            shares = {role: float(row[f"share_{role}"]) for role in CARRIERS}
            top = max(shares, key=lambda role: (shares[role] == shares[role], shares[role]))  # NaN is the least
            said.append(f"{mixer} ({words(verdict)}): {label(shares[top])} at {top}")
        y += HEIGHT + BLOCK
    canvas.height = y - BLOCK
    notes = ["Share of the lost likelihood that one clean activation brings back."]
    return canvas.chart(title, notes, f"{title}. Most is restored: {'; '.join(said)}.")


def _cell(canvas: Canvas, x: float, y: float, share: Any) -> None:
    if share != share:
        canvas.text(x, y, "–", align="center", colour=QUIET, what="share")
        return
    step = round(min(1.0, max(0.0, share)) * (len(RAMP) - 1))
    canvas.box(x, y, CELL[0] - 3, CELL[1], RAMP[step], what="cell")
    canvas.text(x, y, label(share), align="center", colour="white" if step >= WHITE_FROM else "black", what="share")
