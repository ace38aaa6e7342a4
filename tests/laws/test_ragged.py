"""Laws of documents end to end: every mixer that takes them so, and every model, gives what padded batches give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mecheval as me
from intervene.models import CANON, small_lm
from laws.test_mixers import PATHS, ROUNDING, VARIANTS, D, assert_gradients, build, error, gradients, random
from mecheval.mixers import MIXERS, Attention
from mecheval.ops import dispatch
from mecheval.ops.queries import take
from mecheval.ops.ragged import Documents, documents_now, end_to_end

DOCUMENTS = Documents(torch.tensor([5, 37, 1, 2, 16, 33, 4]))
AT = torch.tensor([[4, 0, 4], [36, 3, 20], [0, 0, 0], [1, 0, 1], [15, 2, 2], [0, 32, 16], [3, 3, 1]])
RAGGED = [variant for variant in VARIANTS if vars(type(build(variant))).get("ragged")]
PAPER = ("attention", "base_conv", "based", "delta_net", "h3", "hyena", "mamba")


def run(mixer: nn.Module, x: Tensor, cotangent: Tensor, at: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Outputs and gradients with documents end to end, as of the padded batch x."""

    class EndToEnd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixer = mixer

        def forward(self, x: Tensor, *at: Tensor) -> Tensor:
            with end_to_end(DOCUMENTS):
                y: Tensor = self.mixer(DOCUMENTS.pack(x), *at)
            return y if at else DOCUMENTS.pad(y)

    return gradients(EndToEnd(), x, cotangent, at)


def test_the_mixers_of_the_paper_take_documents_end_to_end() -> None:
    assert {VARIANTS[variant][0] for variant in RAGGED} >= set(PAPER)


@pytest.mark.parametrize("variant", RAGGED)
def test_end_to_end_gives_what_padding_gives(variant: str) -> None:
    mixer, x = build(variant), DOCUMENTS.pad(random(1, len(DOCUMENTS.positions), D))
    inside = DOCUMENTS.pad(torch.ones(1, len(DOCUMENTS.positions), 1))  # what follows a document is of no interest
    for path in PATHS:
        for at in (None, AT):
            cotangent = random(*x.shape, seed=1) * inside if at is None else random(*at.shape, D, seed=1)
            with dispatch.path(path):
                wanted, exact = gradients(mixer, x, cotangent, at)
                y, found = run(mixer, x, cotangent, at)
            mask = inside if at is None else torch.ones(1)
            assert error(y * mask, wanted * mask) <= ROUNDING, path
            found[0], exact[0] = found[0] * inside, exact[0] * inside
            assert_gradients(found, exact, 1e-5)


@pytest.mark.parametrize("variant", [*PAPER, f"attention{CANON}", f"mamba{CANON}"])
def test_a_model_without_padding_gives_the_same_loss_and_gradients(variant: str) -> None:
    lm = small_lm(variant, vocab_size=15)
    tokens = DOCUMENTS.pad(
        torch.randint(3, 15, (1, len(DOCUMENTS.positions)), generator=torch.Generator().manual_seed(0))
    )
    targets = torch.randint(3, 15, AT.shape, generator=torch.Generator().manual_seed(1))

    def padded(tokens: Tensor, at: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(lm(tokens, at).flatten(0, 1), targets.flatten())

    results = []
    for loss in (padded, lm.loss):
        lm.zero_grad()
        y = loss(tokens, AT, targets)
        y.backward()
        results.append((y.detach(), [p.grad for p in lm.parameters() if p.grad is not None]))
    (wanted, exact), (y, found) = results
    assert error(y, wanted) <= ROUNDING
    assert_gradients(found, exact, 1e-5)


def test_only_models_that_say_so_are_run_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Kin(Attention):
        """A custom mixer, which may look back in its own way."""

        def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
            seen.append(documents_now())
            return super().forward(x, at)

    short, long = torch.tensor([[3], [3]]), torch.tensor([[9], [9]])
    tokens = torch.ones(2, 10, dtype=torch.int64)
    monkeypatch.setattr(Attention, "forward", _noting(Attention.forward, seen))
    lm = me.LM(5, 8, 2, "attention")
    lm.loss(tokens, short, short)
    assert all(each is not None for each in seen)
    for model, at in ((lm, long), (me.LM(5, 8, 2, lambda d_model: Kin(d_model, 0, Kin.Options())), short)):
        seen.clear()
        model.loss(tokens, at, torch.zeros_like(at))
        assert seen
        assert not any(seen)
    seen.clear()
    lm.taps()["blocks.0.mixer.q"].listener = lambda x: x
    lm.loss(tokens, short, short)
    assert not any(seen), "a listener expects a batch"


def _noting(forward: Any, seen: list[Any]) -> Any:
    def noted(self: Attention, x: Tensor, at: Tensor | None = None) -> Any:
        seen.append(documents_now())
        return forward(self, x, at)

    return noted


def test_positions_behind_a_document_are_refused() -> None:
    x = random(1, len(DOCUMENTS.positions), D)
    for name in MIXERS.names():
        if vars(type(mixer := build(name))).get("ragged"):
            with end_to_end(DOCUMENTS), pytest.raises(IndexError, match="behind the end of a document"):
                mixer(x, AT + 1)


def test_padding_and_packing_undo_each_other() -> None:
    x = torch.arange(len(DOCUMENTS.positions) * 2.0).view(1, -1, 2).requires_grad_()
    batch = DOCUMENTS.pad(x)
    assert batch.shape == (7, 37, 2)
    assert torch.equal(DOCUMENTS.pack(batch), x)
    assert not batch[2, 1:].any()
    assert torch.autograd.gradcheck(DOCUMENTS.pad, x.double().detach().requires_grad_())
    assert torch.autograd.gradcheck(lambda x: DOCUMENTS.pack(x) ** 2, batch.double().detach().requires_grad_())
    with end_to_end(DOCUMENTS):
        assert torch.equal(take(x, AT), batch[torch.arange(7)[:, None], AT])
