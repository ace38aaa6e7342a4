"""Heads as sites: what each of them restores, for every mixer that has heads."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import Tensor

import mecheval as me
from intervene.models import pairs, small_task
from mecheval.errors import UserError
from mecheval.intervene.places import listening, place
from mecheval.mixers import MIXERS

HEADS = {name: {"num_heads": 4} for name in MIXERS.names()} | {"h3": {"head_dim": 4}}
MIXES_HEADS = {"mamba2"}  # a norm over the channels of all heads stands behind them


def with_heads(mixer: str) -> me.LM:
    """A model of four heads in double precision, with weights far from their start."""
    torch.manual_seed(1)
    lm = me.LM(small_task().vocab_size, 16, 2, mixer, HEADS[mixer], max_length=64, seed=0).double().eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return lm


def mixers_with_heads() -> list[str]:
    none = {"base_conv", "hyena", "mamba"}  # they treat each channel alike
    return [name for name in MIXERS.names() if name not in none]


def said(lm: me.LM, tokens: Tensor, listeners: dict[str, Tensor]) -> Tensor:
    """The output of the last mixer while sites are replaced by tensors."""
    kept: list[Tensor] = []
    replaced = {site: lambda _, value=value: value for site, value in listeners.items()}
    with torch.no_grad(), listening(lm, {**replaced, "blocks.1.mixer.output": lambda y: kept.append(y) or y}):  # type: ignore[func-returns-value]
        lm(tokens)
    return kept[0]


@pytest.mark.parametrize("mixer", mixers_with_heads())
def test_what_heads_add_sums_to_what_all_add(mixer: str) -> None:
    lm, (clean, corrupted) = with_heads(mixer), pairs(4)
    heads = [site for site in lm.heads() if site.block == 1]
    assert heads == [f"blocks.1.mixer.heads.{i}" for i in range(4)]
    whole = me.capture(lm, clean, ["blocks.1.mixer.heads", *heads])
    base = said(lm, corrupted.tokens, {})
    all_at_once = said(lm, corrupted.tokens, {"blocks.1.mixer.heads": whole["blocks.1.mixer.heads"]}) - base
    each = [said(lm, corrupted.tokens, {head: whole[head]}) - base for head in heads]
    together = said(lm, corrupted.tokens, {head: whole[head] for head in heads}) - base
    torch.testing.assert_close(together, all_at_once, rtol=0, atol=1e-12)
    assert min(float(part.abs().max()) for part in each) > 1e-4  # every head says something
    apart = float((sum(each, torch.zeros_like(base)) - all_at_once).abs().max())
    assert apart > 1e-3 if mixer in MIXES_HEADS else apart < 1e-12


@pytest.mark.parametrize("mixer", ["attention", "h3", "gla", "mamba2"])
def test_effects_of_heads_are_those_of_whole_runs(mixer: str) -> None:
    lm, (clean, corrupted) = with_heads(mixer), pairs(12)
    found = me.interchange(lm, clean, corrupted, ["blocks.1.mixer.heads"], ["value", "query"], heads=True)
    assert list(found["site"].unique()) == ["blocks.1.mixer.heads", *lm.heads()]
    after = found.set_index(["site", "role"])["restored"]
    head, rows = "blocks.0.mixer.heads.2", torch.arange(12)
    own = me.capture(lm, clean, [head], ["value"])[head]["value"]

    def patched(x: Tensor) -> Tensor:
        y = x.clone()
        y[rows, clean.roles["value"]] = own
        return y

    with torch.no_grad(), listening(lm, {head: patched}):
        logits = lm(corrupted.tokens)[rows, clean.roles["query"]]
    wanted = float(logits.softmax(-1)[rows, clean.answers].mean())
    assert after[head, "value"] == pytest.approx(wanted, abs=1e-9)
    assert abs(wanted - found["corrupted"].iloc[0]) > 1e-6


def test_the_heads_of_h3_are_those_of_its_weights() -> None:
    """A head is replaced where the head of the same number weighs: its channels are not side by side."""
    lm, (clean, _) = with_heads("h3"), pairs(2)
    head = "blocks.0.mixer.heads.1"
    with torch.no_grad():
        v = me.capture(lm, clean, ["blocks.0.mixer.v"])["blocks.0.mixer.v"].unflatten(2, (4, -1))  # (n, L, H, P)
        weights = me.capture(lm, clean, ["blocks.0.mixer.weights"])["blocks.0.mixer.weights"]
        wanted = torch.einsum("nls,nsp->nlp", weights[:, 1], v[:, :, 1])
    torch.testing.assert_close(me.capture(lm, clean, [head])[head], wanted, rtol=1e-6, atol=1e-9)


def test_parts_of_any_site() -> None:
    lm, (clean, corrupted) = with_heads("attention"), pairs(6)
    by_name = me.interchange(lm, clean, corrupted, ["blocks.1.mixer.heads.3"], ["query"])
    by_part = me.interchange(lm, clean, corrupted, ["blocks.1.mixer.heads.part.3/4"], ["query"])
    pd.testing.assert_frame_equal(by_name.drop(columns=["site", "part"]), by_part.drop(columns=["site", "part"]))
    assert place(lm, "blocks.1.mixer.pattern.part.0/4").axis == 2  # a head of the pattern
    for wrong in ("blocks.1.mixer.heads.part.4/4", "blocks.1.mixer.heads.part.0/3"):
        with pytest.raises(UserError, match="there is no such part; the site has 16 channels"):
            me.interchange(lm, clean, corrupted, [wrong], ["query"])
    with pytest.raises(UserError, match=r"unknown site 'blocks.1.mixer.heads.4'"):
        me.interchange(lm, clean, corrupted, ["blocks.1.mixer.heads.4"], ["query"])


def test_a_model_without_heads() -> None:
    lm, (clean, corrupted) = me.LM(small_task().vocab_size, 16, 2, "mamba"), pairs(2)
    with pytest.raises(UserError, match="no mixer of this model has known heads"):
        me.interchange(lm, clean, corrupted, heads=True)
