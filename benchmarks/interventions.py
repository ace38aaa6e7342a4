"""A grid of interchange interventions against pyvene: 64 documents of the paper's AR, d 64, 2 layers.

Inputs and outputs of every block, mixer and MLP, each at five roles; both give the same restored likelihoods, which is
checked first. For every intervention pyvene runs the clean and the corrupted documents anew (a third run, without the
intervention, it makes only when asked, and is not asked). The second row of a mixer spares it the head everywhere but
at the query. Documents are cut after the query for both. A ratio above 1 means that ours is faster.

The other rows are about trained models: the grid together with the verdict against pyvene, which has none, and the
grid and the evidence for a verdict against the grid alone, on 64 and on 320 documents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mecheval as me
from benchmarks.harness import Row, interleaved, show

MIXERS = ("attention", "mamba")
ROLES = ("key", "value", "next_key", "divider", "query")
ENDS = ("input", "output", "mixer.input", "mixer.output", "mlp.input", "mlp.output")
DOCUMENTS = 64
BOTH = 2.1
"""How many times the time of one direction both may take."""
SWEPT, SWEEP_MS = ("mamba", "delta_net"), 2000.0
"""Mixers whose states are replaced after every position of all documents, and the time that this may take."""
JUDGED = 3.0
"""How many times as long as our grid with the verdict pyvene may be expected to take without one."""
WITH_EVIDENCE = 1.5
"""How many times the time of the grid alone the grid and the evidence for a verdict may take."""
SIZES = (DOCUMENTS, 320)
"""Numbers of documents of these two comparisons' grids; 320 are the paper's."""
EPS = torch.finfo(torch.float32).eps


class Hooked(nn.Module):
    """An `LM` as pyvene calls models: by keyword, with a config and a device. Gives logits (n, V) at the queries.

    It is a copy, because pyvene freezes what it is given. With `narrow`, the head is computed at the queries only; the
    blocks never are, because pyvene's hooks count positions from the start of the document.
    """

    def __init__(self, lm: me.LM, at: Tensor, narrow: bool) -> None:
        super().__init__()
        self.lm, self.at, self.narrow = deepcopy(lm), at, narrow
        self.config, self.device = None, at.device

    def forward(self, input_ids: Tensor) -> Tensor:
        """(n, L) -> (n, V)."""
        rows = torch.arange(len(input_ids))
        if not self.narrow:
            logits: Tensor = self.lm(input_ids)[rows, self.at]
            return logits
        h = self.lm.embedded(input_ids)
        for block in self.lm.blocks:
            h = block(h)
        return F.linear(self.lm.norm(h[rows, self.at]), self.lm.embed.weight)


def grid(lm: me.LM) -> list[str]:
    """The sites of an `LM` that are inputs or outputs of its modules, which is where pyvene can hook."""
    return [site for site in lm.sites() if site.split(".", 2)[2] in ENDS]


@torch.no_grad()
def pyvene_restored(
    lm: me.LM, clean: me.Batch, corrupted: me.Batch, sites: Sequence[str], roles: Sequence[str], *, narrow: bool = False
) -> Tensor:
    """Restored likelihoods (sites, roles, n), with a pyvene call for each site and role."""
    import pyvene

    model = Hooked(lm, clean.predict_at[:, 0], narrow)
    base, source = {"input_ids": corrupted.tokens}, {"input_ids": clean.tokens}
    restored = torch.empty(len(sites), len(roles), len(clean), dtype=torch.float64)
    for s, site in enumerate(sites):
        component = re.sub(r"^blocks\.(\d+)", r"lm.blocks[\1]", site)
        representation = {"component": component, "unit": "pos", "intervention": pyvene.VanillaIntervention()}
        intervenable = pyvene.IntervenableModel(pyvene.IntervenableConfig([representation]), model)
        for r, role in enumerate(roles):
            at = [[[place] for place in clean.roles[role].tolist()]]  # (interventions, documents, places)
            _, logits = intervenable(base, [source], {"sources->base": (at, at)})
            restored[s, r] = logits.log_softmax(-1)[torch.arange(len(clean)), clean.answers].double().exp()
    return restored


def our_restored(lm: me.LM, clean: me.Batch, corrupted: me.Batch, sites: Sequence[str], roles: Sequence[str]) -> Tensor:
    """The same by `interchange`."""
    rows = me.interchange(lm, clean, corrupted, sites, roles, per_document=True)
    return torch.from_numpy(rows["restored"].to_numpy().copy()).view(len(sites), len(roles), len(clean))


def noisy(lm: me.LM, std: float = 0.3) -> me.LM:
    """The model with noise on every parameter: at its start it finds all answers nearly equally likely."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(std * torch.randn(parameter.shape, generator=generator))
    return lm


