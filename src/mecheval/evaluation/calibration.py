"""How often a verdict is right: hundreds of models whose mechanism is known are judged, and the labels are counted.

There are four kinds of models. Three of them recall nothing, so a verdict that names a mechanism is wrong:

- `untrained`: every mixer as initialised, and with its parameters multiplied by 1 + noise, so that it is confident of
  something.
- `shuffled`: every mixer, trained on documents whose answer is a random value of theirs, so that it learns to guess.
- `chance`: hand-set models that guess among the document's values.

The fourth, `handmade`, has all hand-set models that recall, with noise on their weights. Only the mechanism that was
built is right, with its layers and its place. Noise can destroy a mechanism, so only models that still recall count,
which is measured on separate documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from mecheval.analysis.runs import alone
from mecheval.errors import UnknownName, UserError, shown
from mecheval.evaluation.known import GUESSERS, MECHANISMS, Known
from mecheval.intervene import Evidence, evidence
from mecheval.intervene.finding import NO_NAME, Finding
from mecheval.intervene.intervals import mean_interval
from mecheval.intervene.mechanism import Rule
from mecheval.intervene.reading import likelihood
from mecheval.mixers import BUILT_IN
from mecheval.model import LM
from mecheval.model.handmade import handmade
from mecheval.ops.adamw import AdamW
from mecheval.tasks import Task, build_task
from mecheval.types import Batch

if TYPE_CHECKING:  # slow to import
    import pandas as pd

NOISES: dict[str, tuple[float, ...]] = {
    "untrained": (0.0, 3.0, 10.0),
    "shuffled": (0.0,),
    "chance": (0.0, 0.05, 0.1),
    "handmade": (0.0, 0.02, 0.05, 0.1, 0.2),
}
"""The kinds of models, and the levels of noise on their weights, relative to the weights."""
DOCUMENTS = (16, 64, 256)
"""Default numbers of documents on which a model is judged."""
LEAST = Rule().documents
"""Smallest number of documents for a verdict."""
MODELS = 30
"""Default number of models of each kind that are judged at each number of documents."""
MOST_MODELS, MOST_DOCUMENTS = 100_000, 10_000
"""Largest number of models of a kind, and of documents."""
RECALLS = 0.9
"""Smallest likelihood of the answer at which a hand-set model still counts as recalling."""
TRIED = 256
"""Number of documents on which that likelihood is measured; none of them is used for the verdict."""
PAIRS = (2, 4, 8)
"""Numbers of pairs in a document for models of kind `chance`."""
FEW, SURELY_LESS = 200, 0.85
"""Number of resamples tried first; more are drawn only if more than this share of them agree, but not all."""
POOL = 200
"""Largest number of models of kind `shuffled` that are trained; for more, some are judged on several samples."""
STEPS, BATCH, LEARNING_RATE, WIDTH = 150, 32, 3e-3, 32
"""Settings of their training: steps, documents in a batch, learning rate and d_model."""
FEW_VALUES, VALUES = 4, 16
"""Numbers of values in their two tasks. With four, all are in every document, so guessing is learnt quickly."""


class Group(NamedTuple):
    """Models that are counted together."""

    kind: str
    noise: float
    documents: int
    models: int


class Judged(NamedTuple):
    """A model and its verdict, with the two seeds that reproduce them."""

    group: Group
    model: str
    seed: int  # seed of the model
    documents_seed: int
    label: str
    said: str  # the finding in words
    named: bool
    right: bool
    likelihood: float
    counts: bool  # False for a hand-set model that no longer recalls, and for a model whose outputs are NaN


def groups(
    kinds: Sequence[str] = tuple(NOISES), models: int = MODELS, documents: Sequence[int] = DOCUMENTS,
    noise: float | None = None,
) -> list[Group]:  # fmt: skip
    """The groups that are counted: `models` of each kind at each number of documents, spread over the levels of noise.

    `noise` selects one level, for the kinds that have it.
    """
    for kind in kinds:
        if kind not in NOISES:
            raise UnknownName("kind of models", kind, NOISES)
    if not 1 <= models <= MOST_MODELS:
        raise UserError(f"calibrate: the number of models must be from 1 to {MOST_MODELS:,} (got {shown(models)}).")
    for n in documents:
        if not LEAST <= n <= MOST_DOCUMENTS:
            raise UserError(f"calibrate: documents must be from {LEAST} to {MOST_DOCUMENTS:,} (got {shown(n)}).")
    levels = {kind: [x for x in NOISES[kind] if noise is None or x == noise] for kind in dict.fromkeys(kinds)}
    if not any(levels.values()) or not documents:
        there = sorted({x for kind in levels for x in NOISES[kind]})
        raise UserError(f"calibrate: these kinds have noise {', '.join(f'{x:g}' for x in there)} (got {shown(noise)}).")
    return [
        Group(kind, level, n, count)
        for kind, all_levels in levels.items()
        for i, level in enumerate(all_levels)
        for n in dict.fromkeys(documents)
        if (count := models // len(all_levels) + (i < models % len(all_levels)))
    ]


def calibrate(
    kinds: Sequence[str] = tuple(NOISES), models: int = MODELS, documents: Sequence[int] = DOCUMENTS, seed: int = 0,
    noise: float | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Count how often verdicts are right; a row for each kind, noise and number of documents (see `counted`)."""
    return counted(list(judgements(groups(kinds, models, documents, noise), seed)))


