"""What a kernel computes does not depend on where its arrays lie, or two runs of one config would differ."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import mecheval.ops
from mecheval.kernels import fast_kernel
from mecheval.ops.rows import Floats
from ops.agreement import random

FILES = sorted(Path(mecheval.ops.__path__[0]).glob("*.py"))


def arrays(loop: ast.For, context: type[ast.expr_context]) -> set[str]:
    """The arrays to which a loop writes (`ast.Store`), or from which it reads (`ast.Load`)."""
    places = [node for node in ast.walk(loop) if isinstance(node, ast.Subscript) and isinstance(node.ctx, context)]
    both = [node.target for node in ast.walk(loop) if isinstance(node, ast.AugAssign)]
    places += [node for node in both if isinstance(node, ast.Subscript)]
    return {ast.unparse(node.value) for node in places}


def adds_up(loop: ast.For) -> bool:
    """Whether the loop adds up into a number that it does not begin anew each time."""
    begun = {name.id for node in ast.walk(loop) if isinstance(node, ast.Assign)
             for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}  # fmt: skip
    sums = [node.target for node in ast.walk(loop) if isinstance(node, ast.AugAssign)]
    return any(isinstance(target, ast.Name) and target.id not in begun for target in sums)


def innermost(function: ast.FunctionDef) -> list[ast.For]:
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    return [loop for loop in loops if sum(isinstance(node, ast.For) for node in ast.walk(loop)) == 1]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_loop_that_adds_up_writes_to_no_other_array(file: Path) -> None:
    """As `mecheval.kernels.fast_kernel` explains."""
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    fast = [each for each in functions if any(ast.unparse(d) == "fast_kernel" for d in each.decorator_list)]
    assert not [
        f"{function.name}, line {loop.lineno}"
        for function in fast
        for loop in innermost(function)
        if adds_up(loop) and (written := arrays(loop, ast.Store)) and arrays(loop, ast.Load) - written
    ]


@fast_kernel
def _squares(x_RN: Floats, y_N: Floats, sum_R: Floats) -> None:
    for r in range(len(x_RN)):
        total = np.float32(0)
        for n in range(len(y_N)):
            y_N[n] = x_RN[r, n] - np.float32(0.25)
        for n in range(len(y_N)):
            total += y_N[n] * y_N[n]
        sum_R[r] = total


@pytest.mark.parametrize("size", [8, 16, 24, 32, 100])
def test_a_sum_in_a_loop_of_its_own_has_one_order(size: int) -> None:
    """Wherever the array lies; with both lines in one loop, sums differ on CPUs with AVX-512 from 8 to 32 numbers."""
    found = set()
    for start in range(5 * size, 5 * size + 300):
        room, sum_R = np.empty(6 * size + 300, np.float32), np.empty(5, np.float32)
        x_RN, y_N = room[: 5 * size].reshape(5, size), room[start : start + size]
        x_RN[:] = random(5, size, seed=1).numpy()
        _squares(x_RN, y_N, sum_R)
        found.add(sum_R.tobytes())
    assert len(found) == 1


def test_the_gradient_of_unit_silu_does_not_depend_on_its_own_arrays() -> None:
    """Its sum was in one loop with two arrays of 64 bytes, which the allocator puts together or not."""
    from mecheval.ops.unit_silu import unit_silu

    found, kept = set(), list[torch.Tensor]()
    for n in range(300):
        kept = [*kept[-20:], torch.empty(1 + 37 * n % 301)]
        x = random(8, 16, seed=1).requires_grad_()
        unit_silu(x).backward(random(8, 16, seed=2))
        assert x.grad is not None
        found.add(x.grad.numpy().tobytes())
    assert len(found) == 1
