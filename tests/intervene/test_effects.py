from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import mecheval as me
from intervene.models import ROUNDED, pairs, small_lm, small_task
from mecheval.errors import UserError
from mecheval.intervene import Intervention, Mean, Take, Zero, ablate, capture, interchange, patch
from mecheval.intervene import effects as effects_module
from mecheval.intervene import grid as grid_module
from mecheval.intervene.places import positions
from mecheval.intervene.reading import read_each
from mecheval.types import NOWHERE, Batch

COLUMNS = [
    "site", "block", "part", "kind", "role", "corruption", "direction", "original", "corrupted", "restored",
    "attribution", "share", "n",
]  # fmt: skip


def p_answer(lm: nn.Module, batch: Batch) -> Tensor:
    rows = torch.arange(len(batch))
    p: Tensor = lm(batch.tokens)[rows, batch.predict_at[:, 0]].double().softmax(-1)[rows, batch.answers].detach()
    return p


def test_a_row_is_what_its_columns_say() -> None:
    lm = small_lm("mamba")
    clean, corrupted = pairs(20)
    effects = interchange(lm, clean, corrupted)
    assert list(effects.columns) == COLUMNS
    sites = [name for name, tap in lm.taps().items() if not tap.readonly]
    roles = ["key", "value", "next_key", "divider", "query", "bos", "random"]
    assert list(zip(effects["site"], effects["role"], strict=True)) == [(s, r) for s in sites for r in roles]
    original, broken = p_answer(lm, clean), p_answer(lm, corrupted)
    assert effects["original"].tolist() == pytest.approx([float(original.mean())] * len(effects), abs=ROUNDED)
    assert effects["corrupted"].tolist() == pytest.approx([float(broken.mean())] * len(effects), abs=ROUNDED)
    row = effects.query("site == 'blocks.0.mixer.conv' and role == 'value'").iloc[0]
    source = capture(lm, clean, ["blocks.0.mixer.conv"], ["value"])["blocks.0.mixer.conv"]["value"]
    with patch(lm, [Intervention("blocks.0.mixer.conv", "value", Take(source))], corrupted):
        restored = float(p_answer(lm, corrupted).mean())
    assert row["restored"] == pytest.approx(restored, abs=ROUNDED)
    assert row["attribution"] == row["restored"] - row["corrupted"]
    assert row["n"] == 20
    gap = row["original"] - row["corrupted"]
    assert row["share"] == pytest.approx(row["attribution"] / gap) if gap >= 0.01 else pd.isna(row["share"])


def test_shares_exist_only_where_something_was_lost() -> None:
    lm = small_lm("attention")
    clean, _ = pairs(8)
    effects = interchange(lm, clean, clean)
    assert effects["share"].isna().all()
    assert (effects["attribution"].abs() < ROUNDED).all()


def test_rows_of_documents_average_to_the_rows_of_sites() -> None:
    lm = small_lm("based")
    clean, corrupted = pairs(15)
    effects = interchange(lm, clean, corrupted)
    each = interchange(lm, clean, corrupted, per_document=True)
    assert set(each["document"]) == set(range(15))
    means = each.groupby(["site", "role"], sort=False)[["original", "corrupted", "restored"]].mean().reset_index()
    for column in ("site", "role"):
        assert means[column].tolist() == effects[column].tolist()
    for column in ("original", "corrupted", "restored"):
        assert means[column].tolist() == pytest.approx(effects[column].tolist(), abs=1e-12)