def judgements(asked: Sequence[Group], seed: int = 0) -> Iterator[Judged]:
    """Judge all models of these groups one by one; the models of a group do not depend on other groups."""
    makers: dict[str, Maker] = {}
    for group in asked:
        maker = makers.setdefault(group.kind, Maker(group.kind, seed))
        for number in range(group.models):
            with alone(1):
                found = _judge(maker, group, number, seed)
            yield found


class Made(NamedTuple):
    """A model with its task and, if it recalls, its mechanism."""

    lm: LM
    task: Task
    title: str
    known: Known | None = None


@dataclass
class Maker:
    """Makes the models of a kind."""

    kind: str
    seed: int
    trained: dict[int, Made] = field(default_factory=dict)

    def make(self, number: int, noise: float, seed: int) -> tuple[Made, int]:
        """Model number `number` of a group, and its seed."""
        if self.kind == "handmade":
            known = _in_turn(MECHANISMS, number, self.seed, noise)
            task = build_task("ar", pairs=4, keys=16, values=16)
            lm = handmade(known.recipe, task, seed=seed, noise=noise, **known.options)
            return Made(lm, task, known.title, known), seed
        if self.kind == "chance":
            known = _in_turn(GUESSERS, number, self.seed, noise)
            pairs = PAIRS[seed % len(PAIRS)]
            task = build_task("ar", pairs=pairs, keys=16, values=16)
            lm = handmade(known.recipe, task, seed=seed, noise=noise)
            return Made(lm, task, f"{known.title} pairs={pairs}"), seed
        if self.kind == "untrained":
            made = _initial(number, seed)
            if noise:
                _multiply(made.lm, noise, seed)
            return made, seed
        which = number % POOL
        seed = _seeds(self.seed, self.kind, which)[0]
        if which not in self.trained:
            self.trained[which] = _initial(which, seed, FEW_VALUES if which // len(BUILT_IN) % 2 == 0 else VALUES)
            _train_to_guess(self.trained[which], seed)
        return self.trained[which], seed


def _in_turn(models: Sequence[Known], number: int, *seeds: int | float) -> Known:
    """Model `number` when all models take turns in an order drawn from these seeds, so that a few are a fair sample."""
    order = np.random.default_rng(_seeds(*seeds)).permutation(len(models))
    return models[int(order[number % len(models)])]


def _initial(number: int, seed: int, values: int = VALUES) -> Made:
    """A model of a built-in mixer, in turn, as initialised."""
    mixer = list(BUILT_IN)[number % len(BUILT_IN)]
    task = build_task("ar", pairs=4, keys=16, values=values)
    lm = LM(task.vocab_size, WIDTH, 2, mixer, max_length=task.max_tokens, seed=seed)
    return Made(lm, task, f"{mixer} values={values}")


@torch.no_grad()
def _multiply(lm: LM, noise: float, seed: int) -> None:
    """Multiply every parameter by 1 + noise, a Gaussian number of this size."""
    generator = torch.Generator().manual_seed(seed)
    for weight in lm.parameters():
        weight.mul_(1 + noise * torch.randn(weight.shape, generator=generator))


def _train_to_guess(made: Made, seed: int) -> None:
    """Train a model on documents whose answer is one of their values, drawn at random for every batch."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = AdamW(made.lm.parameters())
    for _, batch in zip(range(STEPS), made.task.stream(BATCH, seed=seed), strict=False):
        loss = F.cross_entropy(made.lm(batch.tokens, at=batch.predict_at[:, 0]), _any_value(batch, generator))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step(LEARNING_RATE)


def _any_value(batch: Batch, generator: torch.Generator) -> torch.Tensor:
    """A random value of each document, (n,); values of associative recall are two tokens apart."""
    divider = int(batch.roles["divider"][0])
    values = batch.tokens[:, 2:divider:2]
    drawn = torch.randint(values.shape[1], (len(values), 1), generator=generator)
    return values.gather(1, drawn)[:, 0]


def _seeds(*parts: int | str | float) -> tuple[int, int]:
    """Two seeds derived from these parts."""
    words = [list(str(part).encode()) for part in parts]
    random = np.random.default_rng([letter for word in words for letter in (*word, 256)])
    return int(random.integers(1 << 31)), int(random.integers(1 << 31))


def _judge(maker: Maker, group: Group, number: int, seed: int) -> Judged:
    own, drawn = _seeds(seed, group.kind, group.noise, group.documents, number)
    made, own = maker.make(number, group.noise, own)
    tried = made.task.sample(TRIED, "dev", seed=drawn)
    with torch.no_grad():
        recalled = float(likelihood(made.lm.eval(), tried).mean())
    clean = made.task.sample(group.documents, "test", seed=drawn)
    found = _verdict(evidence(made.lm, clean, made.task.corrupt(clean, seed=drawn)))
    named = found.label not in NO_NAME
    right = not named if made.known is None else made.known.agrees(found)
    counts = recalled == recalled if made.known is None else recalled >= RECALLS
    return Judged(group, made.title, own, drawn, found.label, str(found), named, right, recalled, counts)


def _verdict(measured: Evidence) -> Finding:
    """The finding of `verdict`, with all resamples only if fewer do not settle it."""
    quick = measured.verdict(resamples=FEW)
    clear = quick.agreement is None or not SURELY_LESS < quick.agreement < 1
    return quick.finding if clear else measured.verdict().finding


def counted(judged: Sequence[Judged]) -> pd.DataFrame:
    """A row for each group.

    Columns: kind, noise, documents; models that were judged; counted, those of them that count (all but hand-set models
    that no longer recall, and models that noise makes overflow); of these, named (they got a mechanism's name) and
    right; rate = right / counted with the ends of its 95 % interval, low and high; likelihood, the mean over all models
    that have one; labels, with the number of each.
    """
    import pandas as pd

    by_group: dict[Group, list[Judged]] = {}
    for each in judged:
        by_group.setdefault(each.group, []).append(each)
    return pd.DataFrame([row(members) for members in by_group.values()])


def row(members: Sequence[Judged]) -> dict[str, Any]:
    """The row of one group, from its models so far."""
    group, counting = members[0].group, [each for each in members if each.counts]
    right = np.array([float(each.right) for each in counting])
    low, high = mean_interval(right) if len(right) else (np.nan, np.nan)
    likelihoods = [each.likelihood for each in members if each.likelihood == each.likelihood]
    labels = Counter(each.label for each in counting)
    return {
        "kind": group.kind, "noise": group.noise, "documents": group.documents, "models": len(members),
        "counted": len(counting), "named": sum(each.named for each in counting), "right": int(right.sum()),
        "rate": float(right.mean()) if len(right) else float("nan"), "low": float(low), "high": float(high),
        "likelihood": float(np.mean(likelihoods)) if likelihoods else float("nan"),
        "labels": ", ".join(f"{label} {count}" for label, count in labels.most_common()),
    }  # fmt: skip
