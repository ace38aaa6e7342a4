"""Models of Hugging Face transformers, as they come: their answers have `.logits`, their sites are their own names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mecheval as me
from intervene.models import ROUNDED, pairs, small_task
from lazily import transformers
from mecheval.intervene import Wiring, Zero


@pytest.fixture
def gpt2() -> torch.nn.Module:
    """A tiny GPT-2 in training mode, with dropout, and weights far from their start."""
    config = transformers.GPT2Config(
        vocab_size=small_task().vocab_size, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=2, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model.train()


def test_interchange_and_ablation(gpt2: torch.nn.Module) -> None:
    clean, corrupted = pairs(12)
    sites = [f"transformer.h.{i}.{end}" for i in range(2) for end in ("input", "output")]
    sites += ["transformer.h.0.attn", "transformer.output"]
    roles = ["key", "value", "query", "between"]
    found = me.interchange(gpt2, clean, corrupted, sites, roles, direction="both")
    after = found.set_index(["direction", "site", "role"])["restored"]
    original, lost = found["original"].iloc[0], found["corrupted"].iloc[0]
    assert abs(original - lost) > 1e-3
    for direction, own, other in (("restore", lost, original), ("destroy", original, lost)):
        assert after[direction, "transformer.h.0.input", "key"] == pytest.approx(other, abs=ROUNDED)
        for role in roles:  # the last answer of the body is a mapping; only what stands at the query still matters
            seen = after[direction, "transformer.output", role]
            assert seen == pytest.approx(other if role == "query" else own, abs=ROUNDED)
            same = after[direction, "transformer.h.1.input", role]
            assert after[direction, "transformer.h.0.output", role] == pytest.approx(same, abs=ROUNDED)
    dropped = me.ablate(gpt2, clean, Zero(), sites, ["key", "query"]).set_index(["site", "role"])["drop"]
    assert dropped["transformer.output", "key"] == pytest.approx(0, abs=ROUNDED)
    assert abs(dropped["transformer.output", "query"]) > 1e-3
    assert gpt2.training  # as it came


def test_other_documents_and_places_together(gpt2: torch.nn.Module) -> None:
    clean, _ = pairs(12)
    swapped = small_task().corrupt(clean, kind="swap")
    hits = me.interchange(gpt2, clean, swapped, ["transformer.h.0.input"], ["value"], direction="destroy")["hits"]
    assert 0 <= hits.iloc[0] <= 1
    both = [("transformer.h.1.output", "query"), ("transformer.h.0.output", "key")]
    joint = me.interchange(gpt2, clean, swapped, joint=both).iloc[0]
    assert joint["restored"] == pytest.approx(joint["original"], abs=ROUNDED)
    with pytest.raises(me.errors.UserError, match=r"unknown site 'transformer.h.0.outptu'. Did you mean"):
        me.ablate(gpt2, clean, Zero(), ["transformer.h.0.outptu"])


@pytest.fixture
def mamba() -> torch.nn.Module:
    """A tiny Mamba with weights far from their start."""
    config = transformers.MambaConfig(
        vocab_size=small_task().vocab_size, hidden_size=16, state_size=4, num_hidden_layers=2, initializer_range=0.5,
        use_mambapy=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model: torch.nn.Module = transformers.MambaForCausalLM(config)
    return model.eval()


GPT2_WIRING = Wiring(
    "transformer.drop.output",
    tuple((f"transformer.h.{i}.{norm}", f"transformer.h.{i}.{part}.output")
          for i in range(2) for norm, part in (("ln_1", "attn"), ("ln_2", "mlp"))),
    "transformer.ln_f",
)  # fmt: skip
MAMBA_WIRING = Wiring(
    "backbone.embeddings.output",
    tuple((f"backbone.layers.{i}.norm", f"backbone.layers.{i}.mixer.output") for i in range(2)),
    "backbone.norm_f",
)
CASES = pytest.mark.parametrize(
    ("name", "wiring", "inside"),
    [
        ("gpt2", GPT2_WIRING, [f"transformer.h.{i}.attn.{part}" for i in range(2)
                               for part in ("c_attn.output.part.0/3", "c_proj.input.part.1/2")]),
        ("mamba", MAMBA_WIRING, ["backbone.layers.0.mixer.conv1d.output", "backbone.layers.1.mixer.conv1d.output"]),
    ],
)  # fmt: skip


@CASES
def test_all_kinds(name: str, wiring: Wiring, inside: list[str], request: pytest.FixtureRequest) -> None:
    """Heads or convolutions, estimates, paths and circuits agree with each other where they must."""
    model, (clean, corrupted) = request.getfixturevalue(name), pairs(6)
    model.eval()
    first, roles = wiring.writers[1], ["key", "value", "query"]
    sites = [*wiring.writers, *inside]
    exact = me.interchange(model, clean, corrupted, sites, roles).set_index(["site", "role"])
    assert exact.loc[inside, "attribution"].abs().max() > 1e-5  # they are reached
    many = me.attribute(model, clean, corrupted, [first, *inside], ["value"], steps=20)
    many = many.set_index(["site", "role"])["attribution"]
    assert (many - exact.loc[many.index, "attribution"]).abs().max() < 0.05 * exact["attribution"].abs().max()
    estimate = me.attribute(model, clean, corrupted, sites, roles, along="inputs", inputs=wiring.embedding, steps=2)
    assert estimate["site"].tolist() == exact.reset_index()["site"].tolist()
    last = f"{wiring.last}.input"
    direct = me.path(model, clean, corrupted, wiring.writers[-1:], [last], ["query"], frozen=wiring.writers[1:])
    own = exact.loc[(wiring.writers[-1], "query"), "restored"]
    assert direct["restored"].iloc[0] == pytest.approx(own, abs=ROUNDED)  # only the head comes after the last part


@pytest.mark.parametrize(
    ("name", "wiring", "receiver", "count"),
    [
        ("gpt2", GPT2_WIRING, "transformer.h.1.attn.c_attn", 3),
        ("mamba", MAMBA_WIRING, "backbone.layers.1.mixer.in_proj", 2),
    ],
)
def test_paths_to_queries_keys_and_values(
    name: str, wiring: Wiring, receiver: str, count: int, request: pytest.FixtureRequest
) -> None:
    """From layer 0's mixer to one part of a projection of layer 1, with plain hooks: queries, keys or values."""
    model, (clean, corrupted), sender = request.getfixturevalue(name).eval(), pairs(6), wiring.writers[1]
    parts = [f"{receiver}.output.part.{i}/{count}" for i in range(count)]
    everywhere = {"all": torch.arange(int(clean.predict_at[0, 0]) + 1).expand(6, -1)}
    found = me.path(model, clean, corrupted, [sender], parts, everywhere, frozen=wiring.writers[1:])
    still = {**me.capture(model, corrupted, wiring.writers[1:]), **me.capture(model, clean, [sender])}

    def says(x: torch.Tensor) -> Any:
        return lambda _, given, out: (x, *out[1:]) if isinstance(out, tuple) else x

    hooks = [model.get_submodule(site.removesuffix(".output")).register_forward_hook(says(x))
             for site, x in still.items()]  # fmt: skip
    [got] = me.capture(model, corrupted, [f"{receiver}.output"]).values()
    for hook in hooks:
        hook.remove()
    [lost] = me.capture(model, corrupted, [f"{receiver}.output"]).values()
    for i in range(count):
        mixed = [
            own if i == j else old
            for j, (own, old) in enumerate(zip(*(x.chunk(count, 2) for x in (got, lost)), strict=True))
        ]
        hook = model.get_submodule(receiver).register_forward_hook(says(torch.cat(mixed, 2)))
        with torch.no_grad():
            logits = model(corrupted.tokens).logits[torch.arange(6), clean.predict_at[:, 0]].double()
        hook.remove()
        wanted = float(logits.softmax(-1)[torch.arange(6), clean.answers].mean())
        assert found["restored"].iloc[i] == pytest.approx(wanted, abs=ROUNDED)
    assert found["attribution"].abs().min() > 10 * ROUNDED  # each part says something of its own


