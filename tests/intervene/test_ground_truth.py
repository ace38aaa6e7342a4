"""Models whose mechanism is known because it was built by hand: the verdict must name it."""

from __future__ import annotations

from typing import Any

import pytest

import mecheval as me
from mecheval.intervene.mechanism import Finding, depths_of
from mecheval.model.handmade import handmade
from mecheval.types import CARRIERS

INDUCTION = Finding("induction", layer=1, stored_by=0, stored_at="value")
CASES: list[tuple[str, dict[str, Any], Finding]] = [
    ("induction", {}, INDUCTION),
    ("conv_direct", {"layer": 0}, Finding("conv_association", layer=0)),
    ("conv_direct", {"layer": 1}, Finding("conv_association", layer=1)),
    ("guesser", {}, Finding("not_learnt")),
    ("mixture", {}, Finding("mixed")),
    ("conv_direct", {"layer": 0, "n_layers": 1}, Finding("conv_association", layer=0)),
    ("induction", {"layer": (0, 1), "n_layers": 3}, INDUCTION),
    ("induction", {"layer": (1, 2), "n_layers": 3}, Finding("induction", 2, 1, "value")),
    ("induction", {"layer": (0, 2), "n_layers": 3}, Finding("induction", 2, 0, "value")),
    ("conv_direct", {"layer": 1, "n_layers": 3}, Finding("conv_association", layer=1)),
    ("conv_direct", {"layer": 2, "n_layers": 3}, Finding("conv_association", layer=2)),
]


@pytest.mark.parametrize(("pairs", "keys"), [(2, 8), (4, 16), (16, 64)])
@pytest.mark.parametrize(("name", "options", "finding"), CASES)
def test_the_verdict_names_what_was_built(
    name: str, options: dict[str, Any], finding: Finding, pairs: int, keys: int
) -> None:
    task = me.build_task("ar", pairs=pairs, keys=keys, values=keys)
    for seed in (0, 1, 2):
        lm = handmade(name, task, seed=seed, **options)
        clean = task.sample(16, "test", seed=seed)
        corrupted = task.corrupt(clean, seed=seed)
        effects = me.interchange(lm, clean, corrupted, depths_of(lm.sites()).sites, CARRIERS)
        found = me.verdict(effects, resamples=200)
        assert found.finding == finding, found
        assert found.agreement is not None
        assert found.agreement >= 0.95


def test_without_its_convolution_sites_direct_retrieval_is_all_one_can_say() -> None:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    clean = task.sample(16, "test")
    effects = me.interchange(
        handmade("conv_direct", task, layer=1), clean, task.corrupt(clean), ["blocks.1.input"], CARRIERS
    )
    assert me.verdict(effects).finding == Finding("direct_retrieval", layer=1)
