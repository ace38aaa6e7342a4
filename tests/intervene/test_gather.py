"""The evidence: which documents count, which positions have which names, and what is measured."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import mecheval as me
from mecheval.intervene import Evidence
from mecheval.intervene.mechanism import Cell
from mecheval.intervene.others import other_values
from mecheval.intervene.places import NEAR, named_between, positions
from mecheval.model.handmade import handmade
from mecheval.types import FRAMED, NOWHERE


def trial(task: me.Task, n: int = 48, mixer: str = "attention") -> tuple[Evidence, me.LM, me.Batch, me.Batch]:
    """Evidence about a model with weights far from their start."""
    lm = me.LM(task.vocab_size, 16, 2, mixer, max_length=task.max_tokens, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    clean = task.each_query_in_turn(task.sample(n, "test"))
    corrupted = task.corrupt(clean)
    return me.evidence(lm, clean, corrupted), lm, clean, corrupted


@pytest.mark.parametrize("kinds", ["parent", "sibling", "child", "parent,child", "grandparent,sibling"])
def test_the_three_kinds_of_positions_are_everything_in_treecall(kinds: str) -> None:
    """Also where the prediction stands at no role (several query kinds) and where roles coincide."""
    task = me.build_task("atr", preset="laptop", query=kinds, max_length=24)
    evidence, lm, clean, corrupted = trial(task)
    rows = np.isin(clean.index.numpy(), evidence.index)
    key, value, query = (clean.roles[role][torch.from_numpy(rows)] for role in ("key", "value", "query"))
    assert (key != value).all()
    assert evidence.n == rows.sum()
    assert evidence.n <= evidence.given == len(clean)
    assert (torch.maximum(key, value) + NEAR < query).all() or evidence.n == int(
        (clean.roles["key"] != clean.roles["value"]).sum()
    )
    whole = me.interchange(lm, clean, corrupted, joint=[("blocks.1.input", kind) for kind in FRAMED.kinds])
    assert float(whole["restored"].iloc[0]) == pytest.approx(float(whole["original"].iloc[0]), abs=3e-6)
    last = me.interchange(lm, clean, corrupted, ["blocks.1.output"], ["question", "between"]).set_index("role")
    assert last["restored"]["question"] == pytest.approx(last["original"]["question"], abs=3e-6)
    assert last["restored"]["between"] == pytest.approx(last["corrupted"]["between"], abs=3e-6)


def test_every_position_between_key_and_query_has_a_name_or_is_among_the_others() -> None:
    task = me.build_task("atr", preset="laptop", max_length=24)
    clean = task.sample(64, "test")
    named, where = named_between(clean), positions(clean, ["between", "others"])
    for row in range(len(clean)):
        between = {p for p in where["between"][row].tolist() if p != NOWHERE}
        others = {p for p in where["others"][row].tolist() if p != NOWHERE}
        names = {int(places[row]) for places in named.values()} - {NOWHERE}
        assert others | names == between
        assert not others & names
        assert between == set(range(int(clean.roles["key"][row]) + 1, int(clean.roles["query"][row])))


def alone(evidence: Evidence) -> dict[str, int]:
    """Role -> in how many documents it is replaced at the input of layer 1."""
    return {
        cell.role: int((~np.isnan(found)).sum())
        for cell, found in zip(evidence.cells, evidence.edited, strict=True)
        if (cell.site, cell.corruption, cell.direction) == ("blocks.1.input", "key", "restore")
    }


def test_a_position_with_two_names_counts_for_one() -> None:
    task = me.build_task("ar", pairs=4, keys=12, values=12)
    clean = task.sample(96, "test")
    evidence = me.evidence(handmade("induction", task), clean, task.corrupt(clean))
    assert evidence.n < 96  # the last pair is within reach of a short convolution
    there = alone(evidence)
    assert there["value"] == there["between"] == evidence.n
    assert "key+1" not in there  # it is the value in every document
    assert there["value+3"] + there["divider"] <= 2 * evidence.n - 1  # they are the same in some documents


@pytest.mark.parametrize(
    ("name", "stored"),
    [("atr-based-32", "stores the key at the value"), ("atr-delta_net-32", "at the position after the value")],
)
def test_a_name_is_judged_in_all_documents(name: str, stored: str) -> None:
    """On trees the value is often among the positions after the key, each of which then restores in some documents."""
    task, lm = me.build_task("atr"), me.load_pretrained(name)
    clean = task.sample(320, "test")
    evidence = me.evidence(lm, clean, task.corrupt(clean))
    found = evidence.verdict()
    assert stored in str(found.finding)
    assert found.agreement is not None
    assert found.agreement >= 0.95
    places = positions(clean[torch.isin(clean.index, torch.from_numpy(evidence.index))], list(alone(evidence)))
    one = [
        cell
        for cell in evidence.cells
        if cell.site == evidence.depths.boundaries[0] and cell.role in named_between(clean)
    ]
    rows = {
        cell.role: ~np.isnan(evidence.edited[evidence.cells.index(cell)]) for cell in one if cell.direction == "restore"
    }
    for first, second in itertools.combinations(rows, 2):
        same = (places[first] == places[second]).numpy()
        assert not (rows[first] & rows[second] & same).any(), (first, second)
    widths = found.shares.query("direction == 'restore' and corruption == 'key'").eval("high - low")
    assert widths.max() < 1  # a name of few documents that lose nothing would have an interval of many times this


def test_short_convolutions_that_share_the_work_are_replaced_together() -> None:
    """DeltaNet has one for keys and one for values, and on trees neither is all that a layer retrieves by."""
    task, lm = me.build_task("atr"), me.load_pretrained("atr-delta_net-64")
    clean = task.sample(320, "test")
    corrupted = task.corrupt(clean)
    evidence = me.evidence(lm, clean, corrupted)
    found = evidence.verdict()
    assert found.label == "conv_association"
    assert "at blocks.0.mixer.convs (its short convolutions together)" in str(found)
    share = {Cell(*cell): value for *cell, value in found.shares[[*Cell._fields, "share"]].itertuples(index=False)}
    rows = torch.isin(clean.index, torch.from_numpy(evidence.index))
    single = [f"blocks.0.mixer.{name}_conv" for name in "qkv"]
    assert max(share[Cell(site, "between")] for site in single) < 0.85
    joint = me.interchange(lm, clean[rows], corrupted[rows], joint=[(site, "between") for site in single])
    assert share[Cell("blocks.0.mixer.convs", "between")] == pytest.approx(float(joint["share"].iloc[0]), abs=1e-4)


def test_several_queries_count_alike() -> None:
    task = me.build_task("ar", pairs=4, keys=12, values=12, queries=4)
    clean = task.each_query_in_turn(task.sample(40, "test"))
    assert clean.chance is not None
    assert sorted(set(clean.chance[:, 0].tolist())) == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])
    rows = torch.arange(40)
    assert torch.equal(clean.tokens[rows, clean.roles["key"]], clean.tokens[rows, clean.predict_at[:, 0]])
    assert torch.equal(clean.tokens[rows, clean.roles["value"]], clean.answers)
    assert torch.equal(clean.tokens[rows, clean.predict_at[:, 0] + 1], clean.answers)


def test_the_value_changes_places_with_another() -> None:
    task = me.build_task("ar", pairs=4, keys=12, values=12)
    clean = task.sample(30, "test")
    other = other_values(clean)
    assert other is not None
    changed = (clean.tokens != other.tokens).nonzero().view(30, 2, 2)[..., 1]  # two places in each document
    assert (changed % 2 == 0).all()  # of values: keys stand at odd places
    assert (changed < clean.roles["divider"][:, None]).all()
    assert (changed == clean.roles["value"][:, None]).any(1).all()
    assert torch.equal(clean.tokens.sort(1).values, other.tokens.sort(1).values)


def test_a_value_without_another_to_change_places_with_is_replaced() -> None:
    task = me.build_task("ar", pairs=1, keys=12, values=12)
    clean = task.sample(30, "test")
    other = other_values(clean)
    assert other is not None
    rows, value = torch.arange(30), clean.roles["value"]
    assert (clean.tokens != other.tokens).sum() == 30
    assert not any(bool((clean.tokens[row] == other.tokens[row, value[row]]).any()) for row in rows)
    assert other_values(clean[:1]) is None


def test_corruptions_by_name() -> None:
    task = me.build_task("ar", pairs=4, keys=12, values=12)
    clean = task.sample(30, "test")
    rows = torch.arange(30)
    for kind in ("key", "value", "query"):
        changed = task.corrupt(clean, kind=kind).tokens != clean.tokens
        assert changed.sum() == 30
        assert changed[rows, clean.roles[kind]].all()
    swapped = task.corrupt(clean, kind="swap")
    assert swapped.counterfactual is not None
    assert torch.equal(swapped.tokens[rows, clean.roles["value"]], swapped.counterfactual)
    assert (swapped.counterfactual != clean.answers).all()
    assert torch.equal(swapped.tokens.sort(dim=1).values, clean.tokens.sort(dim=1).values)
    with pytest.raises(me.errors.UserError, match="Choices: key, query, swap, value"):
        task.corrupt(clean, kind="valu")
    tree = me.build_task("atr", preset="laptop")
    trees = tree.sample(2, "test")
    with pytest.raises(me.errors.UserError, match=r"unknown corruption of atr .* Choices: key, query, value"):
        tree.corrupt(trees, kind="swap")


def test_a_swap_predicts_a_particular_answer() -> None:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    clean = task.sample(24, "test")
    effects = me.interchange(
        handmade("induction", task), clean, task.corrupt(clean, kind="swap"), ["blocks.1.input"], ["value", "key"],
        direction="destroy",
    ).set_index("role")  # fmt: skip
    assert (effects["corruption"] == "swap").all()
    assert effects["hits"]["value"] == 1.0
    assert effects["hits"]["key"] == 0.0


def test_the_smallest_set_that_restores_the_answer() -> None:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    clean = task.sample(24, "test")
    cells = [("blocks.1.input", role) for role in ("bos", "key", "value", "divider", "query")]
    found = me.smallest_set(handmade("induction", task), clean, task.corrupt(clean), cells)
    assert (found.cells, found.smallest) == ((("blocks.1.input", "value"),), True)
    both = me.smallest_set(handmade("joint", task), clean, task.corrupt(clean), cells)
    assert (set(both.cells), both.smallest) == ({cells[2], cells[4]}, True)
    assert both.share == pytest.approx(1, abs=0.02)
    nothing = me.smallest_set(handmade("induction", task), clean, task.corrupt(clean), cells[:2])
    assert not nothing.smallest
    assert nothing.share < 0.1
    with pytest.raises(me.errors.UserError, match="at least one"):
        me.smallest_set(handmade("induction", task), clean, task.corrupt(clean), [])


def test_a_cell_is_named_by_site_role_corruption_and_direction() -> None:
    assert Cell("blocks.1.input", "key") == ("blocks.1.input", "key", "key", "restore")
