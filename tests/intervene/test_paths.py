"""Path patching: one sender, one receiver, nothing between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mecheval as me
from intervene.linear import READS, WRITES, Linear, logit
from intervene.models import ROUNDED, VARIANTS, pairs, small_lm
from mecheval.errors import UserError
from mecheval.intervene import Intervention, Take
from mecheval.intervene.places import listening
from mecheval.model.handmade import handmade


def test_paths_of_a_linear_model_add_up_to_the_sender() -> None:
    model, (clean, corrupted) = Linear(), pairs(8)
    found = me.path(model, clean, corrupted, WRITES, READS, ["value", "query"], frozen=WRITES, measure="logit")
    found = found.set_index(["site", "role", "receiver"])["attribution"].sort_index()
    at, answers = clean.predict_at[:, 0], clean.answers
    with torch.no_grad():
        lost = logit(model, corrupted.tokens, at, answers)
        for sender in WRITES:
            for role in ("value", "query"):
                own = me.capture(model, clean, [sender], [role])[sender][role]
                with me.patch(model, [Intervention(sender, role, Take(own))], corrupted):
                    effect = logit(model, corrupted.tokens, at, answers) - lost
                assert found[sender, role].sum() == pytest.approx(effect, abs=1e-9)
    assert abs(found["layers.0.output", "value", "reads.1.output"]) > 1e-3
    assert found["layers.1.output", "value", "reads.0.output"] == pytest.approx(0, abs=1e-12)  # it comes too late


READS_BY = ("q", "k", "v", "r", "C", "B", "u", "x1", "x2")
"""Queries, keys and values, as the mixers call them."""


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "canon" not in name])
def test_a_path_is_what_two_runs_by_hand_give(variant: str) -> None:
    """From block 0's mixer at the value to block 1's mixer, or to its queries, keys or values alone."""
    lm, (clean, corrupted) = small_lm(variant), pairs(6)
    rows, at = torch.arange(6), clean.roles["value"]
    sender, receiver = "blocks.0.mixer.output", "blocks.1.mixer.input"
    blocks: list[Any] = list(lm.blocks)
    with torch.no_grad():
        seen = me.capture(lm, corrupted, ["blocks.1.input", sender])
        own = me.capture(lm, clean, [sender], ["value"])[sender]["value"]
        stream = seen["blocks.1.input"].clone()
        stream[rows, at] += own - seen[sender][rows, at]
        got: Tensor = blocks[1].norm1(stream)
        inside = [str(site) for site in lm.sites() if site.block == 1 and site.part.removeprefix("mixer.") in READS_BY]
        with listening(lm, {receiver: lambda _: got}):
            new = {receiver: got, **me.capture(lm, corrupted, inside)}
        wanted = {}
        for site, value in new.items():
            with listening(lm, {site: lambda _, value=value: value}):  # type: ignore[misc]
                logits = lm(corrupted.tokens)[rows, clean.predict_at[:, 0]]
            wanted[site] = float(logits.double().softmax(-1)[rows, clean.answers].mean())
    found = me.path(lm, clean, corrupted, [sender], list(wanted), ["value"]).set_index("receiver")["restored"]
    assert found.to_dict() == pytest.approx(wanted, abs=ROUNDED)
    assert bool(inside) == (variant != "base_conv")  # a convolution and a gate are no queries, keys and values


def test_queries_keys_and_values_are_receivers_of_their_own() -> None:
    """Induction by hand: what layer 0 stores at the value reaches the answer through the keys of layer 1."""
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    lm, clean = handmade("induction", task), task.sample(24, "test")
    sites = [f"blocks.1.mixer.{part}" for part in ("q", "k", "v", "input")]
    given = (lm, clean, task.corrupt(clean), ["blocks.0.mixer.output", "blocks.0.input"])
    found = me.path(*given, sites, ["key", "value"]).set_index(["site", "role", "receiver"])["share"].sort_index()
    stored = found["blocks.0.mixer.output", "value"]
    assert stored["blocks.1.mixer.k"] > 0.95
    assert stored["blocks.1.mixer.input"] > 0.95
    assert stored[["blocks.1.mixer.q", "blocks.1.mixer.v"]].abs().max() < 0.05
    assert found["blocks.0.input"].abs().max() < 0.05  # the key reaches layer 1 only through layer 0
    through = me.path(*given, ["blocks.1.mixer.input"], ["key"], frozen=["blocks.0.mlp.output"])
    assert through.set_index("site")["share"]["blocks.0.input"] > 0.95  # which is not frozen here


def test_errors_name_what_is_missing() -> None:
    model, (clean, corrupted) = Linear(), pairs(2)
    with pytest.raises(UserError, match="as `frozen`"):
        me.path(model, clean, corrupted, WRITES, READS)
    with pytest.raises(UserError, match=r"layers.1.output is frozen"):
        me.path(model, clean, corrupted, WRITES, WRITES[1:], frozen=WRITES)
    with pytest.raises(UserError, match="unknown measure 'loss'"):
        me.path(model, clean, corrupted, WRITES, READS, frozen=WRITES, measure="loss")
