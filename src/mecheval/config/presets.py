"""Presets of configs, and what a user sets on top of them: `lr`, `task.pairs`, or nested data from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any

from mecheval.config.run import RunConfig, names
from mecheval.errors import UnknownName, UserError
from mecheval.mixers import options_of
from mecheval.mixers.pattern import as_pattern, mixers_of, owners_of
from mecheval.tasks import TASKS

Nested = dict[str, Any]

LAPTOP: Nested = {
    "model": {"d_model": 128},
    "data": {"documents": None, "batch_size": 128, "steps": 1500},
    "optimiser": {"lr": 1e-3},
    "evaluate": {"every": 50, "stop_at": 0.99},
}
"""A run of a minute or two on one core. With this width and batch size, attention finds induction so quickly."""

PRESETS: dict[str, dict[str, Nested]] = {
    "paper": {
        "ar": {"data": {"epochs": 16}},
        "atr": {"data": {"epochs": 32}},
        "": {"data": {"epochs": 16}},
    },
    "laptop": {
        "ar": LAPTOP | {"task": {"pairs": 4, "keys": 32, "values": 32, "queries": 4}},
        "": LAPTOP,
    },
}
"""Preset -> task -> what it sets beyond the defaults; "" is any other task. The task's own preset of that name applies
first. The defaults of the config are the paper's."""


def run_config(
    task: str = "ar", mixer: str | Sequence[str] = "attention", preset: str = "paper", **options: Any
) -> RunConfig:
    """A config from a preset and options that override it, each by its name: `lr=3e-3, pairs=8, d_conv=0`.

    `mixer` may be a pattern of layers, `mamba+attention`, or a list. A name that stands in two parts (`documents`) is
    given with its part: `**{"evaluate.documents": 64}`.
    """
    return merge(preset, {"task": {"name": task}, "mixer": {"name": as_pattern(mixer)}}, options)


def merge(preset: str | None, given: Mapping[str, Any], options: Mapping[str, Any]) -> RunConfig:
    """A preset, overridden by nested data (as from a file), overridden by options by name."""
    given, options = ({**each, "mixer": as_pattern(each["mixer"])} if "mixer" in each else each
                      for each in (given, options))  # fmt: skip
    given = {part: {"name": value} if part in ("task", "mixer") and isinstance(value, str) else value
             for part, value in given.items()}  # fmt: skip
    chosen: Nested = {}
    for part in ("task", "mixer"):  # their names must be known before their options are looked up
        for name in (part, f"{part}.name"):
            if isinstance(options.get(name), str):
                chosen[part] = {"name": options[name]}
    overlaid = _over({"task": {"name": "ar"}, "mixer": {"name": "attention"}}, _over(given, chosen))
    task, mixer = (_name(overlaid[part]) for part in ("task", "mixer"))
    base = _preset("paper" if preset is None else preset, task)
    flags: Nested = {}
    for name, value in options.items():
        if name in ("task", "mixer", "task.name", "mixer.name"):
            continue
        *above, field = place(name, task, mixer)
        (flags.setdefault(above[0], {}) if above else flags)[field] = value
    return RunConfig.read(_over(_over(base, overlaid), flags))


def place(name: str, task: str, mixer: str) -> list[str]:
    """The path of an option: `lr` -> [optimiser, lr]; `seed` -> [seed]; `task.pairs` -> [task, pairs]."""
    part, dot, field = name.partition(".")
    kinds = mixers_of(mixer)
    if owners_of(name, kinds)[0]:
        return ["mixer", name]
    if dot:
        if part not in names() or part == "seed":
            mixers = kinds if len(kinds) > 1 else []
            raise UnknownName("part of a run config", part, {*names(), *mixers} - {"seed"})
        return [part, field]
    if name == "seed":
        return [name]
    fields = {
        **_fields(),
        "task": TASKS.get(task).Options.model_fields.keys(),
        "mixer": {option for kind in kinds if (declared := options_of(kind)) for option in declared.model_fields},
    }
    parts = [part for part, known in fields.items() if name in known]
    if len(parts) > 1:
        raise UserError(f"option {name!r} could be {' or '.join(f'{part}.{name}' for part in parts)}: say which.")
    if not parts:
        raise UnknownName("option", name, {"seed"}.union(*fields.values()))
    return [parts[0], name]


@cache
def _fields() -> dict[str, Set[str]]:
    """The options of every part but task and mixer, cached because grids need them thousands of times."""
    fields: dict[str, Set[str]] = {part: set(section.model_fields) for part, section in RunConfig.sections.items()}
    return {**fields, "data": {*fields["data"], "epochs"}}


def _preset(name: str, task: str) -> Nested:
    """What a preset sets for a task, including the task's own preset of that name."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    by_task = PRESETS[name]
    options = TASKS.get(task).presets.get(name, {})
    return _over({"task": dict(options)}, by_task.get(task, by_task[""]))


def _over(base: Mapping[str, Any], top: Mapping[str, Any]) -> Nested:
    """`base` overridden by `top`, part by part.

    Steps replace epochs and vice versa; another task or mixer starts from its own defaults.
    """
    result = dict(base)
    for part, value in top.items():
        below = result.get(part)
        if not (isinstance(below, Mapping) and isinstance(value, Mapping)):
            result[part] = value
            continue
        if "name" in value and "name" in below and value["name"] != below["name"]:
            below = {}
        if "steps" in value or "epochs" in value:
            below = {name: old for name, old in below.items() if name not in ("steps", "epochs")}
        result[part] = {**below, **value}
    return result


def _name(given: Any) -> str:
    return str(as_pattern(given.get("name", "")) if isinstance(given, Mapping) else given)