def allowed(p: Tensor, size: float, terms: int) -> Tensor:
    """The difference that a likelihood p may show between two ways to compute it in single precision.

    A logit is a sum of `terms` products, the last after a norm, and may differ by δ = 8 √terms EPS times its size: two
    sums of n terms in different orders differ by no more, but for a chance of one in 10^13 (`rounding` in
    tests/ops/agreement.py). As log p = z_a - log Σ exp(z_v), its derivative by z_a is 1 - p, and those by all other
    logits add up to as much; so log p differs by up to 2 (1 - p) δ. Logarithm and exponential add a few EPS.
    """
    logit = 8 * math.sqrt(terms) * EPS * size
    return p * (2 * (1 - p) * logit + 4 * EPS)


def check(ours: Tensor, theirs: Tensor, lm: me.LM, *documents: me.Batch) -> None:
    """Raise an error unless the likelihoods differ by rounding only; logits are as large as without interventions."""
    with torch.no_grad():
        size = max(float(lm(each.tokens, at=each.predict_at[:, 0]).abs().max()) for each in documents)
    worst = (ours - theirs).abs() / allowed(theirs, size, lm.d_model)
    if not (worst <= 1).all():
        difference = float((ours - theirs).abs().max())
        raise AssertionError(
            f"restored likelihoods differ from pyvene's by up to {difference:.1e}, {float(worst.max()):.1f} times what "
            "rounding allows"
        )


def run() -> list[Row]:
    task = me.build_task("ar", preset="paper")
    documents = task.sample(DOCUMENTS, split="test")
    length = int(documents.predict_at.max()) + 1
    clean, corrupted = (
        replace(batch, tokens=batch.tokens[:, :length].contiguous()) for batch in (documents, task.corrupt(documents))
    )
    rows = []
    for mixer in MIXERS:
        lm = noisy(me.LM(task.vocab_size, 64, 2, mixer, seed=0))
        asked: tuple[Any, ...] = (lm, clean, corrupted, grid(lm), ROLES)
        ours = our_restored(*asked)
        for narrow in (False, True):
            check(ours, pyvene_restored(*asked, narrow=narrow), *asked[:3])
        times = interleaved(
            {
                "ours": partial(me.interchange, *asked),
                "pyvene": partial(pyvene_restored, *asked),
                "narrow": partial(pyvene_restored, *asked, narrow=True),
            },
            rounds=3,
        )
        name = f"{ours.shape[0] * ours.shape[1]} interventions on {mixer} against pyvene"
        rows.append(Row(name, times["ours"], times["pyvene"], 20.0))
        rows.append(Row(f"{name}, head at the query only", times["ours"], times["narrow"], None))
        both = partial(me.interchange, *asked, direction="both")
        times = interleaved({"one": partial(me.interchange, *asked), "both": both}, rounds=9, seconds=20)
        rows.append(Row(f"{mixer}: both directions against one", times["both"], times["one"], 1 / BOTH))
    for mixer in SWEPT:
        lm = noisy(me.LM(task.vocab_size, 64, 2, mixer, seed=0))
        times = interleaved({"ours": partial(me.state_sweep, lm, documents, task.corrupt(documents))}, rounds=5)
        rows.append(Row(f"{mixer}: states after every position against 2 s", times["ours"], SWEEP_MS, 1.0))
    return [*rows, *(row for mixer in MIXERS for row in judged(mixer))]


def judged(mixer: str) -> list[Row]:
    """What the verdict costs, on the trained model of width 64."""
    lm, task, rows = me.load_pretrained(f"ar-{mixer}-64"), me.build_task("ar", preset="paper"), []
    for n in SIZES:
        clean = task.sample(n, split="test")
        corrupted = task.corrupt(clean)
        asked: tuple[Any, ...] = (lm, clean, corrupted, grid(lm), ROLES)
        ways: dict[str, Callable[[], object]] = {
            "grid": partial(me.interchange, *asked),
            "evidence": partial(me.evidence, *asked[:3]),
            "verdict": partial(me.verdict, *asked[:3]),
        }
        if n == DOCUMENTS:
            check(our_restored(*asked), pyvene_restored(*asked, narrow=True), *asked[:3])
            ways["pyvene"] = partial(pyvene_restored, *asked, narrow=True)
        times = interleaved(ways, rounds=9, seconds=20)
        both = times["grid"] + times["evidence"]
        if "pyvene" in times:
            name = f"trained {mixer}: grid and verdict against pyvene, head at the query only"
            rows.append(Row(name, times["grid"] + times["verdict"], times["pyvene"], JUDGED))
        name = f"trained {mixer}, {n} documents: grid and evidence against the grid alone"
        rows.append(Row(name, both, times["grid"], round(1 / WITH_EVIDENCE, 2)))
    return rows


if __name__ == "__main__":
    show(run())
