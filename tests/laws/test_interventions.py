"""Laws of interventions, over every registered mixer, with and without Canon convolutions, and a hybrid."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest
import torch
from torch import Tensor

from intervene import models
from intervene.models import ROUNDED, VARIANTS
from mecheval.intervene import Intervention, Take, capture, default_sites, grid, interchange, patch, replace_state
from mecheval.intervene.places import listening
from mecheval.mixers import MIXERS
from mecheval.sites import Site
from mecheval.types import ALL_ROLES

small_lm, pairs = cache(models.small_lm), cache(models.pairs)
"""No test here changes a model or a document, so each is made once."""
EVERY = pytest.mark.parametrize("mixer", VARIANTS)
DEPTHS = pytest.mark.parametrize(
    ("mixer", "layers"),
    [(mixer, layers) for mixer in VARIANTS for layers in ((1, 3) if mixer in ("attention", "mamba") else (2,))],
)


@EVERY
def test_patching_with_the_own_activation_changes_nothing(mixer: str) -> None:
    lm = small_lm(mixer)
    clean, _ = pairs()
    plain = lm(clean.tokens)
    sites = [name for name, tap in lm.taps().items() if not tap.readonly]
    roles = ["key", "query"]
    for site in sites:
        # Attention computes its pattern only for those who listen to it. The copy is what a patch makes, too: both runs
        # then make the same calls on tensors that lie in memory in the same way, and are the same to the bit.
        with listening(lm, {site: lambda x: x.clone()}):
            before = lm(clean.tokens)
        torch.testing.assert_close(before, plain, rtol=1e-5, atol=1e-5)
        own = capture(lm, clean, [site], roles)[site]
        with patch(lm, [Intervention(site, role, Take(own[role])) for role in roles], clean):
            assert torch.equal(lm(clean.tokens), before), site


@DEPTHS
def test_the_whole_stream_after_a_block_from_the_source_gives_the_sources_logits(mixer: str, layers: int) -> None:
    """To the bit: from there on both runs make the same calls on the same shapes."""
    lm = small_lm(mixer, layers)
    clean, corrupted = pairs()
    wanted = lm(clean.tokens)
    for block in range(layers):
        for site in (f"blocks.{block}.input", f"blocks.{block}.output"):
            source = capture(lm, clean, [site])[site]
            with listening(lm, {site: lambda x, source=source: source}):  # type: ignore[misc]
                assert torch.equal(lm(corrupted.tokens), wanted), site


@DEPTHS
def test_resuming_from_a_block_equals_running_from_the_start(mixer: str, layers: int) -> None:
    """To the bit: the blocks that are left are called as in a run from the start, with the same shapes."""
    lm = small_lm(mixer, layers)
    _, corrupted = pairs()
    wanted, at = lm(corrupted.tokens), corrupted.predict_at[:, 0]
    narrow = lm(corrupted.tokens, at=at)
    inputs = capture(lm, corrupted, [f"blocks.{i}.input" for i in range(layers)])
    for block in range(layers):
        h = inputs[f"blocks.{block}.input"]
        assert isinstance(h, Tensor)
        assert torch.equal(lm.resume(block, h), wanted)
        assert torch.equal(lm.resume(block, h, at), narrow)


@DEPTHS
def test_the_stacked_grid_equals_one_run_for_each_edit(
    mixer: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-6, for every kind of edit: both directions, the control, spans, offsets, states, several places at once.

    Every site is there with two roles, and every role and every kind of edit with four sites.
    """
    lm = small_lm(mixer, layers)
    clean, corrupted = pairs()
    sites = [*default_sites(lm), *(Site(i, "mixer.state", "state") for i in range(layers))]
    states = sites[-layers:]
    few = [
        states[0],
        *(site for site in sites if site in ("blocks.0.input", "blocks.0.mixer.output", "blocks.0.output")),
    ]
    others = [role for role in ALL_ROLES if role not in ("key", "query")]
    joint = [("blocks.0.mixer.output", "value"), (f"blocks.{layers - 1}.input", "between")]

    def every() -> pd.DataFrame:
        def some(sites: list[Site], roles: list[str], direction: str) -> pd.DataFrame:
            return interchange(lm, clean, corrupted, sites, roles, direction=direction, per_document=True)

        return pd.concat([
            some(sites, ["key", "query"], "restore"),
            some(few, others, "restore"),
            some(few, ["value+2", "between"], "both"),
            some([*states, Site(0, "mixer.output")], ["question"], "control"),
            interchange(lm, clean, corrupted, joint=joint, per_document=True),
        ])  # fmt: skip

    fast = every()
    monkeypatch.setattr(
        grid,
        "run_cells",
        lambda lm, base, edits, cells, where, budget, measure, known: grid.one_by_one(
            lm, base, edits, cells, where, measure
        ),
    )
    plain = every()
    assert len(fast) == len(clean) * (2 * len(sites) + len(others) * 4 + 2 * 2 * 4 + len(states) + 2)
    assert (fast["restored"] - plain["restored"]).abs().max() < 1e-6
    assert (fast["restored"].isna() == plain["restored"].isna()).all()
    if layers > 1:  # a convolution of three tokens alone does not see the key from the query
        assert plain["restored"].std() > 1e-4


@pytest.mark.parametrize("mixer", MIXERS.names())  # a Canon convolution carries something beside the state
def test_a_state_that_is_replaced_after_the_last_token_before_the_query_decides(mixer: str) -> None:
    """The clean state of every layer after position t, its own stream from there on; t = key - 1 changes nothing."""
    lm = small_lm(mixer)
    clean, corrupted = pairs()
    before = {"before": clean.roles["key"] - 1}
    effects = interchange(lm, clean, corrupted, ["blocks.0.mixer.state", "blocks.1.mixer.state"], before)
    assert (effects["restored"] - effects["corrupted"]).abs().max() < ROUNDED
    together = [(f"blocks.{i}.mixer.state", "divider") for i in range(2)]
    whole = interchange(lm, clean, corrupted, joint=together)
    assert float(whole["restored"].iloc[0]) == pytest.approx(float(whole["original"].iloc[0]), abs=ROUNDED)


@EVERY
def test_a_state_replaced_in_the_recurrence_is_the_one_that_other_inputs_leave(mixer: str) -> None:
    """Two ways to replace a whole state: in the memory, written out; and by what the mixer reads up to there."""
    lm = small_lm(mixer)
    clean, corrupted = pairs()
    for layer, after in ((0, "value"), (1, "key"), (1, "divider")):
        memory = replace_state(lm, clean, corrupted, layer, after, per_document=True)
        inputs = interchange(lm, clean, corrupted, [f"blocks.{layer}.mixer.state"], [after], per_document=True)
        assert list(memory.columns) == list(inputs.columns)
        for column in ("original", "corrupted", "restored"):
            assert (memory[column] - inputs[column]).abs().max() < 1e-5, column


@EVERY
def test_only_the_key_matters_before_the_model_and_only_the_prediction_after_it(mixer: str) -> None:
    lm = small_lm(mixer)
    effects = interchange(lm, *pairs(), ["blocks.0.input", "blocks.1.output"])
    table = effects.set_index(["site", "role"])["restored"]
    original, corrupted = effects["original"].iloc[0], effects["corrupted"].iloc[0]
    for role in ("key", "value", "next_key", "divider", "query", "bos", "random"):
        first, last = table["blocks.0.input", role], table["blocks.1.output", role]
        assert first == pytest.approx(original if role == "key" else corrupted, abs=ROUNDED)
        assert last == pytest.approx(original if role == "query" else corrupted, abs=ROUNDED)
