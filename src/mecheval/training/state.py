"""Training as a function of the step: its batch, its learning rate, the update, and all state that it changes."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval import rng
from mecheval.analysis import Scores
from mecheval.config import RunConfig
from mecheval.config.sections import Schedule
from mecheval.errors import UserError
from mecheval.ops.adamw import MOMENTS, AdamW
from mecheval.tasks import Corpus, Task
from mecheval.training.checkpoint import Checkpoint
from mecheval.types import Questions

DRAW = 64
"""Number of batches of a stream that are drawn together; documents depend only on their number, so results do not."""

EVAL_TOKENS = 1 << 12
"""Number of tokens in one evaluation pass: small passes that fit the cache are faster than a single big one."""
Row = dict[str, Any]


def rate(schedule: Schedule, step: int, steps: int) -> float:
    """The learning rate at step `step` (from 0), relative to its peak: it warms up from 0 to 1, then decays."""
    up = round(schedule.warmup * steps if schedule.warmup < 1 else schedule.warmup)  # number of warm-up steps
    if step < up:
        return step / up
    if schedule.decay == "constant":
        return 1.0
    done = (step - up) / max(1, steps - up)
    return 1 - done if schedule.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))


class Best(NamedTuple):
    """The best state so far, by dev accuracy and then by likelihood."""

    step: int
    scores: Scores
    weights: dict[str, Tensor]


class Training:
    """A model in training, with its optimiser, step, history, best state and random state."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.config, self.device = config, config.machine.device
        check_device(self.device)
        dtype = getattr(torch, config.machine.dtype)
        self.lm = config.build_lm(task).to(self.device, dtype)
        given = config.optimiser
        self.optimiser = AdamW(self.lm.parameters(), given.betas, given.eps, given.weight_decay)
        # Gradients are computed outside of it: each product's in the type in which the product was.
        self._rounded: AbstractContextManager[None] = nullcontext()
        if config.machine.precision == "bf16":
            self._rounded = torch.autocast("cpu", torch.bfloat16)
        self.step = 0
        self.history: list[Row] = []
        self.effects: list[Row] = []  # effects of interventions during training
        self.verdicts: list[Row] = []
        self.best: Best | None = None
        self.stale = 0  # number of evaluations since the best one
        self.seconds = 0.0  # seconds of training, over all processes that worked on the run
        self.probing = 0.0  # the part of them spent on interventions
        self._losses, self._steps = 0.0, 0  # sum of the losses, and steps, since the last row
        # The random numbers for a mixer with dropout; the initial weights have their own seed.
        torch.manual_seed(int(rng.derived(rng.key(config.seed, "dropout"), 0)) >> 1)

    def learning_rate(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0."""
        return self.config.optimiser.lr * rate(self.config.schedule, step, self.config.data.steps)

    def advance(self, questions: Questions) -> float:
        """Take one step and return the loss before it. If the loss is not finite, nothing changes."""
        tokens, at, targets = questions
        self.optimiser.zero_grad()
        with self._rounded:
            loss = self.lm.loss(tokens, at, targets)
        value = loss.item()
        if not math.isfinite(value):
            return value
        loss.backward()
        if self.config.optimiser.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.lm.parameters(), self.config.optimiser.clip)
        self.optimiser.step(self.learning_rate(self.step))
        self.step += 1
        self._losses += value
        self._steps += 1
        return value

    def record(self, dev: Scores) -> Row:
        """Add a row to the history, and keep the weights if they are the best so far."""
        row = {
            "step": self.step, "lr": self.learning_rate(self.step - 1), "loss": self._losses / max(1, self._steps),
            "dev_loss": dev.loss, "dev_likelihood": dev.likelihood, "dev_accuracy": dev.accuracy,
        }  # fmt: skip
        self.history.append(row)
        self._losses, self._steps = 0.0, 0
        self.stale += 1
        if dev.finite and (self.best is None or dev.rank > self.best.scores.rank):
            self.best, self.stale = Best(self.step, dev, self.weights()), 0
        return row

    def weights(self) -> dict[str, Tensor]:
        """A copy of the model's tensors on the CPU, each in its own memory, even if they are tied."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.lm.state_dict().items()}

    def checkpoint(self) -> Checkpoint:
        """Everything that changes, as tensors and plain data."""
        tensors = {f"model/{name}": tensor for name, tensor in self.weights().items()}
        for name, parameter in self.lm.named_parameters():
            kept = self.optimiser.moments(parameter)
            tensors |= {f"{moment}/{name}": tensor for moment, tensor in kept.items()}
        tensors["random/cpu"] = torch.get_rng_state()
        if self.device.startswith("cuda"):
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.device)
        state: dict[str, Any] = {"history": self.history, "effects": self.effects, "verdicts": self.verdicts}
        state |= {"stale": self.stale, "seconds": self.seconds, "probing": self.probing}
        state |= {"losses": self._losses, "steps": self._steps, "best": None}
        if self.best is not None:
            tensors |= {f"best/{name}": tensor for name, tensor in self.best.weights.items()}
            state["best"] = {"step": self.best.step, "scores": self.best.scores.to_dict()}
        return Checkpoint(self.step, tensors, state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to the state in which `checkpoint` was made."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in checkpoint.tensors.items():
            part, _, rest = name.partition("/")
            parts.setdefault(part, {})[rest] = tensor
        self.lm.load_state_dict(parts["model"])
        for name, parameter in self.lm.named_parameters():
            moments = {moment: parts[moment][name] for moment in MOMENTS if name in parts.get(moment, {})}
            self.optimiser.restore(parameter, moments)
        torch.set_rng_state(parts["random"]["cpu"])
        if "cuda" in parts["random"]:
            torch.cuda.set_rng_state(parts["random"]["cuda"], self.device)
        state = checkpoint.state
        self.step, self.history, self.stale = checkpoint.step, list(state["history"]), state["stale"]
        self.effects, self.verdicts = list(state["effects"]), list(state["verdicts"])
        self.seconds, self.probing = state["seconds"], state["probing"]
        self._losses, self._steps = state["losses"], state["steps"]
        best = state["best"]
        self.best = None if best is None else Best(best["step"], Scores.read(best["scores"]), parts["best"])


def check_device(device: str) -> None:
    """Raise an error, before anything is built, if this machine has no such device."""
    kind, _, number = device.partition(":")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"device {device}: PyTorch sees {torch.cuda.device_count()} CUDA devices here; try device cpu.")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device mps: not available here; try device cpu.")


