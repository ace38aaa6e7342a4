"""Circuits: the parts of a model, and the connections between them, that are sufficient for its answer.

The parts of a model read the residual stream and write to it. In a circuit of nodes, a part outside the circuit writes
what it writes in the corrupted run, at the positions of one role. In a circuit of edges, a reader gets the stream of
the corrupted run, plus the changes of those writers from which an edge of the circuit leads to it. So a circuit of
nodes is also a circuit of edges: all edges that leave its nodes.

Faithfulness is the share of the answer that a circuit keeps: 0 for the empty circuit, which is the corrupted run, 1 for
the whole model. Circuits are grown in the order of their nodes' or edges' scores to the ten sizes of the MIB benchmark
(Mueller et al., 2025, arXiv 2504.13151): CPR is the area under faithfulness over size, CMD the area between it and 1.

n documents, L tokens, D width; P circuits in one pass; W writers, R readers, C classes of positions: the roles, and all
other positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError, shown
from mecheval.intervene.answering import answering, evaluating
from mecheval.intervene.effects import BUDGET_MB, check_same, cut_after_prediction, document_slices
from mecheval.intervene.places import Listener, Roles, attach_hook, listening, positions
from mecheval.intervene.reading import MEASURES, Measure, likelihood
from mecheval.model import LM
from mecheval.ops.queries import take
from mecheval.types import NOWHERE, Batch, joined

if TYPE_CHECKING:
    import pandas as pd

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Sizes of circuits as shares of all nodes or edges, as in the benchmark."""
LEVELS = ("nodes", "edges")
RANDOM = 100
"""Default number of random circuits for comparison, with which the smallest p value is just below 0.01."""
ELSEWHERE = "elsewhere"
"""The class of positions without a role."""


Numbers = np.ndarray[tuple[int, ...], np.dtype[Any]]
Heard = Callable[[str, Tensor], Tensor]  # name of a reader or writer, its activation -> the activation to use


class Wiring(NamedTuple):
    """What writes to the residual stream of a model, and what reads it."""

    embedding: str  # the site with which the stream begins
    parts: tuple[tuple[str, str], ...]  # for each part, the module that reads the stream and the site that it adds
    last: str  # the module that reads the stream for the head

    @classmethod
    def of(cls, lm: LM) -> Wiring:
        """The wiring of an `LM`: its norms read, its mixers and MLPs write."""
        sites = set(lm.sites())
        parts = ((i, *each) for i in range(lm.n_layers) for each in (("norm1", "mixer"), ("norm2", "mlp")))
        there = ((f"blocks.{i}.{norm}", f"blocks.{i}.{part}.output") for i, norm, part in parts)
        return cls("blocks.0.input", tuple(pair for pair in there if pair[1] in sites), "norm")

    @property
    def writers(self) -> list[str]:
        """The sites that are added to the stream, in order."""
        return [self.embedding, *(writes for _, writes in self.parts)]

    @property
    def readers(self) -> list[str]:
        """The modules that read the stream, in order."""
        return [*(reads for reads, _ in self.parts), self.last]


@dataclass(frozen=True, eq=False)
class Circuit:
    """Nodes or edges by their scores, and how faithful circuits of them are."""

    scores: pd.DataFrame  # site, role, receiver (edges only), score (what the answer loses without it); best first
    curve: pd.DataFrame  # size, kept (nodes or edges), faithfulness, random (mean over random circuits)
    cpr: float
    cmd: float
    p: float  # the share of random circuits, counting this one, whose CPR is at least as large
    whole: float  # what the corruption takes from the answer: the scale of the scores
    random_cprs: list[float] = field(repr=False)

    @property
    def least_p(self) -> float:
        """The share of all orders that hold what the answer cannot do without by the same size: `p` tends to no less.

        That is every node or edge whose loss takes more than half of the answer. Few of them among few in all are found
        by chance now and then, however many random circuits are drawn.
        """
        score, kept = self.scores["score"].to_numpy(), self.curve["kept"].to_numpy()
        needed = int((score > self.whole / 2).sum())
        by = int(kept[kept >= needed].min())
        return math.comb(len(score) - needed, by - needed) / math.comb(len(score), by)

    def auroc(self, true: Sequence[tuple[str, ...]]) -> float:
        """How well the scores separate `true` members, (site, role) or (site, receiver, role) each, from the others.

        It is the probability that a true member has a larger score than another one; ties count half.
        """
        names = [name for name in ("site", "receiver", "role") if name in self.scores]
        rows = list(self.scores[names].itertuples(index=False, name=None))
        if not true or any(tuple(each) not in rows for each in true):
            raise UserError(f"auroc: give members as ({', '.join(names)}) that the scores have (got {shown(true)}).")
        inside = np.array([row in set(map(tuple, true)) for row in rows])
        score = self.scores["score"].to_numpy()
        apart = score[inside][:, None] - score[~inside]
        return float(((apart > 0) + 0.5 * (apart == 0)).mean())


