from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mecheval.ops import dispatch
from mecheval.ops import ragged_attention as module
from mecheval.ops.ragged import Documents
from mecheval.ops.ragged_attention import ragged_attention, ragged_attention_reference
from ops.agreement import assert_agree, random

LENGTHS = (1, 2, 37, 4, 1, 17)
DOCUMENTS = Documents(torch.tensor(LENGTHS))
TOKENS = sum(LENGTHS)


def test_worked_by_hand() -> None:
    """Two documents; the second token of the first sees scores 0 and ln 3, so weights of 1/4 and 3/4."""
    q, k, v = torch.tensor([5.0, 1.0, 2.0]), torch.tensor([0.0, math.log(3), 9.0]), torch.tensor([4.0, 8.0, 7.0])
    o = ragged_attention(torch.stack([q, k, v], dim=1)[None], 1, Documents(torch.tensor([2, 1])))
    assert o.flatten().tolist() == pytest.approx([4.0, 7.0, 7.0])


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (1, 64), (2, 3), (3, 5), (4, 16)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
def test_fast_is_reference(heads: int, width: int, scale: float) -> None:
    """From weights that are all alike to weights of which one has everything."""
    qkv = scale * random(1, TOKENS, 3 * heads * width, seed=1)
    assert_agree(
        lambda x: ragged_attention(x, heads, DOCUMENTS),
        lambda x: ragged_attention_reference(x, heads, DOCUMENTS),
        [qkv],
    )


def test_where_most_pairs_are_real_the_library_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of one length are a batch without padding, which the loops leave to the library."""
    asked: list[int] = []

    def seen(qkv: Tensor, heads: int, documents: Documents) -> Tensor:
        asked.append(documents.longest)
        return ragged_attention_reference(qkv, heads, documents)

    monkeypatch.setattr(module, "ragged_attention_reference", seen)
    with dispatch.path("fast"):
        ragged_attention(random(1, TOKENS, 6, seed=1), 1, DOCUMENTS)
        assert not asked
        ragged_attention(random(1, 36, 6, seed=1), 1, Documents(torch.tensor([12, 12, 12])))
    assert asked == [12]


def test_a_document_does_not_depend_on_the_others() -> None:
    qkv = random(1, TOKENS, 6, seed=1)
    together = ragged_attention(qkv, 2, DOCUMENTS)
    turned = Documents(torch.tensor(LENGTHS[::-1]))
    parts = list(qkv.split(LENGTHS, dim=1))
    backwards = ragged_attention(torch.cat(parts[::-1], dim=1), 2, turned)
    assert torch.equal(torch.cat(list(backwards.split(LENGTHS[::-1], dim=1))[::-1], dim=1), together)
