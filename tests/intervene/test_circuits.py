"""Circuits of hand-set models are known: the scores must find them, and random circuits must not."""

from __future__ import annotations

import pytest
import torch

import mecheval as me
from intervene.linear import Linear
from intervene.models import VARIANTS, pairs, small_lm
from mecheval.errors import UserError
from mecheval.evaluation.known import MECHANISMS, Known
from mecheval.intervene import Circuit, Wiring, circuits
from mecheval.intervene.circuits import SIZES
from mecheval.intervene.reading import MEASURES
from mecheval.model.handmade import handmade
from mecheval.types import Batch

LINEAR = Wiring("embed.output", tuple((f"reads.{i}", f"layers.{i}.output") for i in range(3)), "last")


def documents(n: int) -> tuple[me.Task, Batch, Batch]:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    clean = task.sample(n, "test")
    return task, clean, task.corrupt(clean)


def route(known: Known) -> list[tuple[str, str, str]]:
    """The edges of a model with one way to the answer; what the corruption changes enters at the key."""
    found = known.finding
    if found.label == "induction":  # block and role of each mixer on the way
        readers = [(found.stored_by, "key"), (found.layer, str(found.stored_at))]
    elif found.label == "pointer":
        readers = [(found.found_by, "key"), (found.layer, "query")]
    else:
        readers = [(found.layer, "key")]
    senders = ["blocks.0.input", *(f"blocks.{block}.mixer.output" for block, _ in readers)]
    into = [(f"blocks.{block}.norm1", role) for block, role in readers]
    return [(site, *end) for site, end in zip(senders, [*into, ("norm", "query")], strict=True)]


SINGLE = [
    known for known in MECHANISMS
    if known.finding.label in ("induction", "pointer", "direct_retrieval", "conv_association")
    and known.recipe not in ("two_stores", "split_store")
    and (known.recipe, known.options.get("offset", 0)) not in (("conv_direct", 1), ("conv_direct", 2))  # inside a mixer
]  # fmt: skip


@pytest.mark.parametrize("level", ["nodes", "edges"])
@pytest.mark.parametrize("known", SINGLE, ids=lambda known: known.title)
def test_the_true_circuit_has_the_largest_scores(known: Known, level: str) -> None:
    task, clean, corrupted = documents(4)
    lm = handmade(known.recipe, task, **known.options)
    stored = [str(known.finding.stored_at)] if known.finding.stored_at else []
    roles = list(dict.fromkeys([*stored, "key", "value", "divider", "query"]))
    found = me.circuit(lm, clean, corrupted, level=level, roles=roles, random=0)
    edges = route(known)
    true = edges if level == "edges" else [(site, role) for site, _, role in edges]
    assert found.auroc(true) == 1.0
    assert found.scores["score"].iloc[len(true) - 1] > 0.5  # without any of them, the answer is lost


@pytest.mark.parametrize("level", ["nodes", "edges"])
def test_random_circuits_are_worse(level: str) -> None:
    task, clean, corrupted = documents(6)
    found = me.circuit(handmade("induction", task), clean, corrupted, level=level)
    assert found.p < 0.01
    assert len(found.random_cprs) == 100
    assert found.cpr > max(found.random_cprs)
    assert found.curve["size"].tolist() == list(SIZES)
    assert found.curve["faithfulness"].iloc[-1] == pytest.approx(1)
    by_hand = sum((b - a) * (f + g) / 2 for a, b, f, g in zip(
        SIZES, SIZES[1:], found.curve["faithfulness"], found.curve["faithfulness"][1:], strict=False))  # fmt: skip
    assert found.cpr == pytest.approx(by_hand)
    assert found.cmd < 0.2  # the first few nodes or edges say all


def test_a_few_nodes_among_few_are_found_by_chance_and_edges_are_not() -> None:
    """Of two nodes among 15, one order in 35 has both among its first three, however many orders are drawn."""
    task, clean, corrupted = documents(6)
    lm, roles = handmade("direct", task, layer=0), ["key", "value", "divider", "query"]
    nodes = me.circuit(lm, clean, corrupted, roles=roles, random=1000)
    assert nodes.least_p == pytest.approx(1 / 35)
    assert nodes.p == pytest.approx(1 / 35, abs=0.02)  # four standard deviations of 1000 draws
    edges = me.circuit(lm, clean, corrupted, level="edges", roles=roles, random=200)
    assert edges.least_p == pytest.approx(1 / 145)  # two edges of 30
    assert edges.p < 0.01


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_and_none_are_the_clean_and_the_corrupted_run(variant: str) -> None:
    """And a circuit without one node is the clean run with what the node says in the corrupted one."""
    lm, (clean, corrupted) = small_lm(variant).double(), pairs(4)
    where = {"value": clean.roles["value"]}
    run = circuits._Runs(lm, clean, corrupted, Wiring.of(lm), where, MEASURES["likelihood"], 64)
    members = circuits._members(Wiring.of(lm), ["value", "elsewhere"], "nodes")
    node = members.index((1, None, 0))  # the mixer of block 0 at the value
    sets = [[], range(len(members)), [i for i in range(len(members)) if i != node]]
    none, whole, less = run(run.masks(sets, members))
    wanted = me.interchange(
        lm, clean, corrupted, ["blocks.0.mixer.output"], ["value"], direction="destroy", per_document=True
    )[["corrupted", "original", "restored"]].mean()
    assert (none, whole) == pytest.approx((wanted["corrupted"], wanted["original"]), abs=1e-9)
    assert less == pytest.approx(wanted["restored"], abs=1e-9)


def test_edges_of_a_linear_model_add_up() -> None:
    model, (clean, corrupted) = Linear(), pairs(6)
    given = {"wiring": LINEAR, "measure": "logit", "random": 5, "roles": ["key"]}
    edges = me.circuit(model, clean, corrupted, level="edges", **given).scores  # type: ignore[arg-type]
    nodes = me.circuit(model, clean, corrupted, level="nodes", **given).scores  # type: ignore[arg-type]
    sums = edges.groupby(["site", "role"])["score"].sum()
    for site, role, score in nodes[["site", "role", "score"]].itertuples(index=False):
        assert sums[site, role] == pytest.approx(score, abs=1e-9)
    assert nodes["score"].abs().max() > 1e-3


def test_errors_name_the_choices() -> None:
    lm, (clean, corrupted) = small_lm("attention"), pairs(2)
    with pytest.raises(UserError, match="unknown level 'node'"):
        me.circuit(lm, clean, corrupted, level="node")
    with pytest.raises(UserError, match="wiring=Wiring"):
        me.circuit(Linear(), clean, corrupted)
    with pytest.raises(UserError, match="nothing to explain"):
        me.circuit(lm, clean, clean)
    with pytest.raises(UserError, match="unknown module 'final'"):
        me.circuit(Linear(), clean, corrupted, wiring=LINEAR._replace(last="final"))
    task, clean, corrupted = documents(2)
    found: Circuit = me.circuit(handmade("direct", task), clean, corrupted, random=0)
    with pytest.raises(UserError, match=r"give members as \(site, role\)"):
        found.auroc([("blocks.0.input", "kee")])
    assert not torch.is_inference_mode_enabled()
