"""What a kernel computes does not depend on where its arrays lie, or two runs of one config would differ."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import mecheval.ops
from mecheval.kernels import GAP, fast_kernel
from mecheval.ops.rows import Floats
from ops.agreement import random

APART = {"selective_scan_kernel.py": {"scan_backward"}}
"""Kernels whose loops add up and write to several arrays, which lie GAP numbers apart."""
FILES = sorted(Path(mecheval.ops.__path__[0]).glob("*.py"))


def written(loop: ast.For) -> set[str]:
    """The arrays to which an innermost loop writes."""
    targets: list[ast.expr] = [node.target for node in ast.walk(loop) if isinstance(node, ast.AugAssign)]
    targets += [target for node in ast.walk(loop) if isinstance(node, ast.Assign) for target in node.targets]
    return {ast.unparse(target.value) for target in targets if isinstance(target, ast.Subscript)}


def adds_up(loop: ast.For) -> bool:
    """Whether the loop adds up into a number."""
    return any(isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) for node in ast.walk(loop))


def innermost(function: ast.FunctionDef) -> list[ast.For]:
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    return [loop for loop in loops if sum(isinstance(node, ast.For) for node in ast.walk(loop)) == 1]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_loop_that_adds_up_writes_to_one_array_at_most(file: Path) -> None:
    """As `mecheval.kernels.GAP` explains."""
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    fast = [each for each in functions if any(ast.unparse(d) == "fast_kernel" for d in each.decorator_list)]
    several = {
        function.name for function in fast for loop in innermost(function) if adds_up(loop) and len(written(loop)) > 1
    }
    assert several == APART.get(file.name, set())


@fast_kernel
def _both(x_N: Floats, y_N: Floats, z_N: Floats) -> np.float32:
    total = np.float32(0)
    for n in range(len(x_N)):
        y_N[n] = x_N[n] * x_N[n]
        z_N[n] = y_N[n] * x_N[n]
        total += y_N[n]
    return total


@pytest.mark.parametrize("size", [16, 32, 100])
def test_beyond_the_gap_a_sum_has_one_order(size: int) -> None:
    """What GAP is for; nearer to each other, some CPUs' sums differ."""
    room, x_N = np.empty(2 * size + 4 * GAP, np.float32), random(size, seed=1).numpy()
    sums = {float(_both(x_N, room[:size], room[start : start + size])) for start in range(size + GAP, size + 3 * GAP)}
    assert len(sums) == 1


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
