"""The loss landscape of a run: a plane around its end, the line from its start, and the sharpness along training.

All losses are means over the same dev documents. The plane passes through the final weights in two random directions,
each scaled, tensor by tensor, to the norm of the weights (Li et al., 2018, arXiv 1712.09913). Sharpness is the largest
eigenvalue of the Hessian, found by Lanczos' method with Hessian-vector products in double precision. Gradient descent
is stable up to a sharpness of 2 / lr. AdamW, which training uses, has another edge of stability: the sharpness after
preconditioning, that of P^-1/2 H P^-1/2 with P = (1 - β1^t) (√(v / (1 - β2^t)) + ε), may reach (2 + 2 β1) / ((1 - β1)
lr), as Cohen et al. (2022, arXiv 2207.14484) derive.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mecheval.analysis import load_run
from mecheval.analysis.runs import alone
from mecheval.config import RunConfig
from mecheval.errors import UserError
from mecheval.model import LM
from mecheval.ops import dispatch
from mecheval.store import RunFolder, Store, StoreError
from mecheval.tasks import Task
from mecheval.training.state import Training, TrainingData, questions
from mecheval.types import Questions

DOCUMENTS = 64
"""Number of dev documents over which the loss is averaged."""
SIDE, REACH = 15, 1.0
"""Number of points along each side of the plane, and half its width in units of the weights' norm."""
ON_THE_LINE = 31
"""Number of points on the line, which goes from the start to the end and half as far beyond."""
EIGENVALUES, MOST_STEPS, CLOSE = 3, 60, 1e-3
"""Number of eigenvalues, largest number of Lanczos steps, and the relative error at which they stop."""

Row = dict[str, Any]
Matvec = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Landscape:
    """The losses and sharpness of one run, as rows for tables."""

    plane: list[Row]  # a, b, loss
    line: list[Row]  # part (0 is the start and 1 the end of training), loss
    sharpness: list[Row]  # step, lr, loss, eigenvalues, edge, preconditioned, preconditioned_edge


def landscape(
    folder: RunFolder, along: int = 6, seed: int = 0, documents: int = DOCUMENTS, eigenvalues: int = EIGENVALUES
) -> Landscape:
    """The landscape of a finished run, which is reproducible for a given seed.

    Sharpness is measured at `along` steps after the first; for that, the run is trained again from its config. If
    `eigenvalues` is 0, only the sharpness after preconditioning is measured.
    """
    if along < 0 or documents < 1:
        raise UserError(f"landscape: give along >= 0 and documents >= 1 (got {along}, {documents}).")
    trained = load_run(folder)
    config, task, lm = trained.config, trained.task, trained.lm
    corpus = task.corpus(documents, "dev", config.evaluate.seed)
    seen = questions(corpus, torch.arange(documents).numpy(), "cpu")
    with alone(config.machine.threads):
        lm.eval()
        end, start = _weights(lm), _weights(config.build_lm(task))
        one, other = (random_direction(end, 2 * seed + i) for i in (0, 1))
        steps = [REACH * (2 * i / (SIDE - 1) - 1) for i in range(SIDE)]
        plane = [{"a": a, "b": b, "loss": _loss_at(lm, end, seen, (one, a), (other, b))} for b in steps for a in steps]
        across = {name: end[name] - start[name] for name in end}
        parts = [1.5 * i / (ON_THE_LINE - 1) for i in range(ON_THE_LINE)]
        line = [{"part": part, "loss": _loss_at(lm, start, seen, (across, part))} for part in parts]
        return Landscape(
            plane, line, list(_along(config, task, trained.step, seen, along, seed, eigenvalues)) if along else []
        )


def random_direction(weights: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """A direction drawn from a normal distribution and scaled, tensor by tensor, to the norm of the weights."""
    random = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(each.shape, generator=random, dtype=each.dtype) for name, each in weights.items()}
    return {name: each * (weights[name].norm() / each.norm()) for name, each in drawn.items()}


def _along(
    config: RunConfig, task: Task, last: int, seen: Questions, along: int, seed: int, eigenvalues: int
) -> Iterator[Row]:
    """Train again up to step `last`, and measure the sharpness on the way."""
    state, data = Training(config, task), TrainingData(config, task)
    wanted = {round(last * i / along) for i in range(along + 1)}
    while True:
        if state.step in wanted:
            yield _sharpness(state, seen, seed, eigenvalues)
        if state.step >= last:
            return
        state.advance(data.batch(state.step))


