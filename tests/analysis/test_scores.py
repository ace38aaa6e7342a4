from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import mecheval as me
from mecheval.analysis import Scores, score
from mecheval.config import run_config
from mecheval.training.state import evaluation_set
from mecheval.types import Questions


class Given(nn.Module):
    """Says the same logits at every prediction."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, tokens: torch.Tensor) -> Tensor:
        assert not self.training
        return self.logits.expand(*tokens.shape, -1)


def test_scores_are_means_over_all_predictions() -> None:
    logits = torch.tensor([0.5, 0.25, 0.25]).log()
    at = torch.zeros(2, 2, dtype=torch.int64)
    pieces = [
        Questions(torch.zeros(2, 4, dtype=torch.int64), at, torch.tensor([[0, 1], [0, 2]])),
        Questions(torch.zeros(1, 4, dtype=torch.int64), at[:1], torch.tensor([[1, 1]])),
    ]
    model = Given(logits)
    scores = score(model, pieces)
    assert scores.n == 6
    assert scores.accuracy == pytest.approx(2 / 6)
    assert scores.likelihood == pytest.approx((2 * 0.5 + 4 * 0.25) / 6)
    assert scores.loss == pytest.approx((2 * math.log(2) + 4 * math.log(4)) / 6)
    assert model.training


def test_pieces_give_what_one_pass_over_padded_documents_gives() -> None:
    config = run_config("atr", "mamba", "laptop", **{"evaluate.documents": 50, "d_model": 16})
    task = config.build_task()
    lm = config.build_lm(task)
    batch = task.sample(50, "dev", 0)
    log_p = lm(batch.tokens)[torch.arange(50), batch.predict_at[:, 0]].log_softmax(-1)
    answer = log_p[torch.arange(50), batch.answers]
    scores = score(lm, evaluation_set(config, task, "dev"))
    assert scores.loss == pytest.approx(-answer.mean().item(), rel=1e-5)
    assert scores.likelihood == pytest.approx(answer.exp().mean().item(), rel=1e-5)
    assert scores.accuracy == pytest.approx((log_p.argmax(-1) == batch.answers).float().mean().item())


def test_better_is_more_accurate_then_more_likely() -> None:
    def scores(likelihood: float, accuracy: float, loss: float) -> Scores:
        return Scores({"likelihood": likelihood, "accuracy": accuracy, "loss": loss}, 1)

    low, tie, high = scores(0.9, 0.5, 1.0), scores(0.95, 0.5, 1.0), scores(0.1, 0.6, 9.0)
    assert low.rank < tie.rank < high.rank
    assert not scores(0.0, 0.0, math.nan).finite
    assert Scores.read(low.to_dict()) == low


def test_a_fresh_model_is_at_chance() -> None:
    config = run_config("ar", d_model=16)
    scores = score(config.build_lm(), evaluation_set(config, config.build_task(), "test"))
    assert scores.loss == pytest.approx(math.log(me.build_task("ar").vocab_size), abs=0.1)
    assert scores.n == 320
