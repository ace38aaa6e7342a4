"""Published numbers, computed again from weights by hooks of torch and nothing of the interventions' code."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from mecheval.analysis.weights import load_pretrained
from mecheval.config import RunConfig
from mecheval.store import RESULTS, Store
from mecheval.store.published import pretrained_files, pretrained_origin
from mecheval.tasks import build_task

ROLES = ("key", "value", "query")
CELLS = random.Random(19).sample([(name, role) for name in sorted(pretrained_files(RESULTS)) for role in ROLES], 5)
"""Cells of figures 3 and 7: a model, and the place where its clean activation was put back."""
ROUNDING = 1e-4
"""Largest difference of mean likelihoods, which other CPUs add up in another order."""


@pytest.mark.parametrize(("name", "role"), CELLS)
@torch.no_grad()
def test_a_cell_of_the_figures_is_what_plain_hooks_give(name: str, role: str) -> None:
    origin = pretrained_origin(pretrained_files(RESULTS)[name])
    config, lm = RunConfig.read(origin["config"]), load_pretrained(name)
    task = build_task(config.task.name, **config.task.options)
    clean = task.each_query_in_turn(task.sample(config.evaluate.documents, "test", config.evaluate.seed))
    corrupted = task.corrupt(clean, config.evaluate.seed, "key")
    rows, places, seen = torch.arange(len(clean)), clean.roles[role], list[Tensor]()

    def likelihood(tokens: Tensor) -> float:
        chances = lm(tokens)[rows, clean.predict_at[:, 0]].softmax(-1)
        return float(chances[rows, clean.answers].double().mean())

    def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].clone())

    def restore(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mixed = inputs[0].clone()
        mixed[rows, places] = seen[0][rows, places]
        return (mixed, *inputs[1:])

    block = lm.get_submodule("blocks.1")
    handle = block.register_forward_pre_hook(look)
    found = {"original": likelihood(clean.tokens)}
    handle.remove()
    found["corrupted"] = likelihood(corrupted.tokens)
    handle = block.register_forward_pre_hook(restore)
    found["restored"] = likelihood(corrupted.tokens)
    handle.remove()
    [published] = Store(RESULTS).query(
        f"select {', '.join(found)} from effects where run = '{origin['run']}' and state = 'last' and split = 'test' "
        f"and site = 'blocks.1.input' and role = '{role}' and corruption = 'key' and direction = 'restore'"
    ).to_dict("records")  # fmt: skip
    assert found == pytest.approx(published, abs=ROUNDING)