@pytest.mark.parametrize(("budget_mb", "n"), [(0.0001, 3), (0.3, 12), (3.0, 12)])
def test_the_budget_changes_memory_and_no_number(budget_mb: float, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = small_lm("hyena")
    clean, corrupted = pairs(n)
    whole = interchange(lm, clean, corrupted)
    largest = 0
    resume = me.LM.resume

    def watched(self: me.LM, block: int, h: Tensor, at: Tensor | None = None) -> Tensor:
        nonlocal largest
        largest = max(largest, len(h) * grid_module.document_bytes(self, h.shape[1]))
        return resume(self, block, h, at)

    monkeypatch.setattr(me.LM, "resume", watched)
    small = interchange(lm, clean, corrupted, budget_mb=budget_mb)
    assert small["restored"].tolist() == pytest.approx(whole["restored"].tolist(), abs=ROUNDED)
    assert 0 < largest <= max(budget_mb * 2**20, grid_module.document_bytes(lm, clean.tokens.shape[1]))


def test_documents_that_end_early_are_run_together_and_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    task = me.build_task("ar", pairs=4, keys=12, values=12, queries=4)
    clean = task.each_query_in_turn(task.sample(8, "test"))
    corrupted, lm, lengths = task.corrupt(clean), small_lm("attention"), list[int]()
    assert clean.predict_at[:, 0].tolist() == [10, 12, 14, 16] * 2
    plain = effects_module._slice

    def watched(model: nn.Module, own: Batch, *given: Any) -> Any:
        lengths.append(own.tokens.shape[1])
        return plain(model, own, *given)

    monkeypatch.setattr(effects_module, "_slice", watched)

    def two(model: nn.Module, batch: Batch, budget: float) -> list[slice]:
        return [slice(first, first + 2) for first in range(0, len(batch), 2)]

    monkeypatch.setattr(effects_module, "document_slices", two)
    sites = ["blocks.0.mixer.output", "blocks.1.input"]
    found = interchange(lm, clean, corrupted, sites, ["key", "value"], per_document=True)
    assert lengths == [11, 13, 15, 17], "two documents at once, of one length"
    for row in range(8):
        own = [batch[slice(row, row + 1)] for batch in (clean, corrupted)]
        alone = interchange(lm, own[0], own[1], sites, ["key", "value"], per_document=True)
        here = found[found["document"] == int(clean.index[row])]
        for column in ("original", "corrupted", "restored"):
            assert here[column].tolist() == pytest.approx(alone[column].tolist(), abs=ROUNDED)


def test_the_control_is_another_position_of_the_body() -> None:
    task = small_task()
    clean = task.sample(500, "test")
    where = positions(clean, ["random"])["random"]
    roles = clean.roles
    assert ((where >= 1) & (where < roles["divider"])).all()
    for role in ("key", "value", "next_key"):
        assert (where != roles[role]).all()
    assert len(set(where.tolist())) == 8
    assert torch.equal(positions(clean[slice(100, 200)], ["random"])["random"], where[100:200])
    assert not torch.equal(positions(clean, ["random"], seed=1)["random"], where)


def test_documents_without_a_role_take_no_part_in_it() -> None:
    lm = small_lm("attention")
    clean, corrupted = pairs(6)
    where = clean.roles["key"].clone()
    where[2] = NOWHERE
    effects = interchange(lm, clean, corrupted, ["blocks.0.input"], {"key": clean.roles["key"], "some": where})
    key, some = effects.to_dict("records")
    assert (key["n"], some["n"]) == (6, 5)
    left = torch.tensor([0, 1, 3, 4, 5])
    assert some["original"] == pytest.approx(float(p_answer(lm, clean)[left].mean()), abs=ROUNDED)
    one_pair = me.build_task("ar", pairs=1, keys=12, values=12)
    alone, broken = pairs(4, one_pair)
    control = interchange(small_lm("attention"), alone, broken, ["blocks.0.input"], ["key", "random"])
    assert control["n"].tolist() == [4, 0]
    assert pd.isna(control["restored"].iloc[1])


def test_any_module_gives_the_same_as_the_lm_that_it_wraps() -> None:
    lm = small_lm("attention")
    clean, corrupted = pairs(8)
    ours = interchange(lm, clean, corrupted, ["blocks.0.mixer.output", "blocks.1.mlp.input"], ["key", "value", "query"])
    theirs = interchange(
        Wrapped(lm), clean, corrupted, ["lm.blocks.0.mixer.output", "lm.blocks.1.mlp.input"], ["key", "value", "query"]
    )
    assert theirs["restored"].tolist() == pytest.approx(ours["restored"].tolist(), abs=ROUNDED)
    assert theirs["original"].tolist() == pytest.approx(ours["original"].tolist(), abs=ROUNDED)


class Wrapped(nn.Module):
    def __init__(self, lm: me.LM) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.lm(tokens)
        return logits


def test_trees_with_documents_of_many_lengths() -> None:
    task = me.build_task("atr", max_length=40)
    lm = small_lm("mamba", vocab_size=task.vocab_size)
    clean = task.sample(30, "test")
    corrupted = task.corrupt(clean)
    together = interchange(lm, clean, corrupted, ["blocks.1.input"], ["value"], per_document=True)
    for i in (0, 7, 29):
        row = task.sample(1, "test", start=i)
        alone = interchange(lm, row, task.corrupt(row), ["blocks.1.input"], ["value"])
        assert alone["restored"].iloc[0] == pytest.approx(together["restored"].iloc[i], abs=ROUNDED)


def test_ablation_drops_what_a_site_brings() -> None:
    lm = small_lm("attention")
    clean, _ = pairs(10)
    found = ablate(lm, clean, Zero(), ["blocks.0.mixer.output", "blocks.1.input"], ["key", "query"])
    assert list(found.columns) == ["site", "block", "part", "kind", "role", "original", "edited", "drop", "n"]
    with patch(lm, [Intervention("blocks.1.input", "query", Zero())], clean):
        edited = float(p_answer(lm, clean).mean())
    row = found.query("site == 'blocks.1.input' and role == 'query'").iloc[0]
    assert row["edited"] == pytest.approx(edited, abs=ROUNDED)
    assert row["drop"] == row["original"] - row["edited"]
    same = ablate(lm, clean[slice(0, 1)], Mean(), ["blocks.1.input"], ["query"])  # of one document: no change
    assert same["drop"].iloc[0] == pytest.approx(0, abs=ROUNDED)
    by_name = ablate(lm, clean, "zero", ["blocks.0.mixer.output", "blocks.1.input"], ["key", "query"])
    assert by_name.equals(found)
    with pytest.raises(UserError, match=r"unknown edit 'zeros'. Did you mean 'zero'?"):
        ablate(lm, clean, "zeros")


def test_the_model_is_left_in_its_mode() -> None:
    lm = small_lm("attention").train()
    interchange(lm, *pairs(3), ["blocks.0.input"], ["key"])
    assert lm.training


def test_documents_must_be_the_same() -> None:
    clean, _ = pairs(4)
    other = replace(clean, answers=clean.answers.flip(0))
    with pytest.raises(UserError, match=r"clean and corrupted must be the same documents: corrupted = task.corrupt"):
        interchange(small_lm("attention"), clean, other)


def test_positions_and_sites_that_cannot_matter_are_mistakes() -> None:
    clean, corrupted = pairs(4)
    with pytest.raises(UserError, match=r"role '-1': a position lies after the prediction"):
        interchange(small_lm("attention"), clean, corrupted, ["blocks.0.output"], [-1])
    wrapped = Wrapped(small_lm("attention"))
    wrapped.unused = nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"the model ran without passing through unused\.output"):
        interchange(wrapped, clean, corrupted, ["unused.output"], ["key"])


def test_variants_of_few_documents_are_read_in_one_pass() -> None:
    lm, (clean, corrupted), passes = small_lm("mamba").eval(), pairs(3), list[int]()
    where = {role: clean.roles[role] for role in ("key", "value")}
    lm.register_forward_hook(lambda _, given, out: passes.append(len(given[0])))
    batches = {"clean": clean, "corrupted": corrupted}
    one, two = (read_each(lm, batches, ["blocks.1.input"], where, at_once) for at_once in (6, 5))
    assert passes == [6, 3, 3]
    for name, role in itertools.product(batches, where):
        own, other = (found[name].values["blocks.1.input"][role] for found in (one, two))
        torch.testing.assert_close(own, other)
        torch.testing.assert_close(one[name].likelihood, two[name].likelihood, rtol=1e-5, atol=1e-6)
    assert not torch.equal(one["clean"].likelihood, one["corrupted"].likelihood)
