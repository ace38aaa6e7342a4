"""`path` and `attribute` give what chains of pyvene's interventions give, on our models and on a GPT-2.

pyvene has neither, but both can be said in its terms: a path as two runs, the first of which collects what the receiver
gets while everything else is frozen; a gradient as that of the answer by an activation that pyvene puts in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mecheval as me
from intervene.models import pairs, small_lm, small_task
from lazily import pyvene, transformers
from mecheval.types import Batch

EXACT = 1e-9
"""Models compute in double precision, so that agreement says something about every digit of single precision."""
ROLES = ("key", "value", "query")
STEPS = 3


class Answers(nn.Module):
    """A copy of a model as pyvene calls models: by keyword, with a config and a device. Gives likelihoods (n,)."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.model, self.batch = deepcopy(model).eval(), batch
        self.config, self.device = None, batch.tokens.device

    def forward(self, input_ids: Tensor) -> Tensor:
        answer = self.model(input_ids)
        logits, rows = getattr(answer, "logits", answer), torch.arange(len(input_ids))
        likelihoods: Tensor = logits[rows, self.batch.predict_at[:, 0]].softmax(-1)[rows, self.batch.answers]
        return likelihoods


class Case:
    """A model with its documents, and where paths lead in it."""

    def __init__(self, model: nn.Module, inputs: str, senders: Sequence[str], receivers: Sequence[str],
                 frozen: Sequence[str]) -> None:  # fmt: skip
        self.model, self.inputs = model.double().eval(), inputs
        self.senders, self.receivers, self.frozen = senders, receivers, frozen
        self.clean, self.corrupted = pairs(6)
        self.answers = Answers(self.model, self.clean)
        length = self.clean.tokens.shape[1]
        self.everywhere = [list(range(length))] * len(self.clean)

    def at(self, role: str) -> list[list[int]]:
        return [[place] for place in self.clean.roles[role].tolist()]

    def pyvene(self, interventions: Sequence[tuple[str, Any]]) -> Any:
        """pyvene's model with an intervention at each of these sites."""
        named = [
            {"component": re.sub(r"\.(\d+)", r"[\1]", f"model.{site}"), "unit": "pos", "intervention": intervention}
            for site, intervention in interventions
        ]
        return pyvene.IntervenableModel(pyvene.IntervenableConfig(named), self.answers)

    def seen(self, batch: Batch, site: str, at: list[list[int]]) -> Tensor:
        """(n, places, D): what pyvene collects at a site."""
        (_, [found]), _ = self.pyvene([(site, pyvene.CollectIntervention())])(
            {"input_ids": batch.tokens}, [None], {"sources->base": ([None], [at])}
        )
        values: Tensor = found.detach()
        return values

    def given(self, places: dict[str, tuple[Any, list[list[int]], Tensor]]) -> Tensor:
        """Likelihoods (n,) of the corrupted documents with activations put in: site -> intervention, places, values."""
        model = self.pyvene([(site, intervention) for site, (intervention, _, _) in places.items()])
        values = dict(zip(model.interventions, [value for _, _, value in places.values()], strict=True))
        found: Tensor = model(
            {"input_ids": self.corrupted.tokens},
            unit_locations={"base": [at for _, at, _ in places.values()]},
            source_representations=values,
        )[1]
        return found

    def through(self, sender: str, role: str, receiver: str) -> Tensor:
        """Likelihoods (n,) after patching the path from a sender to a receiver."""
        own, base, at = {"input_ids": self.clean.tokens}, {"input_ids": self.corrupted.tokens}, self.at(role)
        still = [site for site in self.frozen if site != sender]
        kinds = [pyvene.VanillaIntervention() for _ in range(1 + len(still))]
        model = self.pyvene([*zip([sender, *still], kinds, strict=True), (receiver, pyvene.CollectIntervention())])
        places = [at, *[self.everywhere] * len(still)]
        (_, [got]), _ = model(
            base, [own, *[base] * len(still), None],
            {"sources->base": ([*places, None], [*places, self.everywhere])},
        )  # fmt: skip
        return self.given({receiver: (pyvene.VanillaIntervention(), self.everywhere, got)})


def ours(mixer: str) -> Case:
    lm = small_lm(mixer)
    frozen = [site for site in lm.sites() if site.part in ("mixer.output", "mlp.output")]
    receivers = ["blocks.1.mixer.input", "blocks.1.output"]
    return Case(lm, "blocks.0.input", ["blocks.0.mixer.output", "blocks.0.input"], receivers, frozen)


def gpt2() -> Case:
    config = transformers.GPT2Config(
        vocab_size=small_task().vocab_size, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=2, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    frozen = [f"transformer.h.{i}.{part}.output" for i in range(2) for part in ("attn", "mlp")]
    return Case(
        transformers.GPT2LMHeadModel(config), "transformer.drop.output",
        ["transformer.h.0.attn.output", "transformer.h.0.input"],
        ["transformer.h.1.ln_1.output", "transformer.ln_f.input"],  # pyvene changes inputs in place, and the stream so
        frozen,
    )  # fmt: skip


CASES = {"attention": lambda: ours("attention"), "mamba": lambda: ours("mamba"), "gpt2": gpt2}


@pytest.mark.parametrize("name", CASES)
def test_paths_equal_pyvene(name: str) -> None:
    case = CASES[name]()
    found = me.path(
        case.model, case.clean, case.corrupted, case.senders, case.receivers, ROLES, frozen=case.frozen
    ).set_index(["site", "role", "receiver"])  # fmt: skip
    moved = set[str]()
    with torch.no_grad():
        for (sender, role, receiver), row in found.iterrows():
            theirs = float(case.through(sender, role, receiver).mean())
            assert row["restored"] == pytest.approx(theirs, abs=EXACT), (sender, role, receiver)
            moved |= {receiver} if abs(theirs - row["corrupted"]) > 1000 * EXACT else set()
    assert moved == set(case.receivers)  # so that agreement says something about each


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("along", ["inputs", "sites"])
def test_attribution_equals_gradients_through_pyvene(name: str, along: str) -> None:
    case = CASES[name]()
    site = case.senders[0]
    inputs = None if isinstance(case.model, me.LM) or along == "sites" else case.inputs
    found = me.attribute(
        case.model, case.clean, case.corrupted, [site], ROLES, along=along, steps=STEPS, inputs=inputs
    ).set_index("role")  # fmt: skip
    start, end = (case.seen(batch, case.inputs, case.everywhere) for batch in (case.corrupted, case.clean))
    for role in ROLES:
        at = case.at(role)
        before, after = (case.seen(batch, site, at) for batch in (case.corrupted, case.clean))
        total = torch.zeros(len(case.clean), dtype=torch.float64)
        for share in ((step + 0.5) / STEPS for step in range(STEPS)):
            if along == "inputs":  # nothing is added at the site, but it has a gradient there
                leaf = torch.zeros_like(before).requires_grad_()
                line = (pyvene.VanillaIntervention(), case.everywhere, torch.lerp(start, end, share))
                likelihood = case.given({case.inputs: line, site: (pyvene.AdditionIntervention(), at, leaf)})
            else:
                leaf = torch.lerp(before, after, share).requires_grad_()
                likelihood = case.given({site: (pyvene.VanillaIntervention(), at, leaf)})
            [slope] = torch.autograd.grad(likelihood.sum(), leaf)
            total += ((after - before) * slope).sum((1, 2)) / STEPS
        assert found.loc[role, "attribution"] == pytest.approx(float(total.mean()), abs=EXACT), role
    assert found["attribution"].abs().max() > 1e-4