def circuit(
    model: nn.Module,
    clean: Batch,
    corrupted: Batch,
    *,
    level: str = "nodes",
    roles: Roles | None = None,
    wiring: Wiring | None = None,
    measure: str = "likelihood",
    random: int = RANDOM,
    seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> Circuit:
    """Score every node or edge by what the answer loses without it, grow circuits, and compare with random ones.

    A node is what one part of the model writes at the positions of one role (`level="nodes"`), an edge what one other
    part reads of that (`level="edges"`). `roles` are, by default, all that the documents have; what is left is the
    class "elsewhere", and of several roles at one position the first counts. `wiring` says what reads and writes in a
    module that is not an `LM`. `random` circuits are nested sets of the same sizes, in random order by `seed`.
    """
    check_same(clean, corrupted)
    for what, name, known in (("level", level, LEVELS), ("measure", measure, tuple(MEASURES))):
        if name not in known:
            raise UnknownName(what, name, known)
    if random < 0:
        raise UserError(f"circuit: random must not be negative (got {random}).")
    model = answering(model)
    if wiring is None:
        if not isinstance(model, LM):
            raise UserError("circuit: say what reads and writes in a module that is not an LM: `wiring=Wiring(...)`.")
        wiring = Wiring.of(model)
    where = positions(clean, list(clean.roles) if roles is None else roles, seed)
    run = _Runs(model, clean, corrupted, wiring, where, MEASURES[measure], budget_mb)
    members = _members(wiring, [*where, ELSEWHERE], level)
    all_of_it = run.masks([range(len(members))], members)[0]
    without = run.masks([[m for m in range(len(members)) if m != left] for left in range(len(members))], members)
    (none, whole), lost = run([torch.zeros_like(all_of_it), all_of_it]), run(without)
    if whole - none < 1e-6:
        raise UserError("circuit: the corruption takes nothing from the answer, so there is nothing to explain.")
    scores = whole - lost
    order = np.argsort(-scores, kind="stable")
    kept = [int(size * len(members)) for size in SIZES]
    draw = np.random.default_rng(seed)
    orders = [order, *(draw.permutation(len(members)) for _ in range(random))]
    every = {frozenset(nodes[:k].tolist()) for nodes in orders for k in kept}  # many orders begin with the same
    sets = sorted(map(sorted, every))
    found = dict(zip(map(frozenset, sets), run(run.masks(sets, members)), strict=True))
    found |= {frozenset(): none, frozenset(range(len(members))): whole}
    curves = np.array([[found[frozenset(nodes[:k].tolist())] for k in kept] for nodes in orders])
    curves = (curves - none) / (whole - none)
    cprs = np.trapezoid(curves, SIZES, axis=1)
    at_least = 1 + int((cprs[1:] >= cprs[0]).sum())
    return Circuit(
        _score_table(wiring, members, [*where, ELSEWHERE], scores, order),
        _curve_table(kept, curves),
        float(cprs[0]),
        float(np.trapezoid(np.abs(1 - curves[0]), SIZES)),
        at_least / (1 + random),
        float(whole - none),
        cprs[1:].tolist(),
    )


Member = tuple[int, int | None, int]  # writer, reader (None: all), class of positions


def _members(wiring: Wiring, classes: Sequence[str], level: str) -> list[Member]:
    """All nodes, or all edges from a writer to a later reader."""
    writers, readers = len(wiring.writers), len(wiring.readers)
    if level == "nodes":
        return [(w, None, c) for w in range(writers) for c in range(len(classes))]
    return [(w, r, c) for w in range(writers) for r in range(w, readers) for c in range(len(classes))]


class _Runs:
    """Runs documents through circuits: masks (R, W, C) -> the mean measure of each."""

    def __init__(
        self, model: nn.Module, clean: Batch, corrupted: Batch, wiring: Wiring, where: dict[str, Tensor],
        measure: Measure, budget_mb: float,
    ) -> None:  # fmt: skip
        self.model, self.clean, self.corrupted, self.wiring = model, clean, corrupted, wiring
        self.measure, self.budget_mb = measure, budget_mb
        self.classes = _classes(clean, where)  # (n, L)
        self.shape = len(wiring.readers), len(wiring.writers), len(where) + 1

    def masks(self, sets: Sequence[Sequence[int] | range | Numbers], members: Sequence[Member]) -> list[Tensor]:
        """The edges (R, W, C) of each set of members, which are given by their numbers."""
        found = []
        for some in sets:
            mask = np.zeros(self.shape, dtype=np.float32)  # not of torch, in which to write one number takes far longer
            for writer, reader, kind in (members[int(i)] for i in some):
                mask[slice(None) if reader is None else reader, writer, kind] = 1
            found.append(torch.from_numpy(mask))
        return found

    @torch.no_grad()
    def __call__(self, masks: Sequence[Tensor]) -> Numbers:
        """The mean measure over documents (circuits,)."""
        sums = torch.zeros(len(masks), dtype=torch.float64)
        with evaluating(self.model):
            slices = document_slices(self.model, self.clean, self.budget_mb / 2)
            for rows in slices:
                own, base = (cut_after_prediction(batch[rows]) for batch in (self.clean, self.corrupted))
                classes = self.classes[rows, : own.tokens.shape[1]]
                streams, said = self._observe(base)
                at_once = max(1, slices[0].stop // len(own))  # circuits, each with all of these documents
                for first in range(0, len(masks), at_once):
                    some = [mask.to(classes.device)[:, :, classes] for mask in masks[first : first + at_once]]
                    found = self._run(joined([own] * len(some)), torch.cat(some, 2), streams, said)
                    sums[first : first + len(some)] += found.view(len(some), -1).sum(1)
        return (sums / len(self.clean)).numpy()

    def _observe(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The inputs of readers and the outputs of writers in a run."""
        streams: dict[str, Tensor] = {}
        said: dict[str, Tensor] = {}
        self._pass(batch, lambda name, x: streams.setdefault(name, x), lambda name, x: said.setdefault(name, x))
        return streams, said

    def _run(self, clean: Batch, edges: Tensor, streams: dict[str, Tensor], said: dict[str, Tensor]) -> Tensor:
        """The measure (P n,) of n documents, P times over, if readers hear only along these edges (R, W, P n, L)."""
        changes: list[Tensor] = []

        def spread(x: Tensor) -> Tensor:
            return x.repeat(len(clean) // len(x), *[1] * (x.ndim - 1))

        def wrote(name: str, x: Tensor) -> Tensor:
            changes.append(x - spread(said[name]))
            return x

        def reads(name: str, x: Tensor) -> Tensor:
            heard = edges[self.wiring.readers.index(name)]
            changed = sum((heard[w, ..., None] * change for w, change in enumerate(changes)), torch.zeros(()).to(x))
            if x.shape[1] != streams[self.wiring.readers[0]].shape[1]:  # the head reads where it answers
                changed = take(changed, clean.predict_at[:, :1])
            return spread(streams[name]) + changed

        return self._pass(clean, reads, wrote)

    def _pass(self, batch: Batch, reads: Heard, wrote: Heard) -> Tensor:
        """Run documents, passing all that is read and written through `reads` and `wrote`, which may change it."""
        modules = dict(self.model.named_modules())
        with ExitStack() as stack:
            stack.enter_context(listening(self.model, {name: _named(wrote, name) for name in self.wiring.writers}))
            for name in self.wiring.readers:
                if name not in modules:
                    raise UnknownName("module", name, modules)
                stack.callback(attach_hook(modules[name], True, _named(reads, name)))
            return likelihood(self.model, batch, self.measure)


def _named(heard: Heard, name: str) -> Listener:
    return lambda x: heard(name, x)


def _classes(batch: Batch, where: dict[str, Tensor]) -> Tensor:
    """(n, L): the number of the first role of a position, or that of the class `elsewhere`."""
    found = torch.full_like(batch.tokens, len(where))
    for number, at in reversed(list(enumerate(where.values()))):
        each = at.view(len(batch), -1)
        rows = torch.arange(len(batch), device=at.device)[:, None].expand_as(each)
        found[rows[each != NOWHERE], each[each != NOWHERE]] = number
    return found


def _score_table(
    wiring: Wiring, members: Sequence[Member], classes: Sequence[str], scores: Numbers, order: Numbers
) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {"site": wiring.writers[writer], **({} if reader is None else {"receiver": wiring.readers[reader]}),
         "role": classes[kind], "score": float(score)}
        for (writer, reader, kind), score in zip(members, scores, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(rows).iloc[order].reset_index(drop=True)


def _curve_table(kept: Sequence[int], curves: Numbers) -> pd.DataFrame:
    import pandas as pd

    random = curves[1:].mean(0) if len(curves) > 1 else np.full(len(kept), np.nan)
    return pd.DataFrame({"size": SIZES, "kept": kept, "faithfulness": curves[0], "random": random})