def _sharpness(state: Training, seen: Questions, seed: int, eigenvalues: int) -> Row:
    given, step = state.config.optimiser, state.step
    lr = state.learning_rate(max(0, step - 1))
    lm = state.config.build_lm()
    lm.load_state_dict(state.weights())
    product, loss, size = hessian_products(lm, seen)
    plain = top_eigenvalues(product, size, eigenvalues, seed) if eigenvalues else []
    row: Row = {"step": step, "lr": lr, "loss": loss, "eigenvalues": plain, "edge": 2 / lr if lr else math.inf}
    first, second = given.betas
    row["preconditioned_edge"] = row["edge"] * (1 + first) / (1 - first)
    row["preconditioned"] = None
    moments = [state.optimiser.moments(each).get("exp_avg_sq") for each in trainable(state.lm).values()]
    if step and all(each is not None for each in moments):
        v = torch.cat([each.double().flatten() for each in moments if each is not None])
        scale = ((1 - first**step) * ((v / (1 - second**step)).sqrt() + given.eps)).rsqrt()
        row["preconditioned"] = top_eigenvalues(lambda x: scale * product(scale * x), size, 1, seed)[0]
    return row


def hessian_products(lm: LM, seen: Questions) -> tuple[Matvec, float, int]:
    """The function x -> H x for the Hessian H of the loss in double precision, the loss, and the length of x."""
    lm = lm.double().eval()
    weights = list(trainable(lm).values())

    def gradient(y: Tensor, x: Tensor | None = None) -> Tensor:
        found = torch.autograd.grad(y, weights, x, create_graph=x is None, retain_graph=True, materialize_grads=True)
        return torch.cat([each.flatten() for each in found])

    with _twice_differentiable():
        loss = _loss(lm, seen)
        flat = gradient(loss)

    def product(x: Tensor) -> Tensor:
        with _twice_differentiable():
            return gradient(flat, x)

    return product, float(loss.detach()), flat.numel()


def top_eigenvalues(product: Matvec, size: int, count: int, seed: int = 0) -> list[float]:
    """The largest eigenvalues of a symmetric matrix, given its product with a vector, in descending order (Lanczos).

    All basis vectors are kept orthogonal. Iteration stops when the residuals are below CLOSE.
    """
    random = torch.Generator().manual_seed(seed)
    vector = torch.randn(size, generator=random, dtype=torch.float64)
    basis = [vector / vector.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        for _ in range(2):  # orthogonalising once is not enough in finite precision
            known = torch.stack(basis)
            image = image - known.T @ (known @ image)
        rest = float(image.norm())
        off = torch.tensor(beside, dtype=torch.float64)
        small = torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + torch.diag(off, 1) + torch.diag(off, -1)
        values, vectors = torch.linalg.eigh(small)
        enough = min(count, size)
        errors = rest * vectors[-1, -enough:].abs()
        scale = max(1e-12, float(values.abs().max()))
        if len(diagonal) >= min(MOST_STEPS, size) or (len(diagonal) >= enough and float(errors.max()) <= CLOSE * scale):
            return [float(each) for each in values.flip(0)[:enough]]
        beside.append(rest)
        basis.append(image / rest)


def _loss(lm: LM, seen: Questions) -> Tensor:
    return F.cross_entropy(lm(seen.tokens, at=seen.at).flatten(0, 1), seen.targets.flatten())


@torch.no_grad()
def _loss_at(
    lm: LM, weights: Mapping[str, Tensor], seen: Questions, *moves: tuple[Mapping[str, Tensor], float]
) -> float:
    """The loss at `weights`, moved along each direction by the given amount."""
    for name, parameter in trainable(lm).items():
        parameter.copy_(weights[name])
        for direction, by in moves:
            parameter.add_(direction[name], alpha=by)
    return float(_loss(lm, seen))


def trainable(lm: LM) -> dict[str, nn.Parameter]:
    """The weights that training changes, by name; BaseConv's positions, for example, are fixed."""
    return {name: parameter for name, parameter in lm.named_parameters() if parameter.requires_grad}


def _weights(lm: LM) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainable(lm).items()}


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Use the reference path of all operations in this context, because only those can be differentiated twice."""
    with dispatch.path("reference"), sdpa_kernel(SDPBackend.MATH):
        yield


def main(store: str, run: str, along: str, documents: str) -> None:
    """Print the landscape of a run as JSON, without plain eigenvalues, for a parent process."""
    try:
        found = landscape(Store(store).folder(run), int(along), documents=int(documents), eigenvalues=0)
    except (UserError, StoreError) as error:
        sys.exit(str(error))
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
