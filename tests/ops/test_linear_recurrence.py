"""The linear recurrence: every case of it on both paths, at awkward sizes, with strong, absent and total decay."""

from __future__ import annotations

import math
import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops import dispatch
from mecheval.ops.linear_recurrence import (
    FEW,
    MEMORY,
    _delta_on_gpu,
    linear_recurrence,
    linear_recurrence_reference,
    linear_recurrence_states,
)
from mecheval.ops.queries import take
from mecheval.ops.ragged import Documents, end_to_end
from mecheval.ops.recurrence_chunks import ONE_CHUNK
from ops.agreement import (
    LENGTHS,
    Op,
    assert_agree,
    assert_close,
    assert_close_alone,
    assert_same_alone,
    gradients,
    positions,
    random,
)

CASES = {
    "linear attention": (),
    "retnet": ("head",),
    "gla": ("channel",),
    "delta_net": ("beta",),
    "gated_delta_net": ("head", "beta"),
    "delta_net by products": ("beta",),
    "gated_delta_net by products": ("head", "beta"),
    "kda": ("channel", "beta"),
    "rwkv7": ("channel", "a", "b"),
    "corrected, no decay": ("a", "b"),
}
"""The parts that a recurrence has, by mixer."""
CHUNKED = ("linear attention", "retnet", *(case for case in CASES if "by" in case))
"""Those that go through matrix products; the others go through our own loops, which are the same to the bit alone."""
EVERY = pytest.mark.parametrize("case", CASES)
DELTA = pytest.mark.parametrize("case", [case for case, parts in CASES.items() if "beta" in parts])


