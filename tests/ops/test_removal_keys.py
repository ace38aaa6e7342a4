"""The keys of RWKV-7: fast against reference, over heads of one channel to many, and keys from 0 to 1e4."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mecheval.ops.removal_keys import removal_keys, removal_keys_reference
from ops.agreement import LENGTHS, Op, assert_agree, assert_close, assert_same_alone, gradients, random


def inputs(batch: int, length: int, heads: int = 2, width: int = 5, scale: float = 1.0) -> list[Tensor]:
    keys, rates = (random(batch, length, heads, width, seed=seed) for seed in (1, 2))
    return [scale * keys, rates.sigmoid(), *(random(heads, width, seed=seed) for seed in (3, 4))]


def joined(op: Callable[..., tuple[Tensor, ...]]) -> Op:
    """k, a and b as one tensor."""
    return lambda *given: torch.stack(op(*given), dim=2)


def total(op: Callable[..., tuple[Tensor, ...]], *which: int) -> Op:
    """The sum of some of k, a and b, which still depends on all inputs."""
    return lambda *given: sum((y * (i in which) for i, y in enumerate(op(*given))), torch.zeros(()))


def test_worked_by_hand() -> None:
    """The key (3, 4) is doubled, and then made of length one."""
    p, r = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([[[[0.5, 1.0]]]])
    k, a, b = removal_keys(p, r, torch.tensor([[2.0, 2.0]]), torch.tensor([[1.0, 7.0]]))
    assert k.flatten().tolist() == [1.5, 4.0]
    assert a.flatten().tolist() == pytest.approx([-0.6, -0.8])
    assert b.flatten().tolist() == pytest.approx([0.3, 0.8])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("heads", "width"), [(1, 3), (3, 32), (2, 64)])
def test_fast_is_reference(length: int, heads: int, width: int) -> None:
    assert_agree(joined(removal_keys), joined(removal_keys_reference), inputs(3, length, heads, width))
    for scale in (1e-4, 1e4):  # the gradients of k would hide those of a and b, or the other way round
        for which in ((0,), (1, 2)):
            given = inputs(3, length, heads, width, scale)
            assert_agree(total(removal_keys, *which), total(removal_keys_reference, *which), given)


def test_one_channel_becomes_its_sign() -> None:
    """Its gradients are what is left where large terms cancel, so only values are compared."""
    given = inputs(3, 37, 2, 1)
    torch.testing.assert_close(removal_keys(*given), removal_keys_reference(*given))


def test_zeros_and_large_numbers_of_either_sign() -> None:
    """A key of zero stays one; its gradients, a thousand billion times as large as any other, are compared alone."""
    p, *rest = inputs(3, 37)
    p[1, :, :, ::2], p[1, :, :, 1::2], p[2, :, :, 0] = 1e4, -1e4, 0
    assert_agree(joined(removal_keys), joined(removal_keys_reference), [p, *rest])
    assert_agree(joined(removal_keys), joined(removal_keys_reference), [torch.zeros_like(p), *rest])
    assert not joined(removal_keys)(torch.zeros_like(p), *rest).any()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_result_that_is_used(which: int) -> None:
    assert_agree(lambda *given: removal_keys(*given)[which], total(removal_keys_reference, which), inputs(3, 37))


@pytest.mark.parametrize("wanted", range(4))
def test_gradients_for_one_input_only(wanted: int) -> None:
    given = inputs(3, 37)

    def of_one(op: Callable[..., tuple[Tensor, ...]]) -> Op:
        return lambda one: joined(op)(*(one if i == wanted else x.to(one.dtype) for i, x in enumerate(given)))

    assert_agree(of_one(removal_keys), of_one(removal_keys_reference), [given[wanted]])


def test_one_rate_for_all() -> None:
    p, r, s, t = inputs(3, 37)
    assert_agree(total(removal_keys, 0, 1, 2), total(removal_keys_reference, 0, 1, 2), [p, r[:1, :1], s, t])


def test_alone_and_without_contiguity() -> None:
    p, r, s, t = given = inputs(4, 37)
    assert_same_alone(lambda documents: joined(removal_keys)(p[documents], r[documents], s, t), 4)
    turned = [*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (p, r)), *(x.T.contiguous().T for x in (s, t))]
    assert_close(gradients(joined(removal_keys), turned), gradients(joined(removal_keys), given))
