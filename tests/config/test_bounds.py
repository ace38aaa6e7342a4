"""Every number that a config can hold has two ends, and beyond either one there is one clear line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mecheval.config import RunConfig, run_config
from mecheval.errors import UserError, parse_options
from mecheval.machine import machine_memory
from mecheval.mixers import MIXERS
from mecheval.tasks import TASKS, build_task


def options() -> Iterator[tuple[str, type[BaseModel]]]:
    """All models of options, by name."""
    yield from RunConfig.sections.items()
    for registry in (TASKS, MIXERS):
        for name in registry.names():
            yield name, getattr(registry.get(name), "Options")  # noqa: B009 (a function may have one, too)


def is_number(info: FieldInfo) -> bool:
    kinds = {info.annotation, *get_args(info.annotation)}
    return bool(kinds & {int, float}) and info.annotation is not bool


NUMBERS = [
    (name, model, field) for name, model in options() for field, info in model.model_fields.items() if is_number(info)
]
WRONG: tuple[Any, ...] = (10**20, -(10**20), 1e300, math.nan, math.inf, -math.inf, True, "8", "٣", [[1]], {})


@pytest.mark.parametrize(("owner", "model", "field"), NUMBERS, ids=lambda value: str(value))
def test_no_number_is_boundless(owner: str, model: type[BaseModel], field: str) -> None:
    needed = {"steps": 1} if "steps" in model.model_fields and field != "steps" else {}
    for value in WRONG:
        with pytest.raises(UserError) as raised:
            parse_options(model, owner, {**needed, field: value})
        assert str(raised.value).startswith(f"{owner}: "), value
        assert "\n" not in str(raised.value), value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"betas": [2, 3]}, "optimiser: betas.0: input should be less than 1 (got 2)"),
        ({"betas": [0.9, 1.0]}, "optimiser: betas.1: input should be less than 1 (got 1.0)"),
        ({"steps": 10**20}, "data: steps: input should be less than or equal to 1000000000000"),
        ({"epochs": 1e308}, "data.epochs: must be a positive number of at most 1e+12"),
        ({"epochs": math.nan}, "data.epochs: must be a positive number of at most 1e+12"),
        ({"epochs": 10**400}, "data.epochs: must be a positive number of at most 1e+12"),
        ({"epochs": 10**11}, "data: steps: input should be less than or equal to 1000000000000"),
        ({"threads": 3_000_000_000}, "machine: threads: input should be less than or equal to 512"),
        ({"device": "cuda:٣"}, "machine: device: should be cpu"),
        ({"device": "cuda:" + "9" * 5000}, "machine: device: should be cpu"),
        ({"seed": 1 << 63}, "seed: must be a whole number from 0 to 2**63 - 1"),
        ({"seed": True}, "seed: must be a whole number from 0 to 2**63 - 1"),
        ({"pairs": 1 << 24, "keys": 1 << 24}, "ar: pairs: input should be less than or equal to 1048576"),
    ],
)
def test_the_limit_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        run_config(**given)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.skipif(machine_memory() is None, reason="this system does not tell its memory")
def test_what_cannot_fit_the_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(UserError, match=r"model: 2 layers of width 131072 over .* would take at least .* GB of memory"):
        run_config(d_model=1 << 17).build_lm()
    with pytest.raises(UserError, match=r"data: batch_size=131072 with 1000 layers of width 64 would take"):
        run_config(batch_size=1 << 17, n_layers=1000).build_lm()
    with pytest.raises(UserError, match=r"ar: 1,000,000,000,000 documents would take at least"):
        build_task("ar").corpus(10**12)
    with pytest.raises(UserError, match=r"atr: 1,000,000,000,000 documents would take at least"):
        build_task("atr").corpus(10**12)