@pytest.fixture(autouse=True)
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small memories go through loops; these cases do not."""
    if "by products" in request.node.name:
        for limit in ("FEW", "MEMORY", "SUM", "SMALL"):
            monkeypatch.setattr(f"mecheval.ops.linear_recurrence.{limit}", -1)


def inputs(
    case: str, batch: int, length: int, heads: int = 2, key_size: int = 5, value_size: int = 9, decay: float = 0.3
) -> list[Tensor]:
    """q, k, v and the parts: unit keys and queries, strengths between 0 and 1, log-decays between -decay and 0."""
    per_head, per_channel = (batch, length, heads), (batch, length, heads, key_size)
    q, k, a = (F.normalize(random(*per_channel, seed=seed), dim=-1) for seed in (1, 2, 3))
    parts = {
        "head": -decay * random(*per_head, seed=5).sigmoid(),
        "channel": -decay * random(*per_channel, seed=6).sigmoid(),
        "beta": random(*per_head, seed=7).sigmoid(),
        "a": -a,
        "b": a * random(*per_channel, seed=8).sigmoid(),
    }
    return [q, k, random(*per_head, value_size, seed=4), *(parts[name] for name in CASES[case])]


def named(case: str, parts: tuple[Tensor, ...]) -> dict[str, Tensor]:
    names = ("g" if name in ("head", "channel") else name for name in CASES[case])
    return dict(zip(names, parts, strict=True))


def op(case: str, **more: Any) -> Any:
    """The op as a function of q, k, v and the parts."""
    whole: Any = linear_recurrence
    return lambda q, k, v, *parts: whole(q, k, v, **named(case, parts), **more)


def op_at(case: str) -> Op:
    """The op as a function of q, k, v, the parts, and `at`."""
    return lambda *inputs, at=None: op(case, at=at)(*inputs)


def reference(case: str, **more: Any) -> Op:
    return lambda q, k, v, *parts: linear_recurrence_reference(q, k, v, **named(case, parts), **more)[0]


def both(function: Any) -> Op:
    """A result and the memory after the last position as one vector."""
    return lambda *inputs: torch.cat([x.flatten() for x in function(*inputs)])


def test_delta_rule_worked_by_hand() -> None:
    """Two keys; the first is written 5, then moved half way to 9."""
    k, v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([[5.0], [7.0], [9.0]])
    beta, q = torch.tensor([1.0, 1.0, 0.5]), torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    q, k, v, beta = q.view(1, 3, 1, 2), k.view(1, 3, 1, 2), v.view(1, 3, 1, 1), beta.view(1, 3, 1)
    for path in ("reference", "fast"):
        with dispatch.path(path):
            assert linear_recurrence(q, k, v, beta=beta).flatten().tolist() == [5.0, 12.0, 7.0]
            at = torch.tensor([[2, 0]])
            assert linear_recurrence(q[:, [2, 0]], k, v, beta=beta, at=at).flatten().tolist() == [7.0, 5.0]


def test_decay_and_correction_worked_by_hand() -> None:
    """4 and 8 under two keys; the first halves at each step, and a correction copies it to the second."""
    k, v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 2, 1, 2), torch.tensor([4.0, 8.0]).view(1, 2, 1, 1)
    g = torch.tensor([math.log(0.5), 0.0]).expand(1, 2, 1, 2)
    a, b = torch.tensor([1.0, 0.0]).expand(1, 2, 1, 2), torch.tensor([0.0, 1.0]).expand(1, 2, 1, 2)
    for path in ("reference", "fast"):
        with dispatch.path(path):
            _, S = linear_recurrence(k, k, v, g=g, final_state=True)
            torch.testing.assert_close(S.flatten(), torch.tensor([2.0, 8.0]))
            _, S = linear_recurrence(k, k, v, g=g, a=a, b=b, final_state=True)
            torch.testing.assert_close(S.flatten(), torch.tensor([2.0, 12.0]))


def test_full_strength_recalls_the_newest_value() -> None:
    _, k, v, beta = inputs("delta_net", 2, 50)
    assert_close([linear_recurrence(k, k, v, beta=torch.ones_like(beta))], [v])


@EVERY
@pytest.mark.parametrize("length", [*LENGTHS, ONE_CHUNK + 1, 300])
def test_fast_is_reference(length: int, case: str) -> None:
    """At each length with sizes that fill no register, at some with single numbers and with keys that fill one."""
    others = ((1, 1, 1), (1, 16, 4)) if length in (2, ONE_CHUNK + 1) else ()
    for heads, key_size, value_size in ((3, 5, 9), *others):
        assert_agree(op(case), reference(case), inputs(case, 2, length, heads, key_size, value_size))


@EVERY
@pytest.mark.parametrize("count", [None, 3, ONE_CHUNK + 20])
def test_fast_is_reference_from_a_state_to_a_state(count: int | None, case: str) -> None:
    for length in (1, 40, 100):
        at = None if count is None else positions(2, count, length)
        q, *rest = inputs(case, 2, length)
        given = [random(2, 2, 5, 9, seed=9), q if at is None else take(q, at), *rest]

        def fast(S: Tensor, *rest: Tensor, at: Tensor | None = at) -> Any:
            return op(case, initial_state=S, at=at, final_state=True)(*rest)

        def slow(S: Tensor, q: Tensor, k: Tensor, v: Tensor, *parts: Tensor, at: Tensor | None = at) -> Any:
            return linear_recurrence_reference(q, k, v, **named(case, parts), initial_state=S, at=at)

        assert_agree(both(fast), both(slow), given)


@EVERY
@pytest.mark.parametrize("count", [5, ONE_CHUNK + 20])
def test_positions_are_a_choice_of_outputs(count: int, case: str) -> None:
    at, given = positions(3, count, 100), inputs(case, 3, 100)
    wanted = gradients(lambda *x: take(op(case)(*x), at), given)
    assert_close(gradients(lambda q, *rest: op(case, at=at)(take(q, at), *rest), given), wanted)


@pytest.mark.parametrize("case", ["retnet", "gla", "gated_delta_net", "gated_delta_net by products", "kda", "rwkv7"])
def test_strong_weak_and_total_decay(case: str) -> None:
    """-20 a step; none; a few strong ones, beside which the weak must keep their digits; and all forgotten."""
    given = inputs(case, 2, 150, decay=1.0)
    g = given[3]
    some = random(*g.shape, seed=10) > 1.2
    for decay in (torch.full_like(g, -20.0), torch.zeros_like(g), torch.where(some, -3000.0, 0.01 * g)):
        assert_agree(op(case), reference(case), [*given[:3], decay, *given[4:]])
    gone = torch.where(some, -torch.inf, g)
    found, wanted = (f(*given[:3], gone, *given[4:]) for f in (op(case), reference(case)))
    assert_close([found], [wanted])
    forgotten = op(case, final_state=True)(*given[:3], torch.full_like(g, -torch.inf), *given[4:])[1]
    assert forgotten.isfinite().all()


@EVERY
def test_long_documents(case: str) -> None:
    """Of 16 chunks, over which hardly anything decays; those of 300 tokens have a last chunk that is not full."""
    assert_agree(op(case), reference(case), inputs(case, 1, 512, 1, 4, 3, decay=0.01))


@pytest.mark.parametrize("slab", [1, 150, 700, 5000])
def test_documents_and_heads_are_taken_slab_by_slab(monkeypatch: pytest.MonkeyPatch, slab: int) -> None:
    """A document or a head at a time, some of them, or all, each with a last chunk that is full and one that is not."""
    monkeypatch.setattr("mecheval.ops.recurrence_sums.SLAB", slab)
    for length in (96, 100):
        *given, S = *inputs("retnet", 5, length, heads=3), random(5, 3, 5, 9, seed=9)

        def fast(S: Tensor, *rest: Tensor) -> Any:
            return op("retnet", initial_state=S, final_state=True)(*rest)

        def slow(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
            return linear_recurrence_reference(q, k, v, g=g, initial_state=S)

        assert_agree(both(fast), both(slow), [S, *given])


@DELTA
def test_strengths_of_nothing_and_two_and_keys_of_zeros(case: str) -> None:
    """With 2 the memory is reflected at the key, with 0 or without a key nothing is written."""
    q, k, v, *decay, beta = inputs(case, 2, 70, heads=3)
    k[:, ::3], beta[:, 1::2], beta[:, ::4] = 0.0, 2.0, 0.0
    assert_agree(op(case), reference(case), [q, k, v, *decay, beta])


@DELTA
def test_keys_that_repeat_at_full_strength(case: str) -> None:
    """Where undoing an update would divide by zero; and strengths of 2, which turn signs around."""
    q, k, v, *parts, beta = inputs(case, 2, 200)
    repeated = k[:, :3].repeat(1, 67, 1, 1)[:, :200]
    for strength in (1.0, 2.0):
        assert_agree(op(case), reference(case), [q, repeated, v, *parts, torch.full_like(beta, strength)])


@DELTA
def test_many_long_documents_and_few_agree(case: str) -> None:
    """One alone goes through loops, all together through products."""
    given = inputs(case, 8, 100, heads=1, key_size=FEW // 4, value_size=MEMORY // FEW * 4 + 1)
    assert_close_alone(lambda documents: op(case)(*(x[documents] for x in given)), 8)


@pytest.mark.parametrize("case", [*CASES, "linear attention by products", "retnet by products"])
def test_documents_end_to_end_are_as_padded_ones(case: str) -> None:
    """Short ones, one as long as a segment, and some of several segments or chunks, alone and beside others."""
    which = case.removesuffix(" by products")
    for lengths in ([5, 16, 1, 37, 33, 4], [7], [3, 100, 64, 17]):
        documents = Documents(torch.tensor(lengths))
        given = inputs(which, 1, sum(lengths))
        for at in (None, torch.stack([positions(1, 4, n)[0] for n in lengths])):
            q = given[0] if at is None else random(*at.shape, 2, 5, seed=1)

            def packed(q: Tensor, *rest: Tensor, at: Tensor | None = at, documents: Documents = documents) -> Tensor:
                with end_to_end(documents):
                    o: Tensor = op(which, at=at)(q, *rest)
                return o

            def padded(*given: Tensor, at: Tensor | None = at, documents: Documents = documents) -> Tensor:
                batch = [documents.pad(x) for x in (given if at is None else given[1:])]
                o = reference(which, at=at)(*(batch if at is None else (given[0], *batch)))
                return documents.pack(o) if at is None else o

            assert_agree(packed, padded, [q, *given[1:]])


@EVERY
def test_reference_gradients_are_numerical_gradients(case: str) -> None:
    leaves = [x.double().requires_grad_() for x in inputs(case, 1, 3, 1, 2, 2)]
    for at in (None, torch.tensor([[2, 0, 2]])):
        assert torch.autograd.gradcheck(reference(case, at=at), leaves, fast_mode=True)


@EVERY
def test_alone(case: str) -> None:
    """To the bit in our own loops; elsewhere to rounding: products may be taken by another method for another batch."""
    given = inputs(case, 4, 37)
    alone = assert_close_alone if case in CHUNKED else assert_same_alone
    alone(lambda documents: op(case)(*(x[documents] for x in given)), 4)


@EVERY
def test_strided_inputs_and_single_gradients(case: str) -> None:
    given = inputs(case, 2, 19)
    wanted = gradients(op(case), given)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    assert_close(gradients(op(case), strided), wanted)
    for i in range(len(given)):
        leaves = [x.detach().requires_grad_(j == i) for j, x in enumerate(given)]
        out = op(case)(*leaves)
        (alone,) = torch.autograd.grad(out, leaves[i], random(*out.shape, seed=99))
        assert_close([alone], [wanted[1 + i]])
    with torch.no_grad():
        assert_close([op(case)(*given)], [wanted[0]])


@EVERY
def test_output_reads_the_states_and_stops_and_goes_on(case: str) -> None:
    q, k, v, *parts = inputs(case, 2, 50)
    states = linear_recurrence_states(k, v, **named(case, tuple(parts)))
    whole, last = op(case, final_state=True)(q, k, v, *parts)
    assert_close([torch.einsum("blhde,blhd->blhe", states, q), states[:, -1]], [whole, last])
    first, S = op(case, final_state=True)(*(x[:, :21] for x in (q, k, v, *parts)))
    second = op(case, initial_state=S)(*(x[:, 21:] for x in (q, k, v, *parts)))
    assert_close([torch.cat([first, second], dim=1)], [whole])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpu_package_gets_its_layout(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """A stand-in with fla's documented layout, scale and refusal of float32 in chunks."""

    def recurrent(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, None]:
        return linear_recurrence_reference(q * scale, k, v, beta=beta)[0], None

    def chunked(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, None]:
        assert q.dtype != torch.float32
        return recurrent(q, k, v, beta, scale)

    module = ModuleType("fla.ops.delta_rule")
    module.chunk_delta_rule, module.fused_recurrent_delta_rule = chunked, recurrent  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    at, (q, k, v, beta) = positions(3, 6, 15), [x.to(dtype) for x in inputs("delta_net", 3, 15)]
    torch.testing.assert_close(_delta_on_gpu(q, k, v, beta, None), linear_recurrence(q, k, v, beta=beta))
    some = take(q, at)
    torch.testing.assert_close(_delta_on_gpu(some, k, v, beta, at), linear_recurrence(some, k, v, beta=beta, at=at))


def test_what_does_not_fit_is_refused() -> None:
    q, k, v, g, a, b = inputs("rwkv7", 1, 3)
    run = partial(linear_recurrence, k=k, v=v)
    with pytest.raises(IndexError, match="positions 0 to 2"):
        run(q[:, :1], g=g, at=torch.tensor([[3]]))
    for wrong, message in (
        ({"beta": g[:, :2, :, 0]}, "beta has shape"),
        ({"g": g[:, :, :1]}, "g has shape"),
        ({"initial_state": v[:, 0]}, "initial_state has shape"),
        ({"a": a}, "a and b go together"),
        ({"a": a, "b": b, "beta": g[..., 0]}, "and without beta"),
    ):
        with pytest.raises(ValueError, match=message):
            run(q, **wrong)
