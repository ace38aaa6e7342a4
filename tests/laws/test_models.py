"""Laws of whole models: of every mixer with all Canon convolutions that it has places for, and of a hybrid."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mecheval as me
from intervene.models import CANON, VARIANTS, small_lm
from mecheval.ops import dispatch
from ops.agreement import VALUES, assert_close, rounding

NEW = [variant for variant in VARIANTS if "+" in variant or variant.endswith(CANON)]
EVERY = pytest.mark.parametrize("variant", NEW)
TOKENS = torch.randint(3, 15, (4, 30), generator=torch.Generator().manual_seed(0))


def model(variant: str) -> me.LM:
    return small_lm(variant, vocab_size=15)


def close(ours: Tensor, theirs: Tensor) -> None:
    assert_close([ours], [theirs])


@EVERY
def test_changing_a_token_changes_no_earlier_logits(variant: str) -> None:
    lm, changed = model(variant), TOKENS.clone()
    changed[:, 17] = 3 + (changed[:, 17] - 2) % 12
    with torch.no_grad():
        before, after = lm(TOKENS), lm(changed)
    close(after[:, :17], before[:, :17])
    assert (after[:, 17:21] - before[:, 17:21]).abs().amax((0, 2)).min() > 1e-4, "a short convolution reaches 3 tokens"


@EVERY
def test_a_document_depends_on_neither_batch_mates_nor_padding(variant: str) -> None:
    lm = model(variant)
    with torch.no_grad():
        together = lm(TOKENS)
        for i in range(4):
            close(lm(TOKENS[i : i + 1, :21])[0], together[i, :21])


@EVERY
def test_logits_and_gradients_at_positions_are_those_of_the_whole(variant: str) -> None:
    lm, rows = model(variant), torch.arange(4)[:, None]
    at = torch.tensor([[29, 3, 3], [0, 1, 2], [19, 29, 5], [4, 4, 0]])
    few, whole = lm(TOKENS, at=at), lm(TOKENS)[rows, at]
    close(few, whole)
    trained = [weight for weight in lm.parameters() if weight.requires_grad]
    wanted, found = (torch.autograd.grad(y.logsumexp(-1).sum(), trained) for y in (whole, few))
    most = max(float(gradient.abs().max()) for gradient in wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        # Terms that cancel, as in a gradient of 0, are as large as the gradients that do not.
        assert float((ours - theirs).abs().max()) <= max(1e-4 * float(theirs.abs().max()), rounding(1) * most)


@EVERY
def test_fast_equals_the_double_precision_reference(variant: str) -> None:
    lm = model(variant)
    with torch.no_grad(), dispatch.path("fast"):
        fast = lm(TOKENS)
    with torch.no_grad():
        exact = lm.double()(TOKENS)
    assert float((fast - exact).abs().max() / exact.abs().max()) <= VALUES


@EVERY
def test_saved_and_loaded_weights_give_the_same_logits(variant: str) -> None:
    first, second = model(variant), model(variant)
    for weight in second.parameters():
        weight.data.zero_()
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(TOKENS), second(TOKENS))  # the very same calls


@EVERY
def test_every_canon_convolution_matters(variant: str) -> None:
    """A mixer that names maps for Canon B must call them as modules, or their convolutions would do nothing."""
    lm = model(variant)
    found = {name: weight for name, weight in lm.named_parameters() if ".canon." in name}
    assert bool(found) == variant.endswith(CANON)
    with torch.no_grad():
        before = lm(TOKENS)
        for name, weight in found.items():
            kept = weight.clone()
            weight.zero_()
            assert (lm(TOKENS) - before).abs().max() > 1e-3, name
            weight.copy_(kept)
