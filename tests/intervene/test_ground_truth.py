"""Models whose mechanism is known because it was built by hand: the verdict must name it, and its sentences be true."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import mecheval as me
from mecheval.errors import UserError
from mecheval.evaluation.known import GUESSERS, MECHANISMS, Known
from mecheval.intervene import Rule, Verdict
from mecheval.intervene.finding import Finding
from mecheval.model.handmade import handmade
from mecheval.types import FRAMED


def judged(name: str, pairs: int, keys: int, n: int, seed: int, **options: Any) -> Verdict:
    task = me.build_task("ar", pairs=pairs, keys=keys, values=keys)
    lm = handmade(name, task, seed=seed, **options)
    clean = task.sample(n, "test", seed=seed)
    return me.verdict(lm, clean, task.corrupt(clean, seed=seed), resamples=200)


KNOWN = (*MECHANISMS, *GUESSERS)
RECIPES = {known.recipe: known for known in reversed(KNOWN)}
"""The first model of each recipe."""


@pytest.mark.parametrize(
    ("known", "pairs", "keys", "n"),
    [*((known, 4, 16, 16) for known in KNOWN), *((known, 8, 20, 40) for known in RECIPES.values())],
    ids=lambda given: given.title if isinstance(given, Known) else None,
)
def test_the_verdict_names_what_was_built(known: Known, pairs: int, keys: int, n: int) -> None:
    found = judged(known.recipe, pairs, keys, n, seed=pairs, **known.options)
    assert found.finding == known.finding, found
    assert found.agreement is not None
    assert found.agreement >= 0.95
    shares = found.shares.dropna()  # two values that change places make no difference to some guessers
    assert (shares["high"] > shares["low"]).all()
    assert known in GUESSERS or len(shares) == len(found.shares)


def test_where_a_split_store_lies_is_said() -> None:
    found = judged("split_store", 4, 16, 40, 0)
    assert found.finding.places == ("value", "divider")
    assert "partly at the value and partly at the divider" in str(found)
    both = judged("two_stores", 4, 16, 40, 0)
    assert set(both.finding.places) == {"value", "next_key"}
    assert "redundant: either is enough" in str(both)
    shifted = judged("conv_direct", 4, 16, 40, 0, offset=2)
    assert "joins key and value at the second position after the value" in str(shifted)


def test_what_a_guesser_says_is_no_recall() -> None:
    found = judged("stored_guesser", 4, 16, 40, 0)
    assert "a likelihood of 0.25 is not above the 0.25 of guessing without recall" in str(found)


def two_grids(name: str, **options: Any) -> pd.DataFrame:
    """The rows that a verdict needs, of a model with hand-set weights."""
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    lm, clean = handmade(name, task, **options), task.sample(40, "test")
    keys = me.interchange(lm, clean, task.corrupt(clean), roles=[*FRAMED.kinds, "value"], direction="both")
    values = me.interchange(lm, clean, task.corrupt(clean, kind="value"), roles=["question", "body"])
    return pd.concat([keys, values])


def test_a_table_with_the_rows_that_the_rule_needs_can_be_judged() -> None:
    found = me.verdict(two_grids("induction"))
    assert found.finding == judged("induction", 4, 16, 40, 0).finding
    assert (found.agreement, found.n) == (None, 40)
    assert me.verdict(two_grids("induction"), Rule(learnt=1)).label == "not_learnt"
    assert me.verdict(two_grids("conv_direct", layer=1)).finding == Finding("conv_association", 1)
    early = me.verdict(two_grids("conv_direct"))  # later layers may depend on the query: no row tells
    assert (early.label, judged("conv_direct", 4, 16, 40, 0).label) == ("undetermined", "conv_association")


@pytest.mark.parametrize(
    ("role", "site"), [("question", "blocks.1.output"), ("between", "blocks.1.input"), ("body", "blocks.1.input")]
)
def test_a_table_without_these_rows_is_refused(role: str, site: str) -> None:
    """A verdict from whatever rows a table has would depend on where one looked."""
    rows = two_grids("induction")
    with pytest.raises(UserError, match=f"lacks role {role} at {site}"):
        me.verdict(rows[(rows["role"] != role) | (rows["site"] != site)])


def test_a_lucky_guesser_does_not_depend_on_which_value_stands_with_the_key() -> None:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    lm = handmade("stored_guesser", task, seed=366807868, noise=0.05)
    clean = task.sample(64, "test", seed=1906713459)  # on these documents it is better than chance
    found = me.verdict(lm, clean, task.corrupt(clean, seed=1906713459), resamples=200)
    assert str(found.finding) == "not learnt: the answer does not depend on which value stands with the key"
