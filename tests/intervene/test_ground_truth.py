"""Models whose mechanism is known because it was built by hand: the verdict must name it, and its sentences be true."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import mecheval as me
from mecheval.errors import UserError
from mecheval.evaluation.known import GUESSERS, MECHANISMS, Known
from mecheval.intervene import Verdict
from mecheval.intervene.mechanism import Finding
from mecheval.model.handmade import handmade
from mecheval.types import CARRIERS


def judged(name: str, pairs: int, keys: int, n: int, seed: int, sites: list[str], **options: Any) -> Verdict:
    task = me.build_task("ar", pairs=pairs, keys=keys, values=keys)
    lm = handmade(name, task, seed=seed, **options)
    clean = task.sample(n, "test", seed=seed)
    return me.verdict(me.interchange(lm, clean, task.corrupt(clean, seed=seed), sites), resamples=200)


KNOWN = (*MECHANISMS, *GUESSERS)
RECIPES = {known.recipe: known for known in reversed(KNOWN)}
"""The first model of each recipe."""


@pytest.mark.parametrize(
    ("known", "pairs", "keys", "n"),
    [*((known, 4, 16, 16) for known in KNOWN), *((known, 8, 20, 40) for known in RECIPES.values())],
    ids=lambda given: given.title if isinstance(given, Known) else None,
)
def test_the_verdict_names_what_was_built(known: Known, pairs: int, keys: int, n: int) -> None:
    found = judged(known.recipe, pairs, keys, n, seed=pairs, sites=[], **known.options)
    assert found.finding == known.finding, found
    assert found.agreement is not None
    assert found.agreement >= 0.95
    shares = found.shares.dropna()  # two values that change places make no difference to some guessers
    assert (shares["high"] > shares["low"]).all()
    assert known in GUESSERS or len(shares) == len(found.shares)


@pytest.mark.parametrize("sites", [[], ["blocks.0.mixer.output"], ["blocks.1.input"], ["blocks.2.mlp.output"]])
def test_the_sites_that_one_looks_at_do_not_change_the_verdict(sites: list[str]) -> None:
    found = judged("induction", 4, 16, 24, 0, sites, layer=(0, 2), n_layers=3)
    assert found.finding == Finding("induction", 2, 0, "value")
    direct = judged("conv_direct", 4, 16, 24, 0, sites, layer=1, n_layers=3)
    assert direct.finding == Finding("conv_association", 1)


def test_where_a_split_store_lies_is_said() -> None:
    found = judged("split_store", 4, 16, 40, 0, [])
    assert found.finding.places == ("value", "divider")
    assert "partly at the value and partly at the divider" in str(found)
    both = judged("two_stores", 4, 16, 40, 0, [])
    assert set(both.finding.places) == {"value", "next_key"}
    assert "redundant: either is enough" in str(both)
    shifted = judged("conv_direct", 4, 16, 40, 0, [], offset=2)
    assert "joins key and value at the second position after the value" in str(shifted)


def test_what_a_guesser_says_is_no_recall() -> None:
    found = judged("stored_guesser", 4, 16, 40, 0, [])
    assert "a likelihood of 0.25 is not above the 0.25 of guessing without recall" in str(found)


def test_some_rows_alone_are_no_evidence() -> None:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    clean = task.sample(16, "test")
    effects = me.interchange(
        handmade("conv_direct", task, layer=1), clean, task.corrupt(clean), ["blocks.1.input"], CARRIERS
    )
    with pytest.raises(UserError, match="without the evidence for a verdict"):
        me.verdict(pd.DataFrame(effects.to_dict("records")))


def test_a_lucky_guesser_does_not_depend_on_which_value_stands_with_the_key() -> None:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    lm = handmade("stored_guesser", task, seed=366807868, noise=0.05)
    clean = task.sample(64, "test", seed=1906713459)  # on these documents it is better than chance
    found = me.verdict(me.interchange(lm, clean, task.corrupt(clean, seed=1906713459), []), resamples=200)
    assert str(found.finding) == "not learnt: the answer does not depend on which value stands with the key"
