"""Products by either library, and the rule that chooses between them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.ops import dispatch
from mecheval.ops import product as products
from mecheval.ops.product import Linear, chosen, linear, product
from ops.agreement import assert_agree, random, rounding

needs_onednn = pytest.mark.skipif(not products._works(), reason="this PyTorch has no such call of oneDNN")


def layouts(rows: int, columns: int, seed: int) -> dict[str, Tensor]:
    """The same matrix as it may lie in memory: dense, transposed, and with gaps either way."""
    x = random(rows, columns, seed=seed)
    wide, tall = torch.full((rows, 3 * columns), torch.nan), torch.full((columns, 3 * rows), torch.nan)
    wide[:, columns : 2 * columns], tall[:, rows : 2 * rows] = x, x.mT
    return {
        "dense": x, "transposed": x.mT.contiguous().mT,
        "gaps between rows": wide[:, columns : 2 * columns], "gaps between columns": tall[:, rows : 2 * rows].mT,
    }  # fmt: skip


@needs_onednn
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 37, 5), (37, 64, 100), (1, 300, 63)])
def test_every_layout_gives_the_plain_product(shape: tuple[int, int, int]) -> None:
    """To the rounding of its sums, and to the same bytes whenever it is computed again."""
    m, k, n = shape
    for a in layouts(m, k, seed=1).values():
        for b in layouts(k, n, seed=2).values():
            with dispatch.path("fast"):
                found, again = product(a, b), product(a, b)
            size = (a.abs() @ b.abs()).max()
            assert float((found - a @ b).abs().max()) <= rounding(k) * float(size)
            assert torch.equal(found, again)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (1, 1), (3, 37), (2, 0)])
def test_a_linear_map_and_its_gradients_are_those_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    inputs = [random(*shape, 24, seed=1), random(40, 24, seed=2), *[random(40, seed=3)] * bias]
    if 0 in shape:
        with dispatch.path("fast"):
            assert linear(*inputs).shape == (*shape, 40)
        return
    assert_agree(linear, F.linear, inputs)


@needs_onednn
def test_gradients_are_computed_only_where_they_are_wanted() -> None:
    x, weight, bias = random(3, 5, 24, seed=1), random(40, 24, seed=2).requires_grad_(), random(40, seed=3)
    with dispatch.path("fast"):
        linear(x, weight, bias).sum().backward()
    assert x.grad is None
    assert bias.grad is None
    torch.testing.assert_close(weight.grad, x.sum((0, 1)).expand(40, 24))


def test_the_module_is_torchs_own_but_for_its_product() -> None:
    ours, theirs = Linear(24, 40), nn.Linear(24, 40)
    theirs.load_state_dict(ours.state_dict())
    x = random(3, 5, 24, seed=1)
    with dispatch.path("reference"):
        assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.double()(x.double()), theirs.double()(x.double()))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Pretend to be on a processor for a while."""

    def pretend(vendor: str, family: int, capability: str = "AVX512", works: bool = True) -> str:
        monkeypatch.setattr(products, "processor", lambda: (vendor, family))
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        monkeypatch.setattr(products, "_works", lambda: works)
        products._gain.cache_clear()
        return chosen()

    yield pretend
    products._gain.cache_clear()


def test_the_rule_knows_processors_and_shapes(on) -> None:  # type: ignore[no-untyped-def]
    plain = [
        on("GenuineIntel", 6), on("AuthenticAMD", 25, "AVX2"), on("AuthenticAMD", 26, "DEFAULT"),
        on("AuthenticAMD", 23), on("", 0), on("AuthenticAMD", 26, works=False),
    ]  # fmt: skip
    assert set(plain) == {"plain"}
    assert on("AuthenticAMD", 25) == "oneDNN from 16,000,000 multiply-adds"
    assert products._is_worth_it(16_000_000)
    assert not products._is_worth_it(15_999_999)
    assert not products._is_worth_it(16_000_000, turned=True)
    assert on("AuthenticAMD", 26) == on("AuthenticAMD", 27) == "oneDNN from 2,000,000 multiply-adds (all)"
    assert products._is_worth_it(2_000_000, turned=True)
    with dispatch.path("reference"):
        x, weight = random(1200, 64, seed=1), random(64, 64, seed=2)
        assert torch.equal(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize(
    "private",
    [
        SimpleNamespace(),
        SimpleNamespace(_linear_pointwise=lambda x, w, b, *rest: F.linear(x, w, b) + 1e-3),
        SimpleNamespace(_linear_pointwise=lambda x: x),
    ],
)
def test_a_call_that_is_missing_or_errs_is_not_used(private: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", private)
    assert not products._works.__wrapped__()