def questions(corpus: Corpus, rows: NDArray[np.int64], device: str) -> Questions:
    """The documents with these row numbers as tensors; each is cut after its last prediction, then padded."""
    return Questions(*(torch.from_numpy(array).to(device) for array in corpus.questions(rows)))


class TrainingData:
    """The training batches, as a function of the step alone, so that a run can resume at any step.

    A fixed training set is read repeatedly; an epoch need not be a whole number of batches.
    """

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.task, self.seed, self.size = task, config.seed, config.data.batch_size
        self.documents, self.shuffle = config.data.documents, config.data.shuffle
        self.device = config.machine.device
        self._corpus = None if self.documents is None else task.corpus(self.documents, "train", self.seed)
        self._order = lru_cache(2)(self._drawn_order)
        self._chunk = lru_cache(1)(self._drawn_chunk)

    def batch(self, step: int) -> Questions:
        """The batch of step `step`, counted from 0."""
        if self._corpus is None or self.documents is None:
            chunk, place = divmod(step, DRAW)
            return questions(self._chunk(chunk), np.arange(place * self.size, (place + 1) * self.size), self.device)
        epochs, rows = np.divmod(np.arange(step * self.size, (step + 1) * self.size), self.documents)
        if self.shuffle:
            for epoch in np.unique(epochs):
                rows = np.where(epochs == epoch, self._order(int(epoch))[rows], rows)
        return questions(self._corpus, rows, self.device)

    def _drawn_chunk(self, chunk: int) -> Corpus:
        n = DRAW * self.size
        return self.task.corpus(n, "train", self.seed, start=chunk * n)

    def _drawn_order(self, epoch: int) -> NDArray[np.int64]:
        """The order of the documents in an epoch, which depends only on the seed and the epoch."""
        return rng.permutation(rng.derived(rng.key(self.seed, "shuffle"), epoch), self.documents or 0)


def evaluation_set(config: RunConfig, task: Task, split: str) -> list[Questions]:
    """The documents of a split in batches of similar length, so that short ones need little padding."""
    documents = config.evaluate.documents
    corpus = task.corpus(documents, split, config.evaluate.seed)
    lengths = corpus.predict_at.max(axis=1).astype(np.int64) + 1
    order = np.argsort(lengths, kind="stable")
    pieces, first = [], 0
    while first < documents:
        last = first + 1
        while last < documents and (last + 1 - first) * lengths[order[last]] <= EVAL_TOKENS:
            last += 1
        pieces.append(questions(corpus, order[first:last], config.machine.device))
        first = last
    return pieces
