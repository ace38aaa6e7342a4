"""What is asked of an own mixer: options, and the runs that they make, with those it is compared with."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from mecheval.config.presets import place
from mecheval.errors import UnknownName, UserError
from mecheval.studies import SCALES, Study, get_study, with_seed
from mecheval.studies.scales import BASE, QUICK, RATES, one_width, preferred, runs
from mecheval.sweep import Job, Point

FIXED = {
    "d_model": "the scale says how wide models are",
    "layer": "it is the number of the block",
    "lr": "learning rates are given apart (--lr, lr=)",
    "seed": "seeds are given apart (--seeds, seeds=)",
    "name": "a config calls the mixer's name so",
    "mixer": "the mixer is what is evaluated",
    "task": "the task is given apart (--task, task=)",
    "preset": "the scale is given apart (--scale, scale=)",
}
"""Names that cannot be options, and why."""


@dataclass(frozen=True)
class Plan:
    """The runs of an evaluation; nothing is trained yet."""

    name: str  # of the own mixer
    study: Study  # whose readings are taken
    scale: str
    own: tuple[Point, ...]
    others: tuple[Point, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.name} on {self.study.name} ({self.scale})"

    def jobs(self, points: Sequence[Point]) -> list[Job]:
        """What an engine works on."""
        return [Job(point.config, self.study.splits) for point in points]


def make_plan(
    cls: type[nn.Module], name: str, task: str, scale: str, options: Mapping[str, Any], seeds: int,
    rates: Sequence[float], compare: bool,
) -> Plan:  # fmt: skip
    """The runs of a registered mixer at a scale, and of the built-in ones with the same settings."""
    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES)
    tasks = [task for task, of_scale in BASE if of_scale == scale]
    if task not in tasks:
        raise UnknownName(f"task at scale {scale}", task, tasks)
    if seeds < 1:
        raise UserError(f"seeds: must be at least 1 (got {seeds}).")
    inside, settings = split_options(cls, name, task, options)
    given = {**{f"mixer.{option}": value for option, value in inside.items()}, **settings}
    rates = tuple(rates) or RATES[task, scale]
    base = QUICK if (task, scale) == ("ar", "laptop") else {}  # so that the quickstart's runs are the comparison
    own = runs(task, scale, {**base, **given}, mixer=(name,), **one_width(task, scale), lr=rates)
    others = preferred(task, scale, {**base, **settings}) if compare else []
    return Plan(name, get_study(task), scale, _seeded(own, seeds), _seeded(others, seeds))


def split_options(
    cls: type[nn.Module], name: str, task: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the mixer, and settings of the run (`steps`, `task.pairs`), which the others share.

    A name that both have is the mixer's; with its part, `data.steps`, it is the run's.
    """
    arguments, any_name = arguments_of(cls)
    inside, settings = {}, {}
    for option, value in options.items():
        part, dot, field = option.partition(".")
        mine = field if dot and part == "mixer" else option
        if mine in FIXED:
            raise UserError(f"{cls.__name__}: {mine!r} cannot be an option: {FIXED[mine]}.")
        if mine in arguments or (mine != option and any_name):
            inside[mine] = _plain(cls, mine, value)
        elif mine != option:
            raise UnknownName(f"option of {cls.__name__}", mine, arguments)
        else:
            try:
                place(option, task, name)
                settings[option] = value
            except UnknownName as error:
                if dot:
                    raise
                if not any_name:
                    choices = {*arguments, *error.choices} - FIXED.keys()
                    raise UnknownName(f"option of {cls.__name__}", option, choices) from None
                inside[option] = _plain(cls, option, value)
    return inside, settings


def arguments_of(cls: type[nn.Module]) -> tuple[list[str], bool]:
    """Names of a mixer's options, and whether it takes any name besides."""
    declared = getattr(cls, "Options", None)
    if declared is not None:
        return list(declared.model_fields), False
    given = inspect.signature(cls).parameters.values()
    names = [p.name for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [name for name in names if name not in ("d_model", "layer")], any(p.kind is p.VAR_KEYWORD for p in given)


def _plain(cls: type[nn.Module], option: str, value: Any) -> Any:
    """As it is after it was written to a file: a run is named by its options."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        what = "numbers, text, true, false, null, and lists of those"
        raise UserError(f"{cls.__name__}: option {option!r} must be plain data ({what}; got {value!r}).") from None


def _seeded(points: Sequence[Point], seeds: int) -> tuple[Point, ...]:
    return tuple(with_seed(point, seed) for point in points for seed in range(seeds))
