"""Landscapes: eigenvalues against a dense Hessian, double backward of every mixer, and the same numbers for a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import Command
from mecheval.config import run_config
from mecheval.figures.landscape import said
from mecheval.mixers.options import BUILT_IN
from mecheval.model import LM
from mecheval.store import RunFolder
from mecheval.tasks import build_task
from mecheval.training import train
from mecheval.training.landscape import (
    _loss,
    hessian_products,
    landscape,
    main,
    random_direction,
    top_eigenvalues,
    trainable,
)
from mecheval.training.state import questions
from mecheval.types import Questions


def documents() -> Questions:
    task = build_task("ar", pairs=2, keys=3, values=3)
    return questions(task.corpus(4, "train", 0), np.arange(4), "cpu")


@pytest.mark.parametrize("mixer", BUILT_IN)
def test_products_are_those_of_differences_of_gradients(mixer: str) -> None:
    lm, seen = LM(9, 8, 2 if mixer == "base_conv" else 1, mixer, seed=0), documents()  # its second is a long one
    product, _, size = hessian_products(lm, seen)
    weights = list(trainable(lm).values())
    x = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = torch.nn.utils.parameters_to_vector(weights).detach()
    ends = []
    for sign in (1, -1):
        torch.nn.utils.vector_to_parameters(start + sign * 1e-5 * x / x.norm(), weights)
        found = torch.autograd.grad(_loss(lm, seen), weights, materialize_grads=True)
        ends.append(torch.cat([each.flatten() for each in found]))
    expected = (ends[0] - ends[1]) / 2e-5 * x.norm()
    assert (product(x) - expected).norm() <= 1e-5 * expected.norm()


def test_eigenvalues_are_those_of_the_dense_hessian() -> None:
    lm, seen = LM(9, 4, 1, "attention", max_length=12, seed=1).double(), documents()
    product, _, size = hessian_products(lm, seen)
    dense = torch.stack([product(row) for row in torch.eye(size, dtype=torch.float64)])
    assert torch.allclose(dense, dense.T, atol=1e-12)
    expected = torch.linalg.eigvalsh(dense).flip(0)[:3]
    found = torch.tensor(top_eigenvalues(product, size, 3), dtype=torch.float64)
    assert ((found - expected).abs() <= 1e-3 * expected[0]).all()


def test_a_matrix_with_known_eigenvalues() -> None:
    values = torch.tensor([5.0, 4.0, 1.0, 0.5, -3.0], dtype=torch.float64)
    assert top_eigenvalues(lambda x: values * x, 5, 5) == pytest.approx([5, 4, 1, 0.5, -3])


def test_directions_have_the_norms_of_the_weights() -> None:
    weights = {"a": torch.full((3, 4), 2.0), "b": torch.tensor([1.0, 0.0])}
    drawn, again, other = random_direction(weights, 1), random_direction(weights, 1), random_direction(weights, 2)
    assert all(drawn[name].norm() == pytest.approx(each.norm()) for name, each in weights.items())
    assert torch.equal(drawn["a"], again["a"])
    assert not torch.equal(drawn["a"], other["a"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    few: dict[str, Any] = {"data.documents": None, "evaluate.documents": 16, "batch_size": 4, "steps": 6}
    config = run_config("ar", "attention", pairs=2, keys=4, values=4, d_model=8, **few)
    return train(config, tmp_path_factory.mktemp("store"))


def test_a_run_and_the_same_again(run: RunFolder) -> None:
    found = landscape(run, along=2, documents=8)
    middle = next(row["loss"] for row in found.plane if row["a"] == row["b"] == 0)
    end = next(row["loss"] for row in found.line if row["part"] == 1)
    assert middle == pytest.approx(end, rel=1e-6)
    assert [row["step"] for row in found.sharpness] == [0, 3, 6]
    assert found.sharpness[-1]["loss"] == pytest.approx(end, rel=1e-6)
    assert found.sharpness[0]["loss"] == pytest.approx(found.line[0]["loss"], rel=1e-6)
    assert [row["preconditioned"] is None for row in found.sharpness] == [True, False, False]
    assert found.sharpness[1]["preconditioned_edge"] == pytest.approx(38 / found.sharpness[1]["lr"])
    again = landscape(run, along=2, documents=8)
    assert (found.plane, found.line, found.sharpness) == (again.plane, again.line, again.sharpness)
    assert landscape(run, along=0, seed=1, documents=8).plane != found.plane


def test_a_process_ends_with_what_is_wrong(run: RunFolder) -> None:
    with pytest.raises(SystemExit, match=r"^landscape: give along >= 0 and documents >= 1 \(got -1, 32\)\.$"):
        main(str(run.path.parent.parent), run.id, "-1", "32")


def test_the_drawing(run: RunFolder, command: Command, tmp_path: Path) -> None:
    save = tmp_path / "landscape.json"
    out = command.prints(
        "draw", "landscape", run.id, "--store", str(run.path.parent.parent), "--along", "1", "--documents", "4",
        "--save", str(save),
    )  # fmt: skip
    assert out.startswith(f"wrote {save}\n")
    assert "The loss on the line from start" in out
    rows = [row for rows in json.loads(save.read_text())["datasets"].values() for row in rows]
    levels = [row for row in rows if "level" in row]
    area = sum((row["x2"] - row["x"]) * (row["y2"] - row["y"]) for row in levels)
    assert area == pytest.approx(4, abs=1e-2)  # the plane is covered, and nothing twice
    assert {row["line"] for row in rows if "line" in row} >= {"largest", "edge of stability"}
    below = json.loads(save.read_text())["vconcat"][1]["hconcat"][0]["layer"][0]["encoding"]
    assert "scale" not in below["x"]  # steps begin at 0, which a logarithmic axis has no place for


@pytest.mark.parametrize(("reached", "outcome"), [(39.0, "holds"), (19.0, "contradicted")])
def test_what_it_says_of_the_edge(reached: float, outcome: str) -> None:
    line = [{"part": 0.0, "loss": 3.0}, {"part": 0.5, "loss": 4.0}, {"part": 1.0, "loss": 0.5}]
    sharpness: list[dict[str, Any]] = [
        {"step": 0, "preconditioned": None, "preconditioned_edge": float("inf")},
        {"step": 5, "preconditioned": reached, "preconditioned_edge": 38.0},
    ]
    hill, edge = said(line, sharpness)
    assert hill == "The loss on the line from start (3.00) to end (0.5) rises to 4.00 at 0.50."
    assert f": {outcome} for this run (at step 5, its sharpness is {reached / 38:.2f} of the edge)." in edge