@CASES
def test_circuits(name: str, wiring: Wiring, inside: list[str], request: pytest.FixtureRequest) -> None:
    """Scores are what patching takes away, at both levels; curves end at the whole model, areas are under them."""
    model, (clean, corrupted), roles = request.getfixturevalue(name), pairs(6), ["key", "value", "query"]
    model.eval()
    known = me.interchange(model, clean, corrupted, wiring.writers[:1], roles).iloc[0]
    if known["original"] < known["corrupted"]:  # of random weights, take as clean what has the larger likelihood
        clean, corrupted = replace(corrupted, answers=clean.answers), replace(clean, answers=clean.answers)
    taken = me.interchange(model, clean, corrupted, wiring.writers, roles, direction="destroy")
    exact = taken.set_index(["site", "role"])["attribution"]
    levels = {
        level: me.circuit(model, clean, corrupted, level=level, wiring=wiring, random=200, roles=roles)
        for level in ("nodes", "edges")
    }
    nodes = levels["nodes"].scores.set_index(["site", "role"])["score"]
    for place in exact.index:
        assert nodes[place] == pytest.approx(exact[place], abs=ROUNDED)
    edges = levels["edges"].scores.set_index(["site", "receiver", "role"])["score"]
    last = (wiring.writers[-1], wiring.last, "query")  # the only edge from there
    assert edges[last] == pytest.approx(nodes[last[0], "query"], abs=ROUNDED)
    readers = len(wiring.readers)
    assert len(edges) == 4 * (readers + sum(range(readers)))  # roles and elsewhere: every later reader of every writer
    for found in levels.values():
        size, kept = (found.curve[name].to_numpy() for name in ("size", "faithfulness"))
        assert len(size) == 10
        assert kept[-1] == pytest.approx(1, abs=ROUNDED)
        assert found.cpr == pytest.approx(np.trapezoid(kept, size), abs=0.01)
        assert found.cmd == pytest.approx(np.trapezoid(abs(1 - kept), size), abs=0.01)
        assert found.p == pytest.approx((1 + sum(cpr >= found.cpr for cpr in found.random_cprs)) / 201)
        assert found.p < 0.01
