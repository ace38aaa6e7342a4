"""Inside layers from elsewhere: however they are written, what brings key and value together is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mecheval as me
from mecheval.intervene.finding import Finding
from mecheval.intervene.inside import Axes, _axes
from mecheval.mixers import Attention
from mecheval.model.handmade import handmade
from mecheval.model.handmade.heads import Copy, Match, attend, part_of, position_codes, previous_token_head
from mecheval.model.handmade.parts import Shifted
from mecheval.model.handmade.stream import ANSWER, SURE, embedding_only, head, layout
from mecheval.tasks import AR


class Roll(Shifted):
    def shift(self, x: Tensor) -> Tensor:
        return x.roll(1, 1)


class Windows(Shifted):
    def shift(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 3, 0)).unfold(1, 4, 1)[..., -2]


class Fourier(Shifted):
    def shift(self, x: Tensor) -> Tensor:
        twice = 2 * x.shape[1]
        turn = torch.fft.rfft(F.one_hot(torch.tensor(1), twice).to(x))[:, None]
        y: Tensor = torch.fft.irfft(torch.fft.rfft(x, twice, dim=1) * turn, twice, dim=1)
        return y[:, : x.shape[1]]


class Late(Shifted):
    """Shifts after the projections, so that no submodule has the shifted keys."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out_proj(self.mix(self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        return y

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ self.shift(k).mT).tril() @ v


class Written(Late):
    """In place, and nothing is computed of the shifted keys before they are used."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shifted = torch.zeros_like(k)
        shifted[:, 1:] = k[:, :-1]
        causal = torch.ones(k.shape[1], k.shape[1]).tril()
        return torch.einsum("bld,bmd,bme,lm->ble", q, shifted, v, causal)


class TimeFirst(Late):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # (L, B, D)
        k = torch.cat([torch.zeros_like(k[:1]), k[:-1]])
        weights = torch.einsum("lbd,mbd->lmb", q, k) * torch.ones(len(q), len(q)).tril()[..., None]
        return torch.einsum("lmb,mbd->lbd", weights, v).transpose(0, 1)


class Merged(Late):
    """Heads and documents on one axis; heads are slices of the values, which all look alike."""

    heads_first = False

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (self.merge(x) for x in (q.repeat(1, 1, 3), k.repeat(1, 1, 3), v))
        return self.part((q @ super().shift(k).mT).tril() @ v)

    def merge(self, x: Tensor) -> Tensor:
        order = (2, 0, 1, 3) if self.heads_first else (0, 2, 1, 3)
        y: Tensor = x.unflatten(2, (3, -1)).permute(order).flatten(0, 1)  # (3 B, L, D / 3)
        return y

    def part(self, x: Tensor) -> Tensor:
        apart: Tensor = x.unflatten(0, (3, -1)).transpose(0, 1) if self.heads_first else x.unflatten(0, (-1, 3))
        return apart.transpose(1, 2).flatten(2)


class MergedHeadsFirst(Merged):
    heads_first = True


class AnyModule(nn.Module):
    """A model as anyone could write it: its layers are a list of modules."""

    def __init__(self, lm: me.LM) -> None:
        super().__init__()
        self.embed, self.layers, self.norm = lm.embed, nn.ModuleList(lm.blocks), lm.norm

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return F.linear(self.norm(h), self.embed.weight)


TASK = me.build_task("ar", pairs=5, keys=13, values=13)
VARIANTS = (Roll, Windows, Fourier, Written, TimeFirst, Merged, MergedHeadsFirst)


def shifting(variant: type[Shifted], layer: int = 0) -> me.LM:
    lm = handmade("token_shift", TASK, layer=layer)
    lm.get_submodule(f"blocks.{layer}.mixer").__class__ = variant
    return lm


def judged(lm: me.LM, task: me.Task = TASK, n: int = 24) -> Finding:
    clean = task.sample(n, "test")
    return me.verdict(lm, clean, task.corrupt(clean), resamples=100).finding


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_shift_is_found_in_whatever_way_it_is_written(variant: type[Shifted]) -> None:
    found = judged(shifting(variant))
    assert (found, found.places) == (Finding("conv_association", 0), ("value",))


@pytest.mark.parametrize("layer", [0, 1])
def test_also_in_a_trained_module_where_no_submodule_shifts(layer: int) -> None:
    judgement = me.evaluate(AnyModule(shifting(Written, layer)), task=TASK, n=24, compare=False).verdict
    assert judgement is not None
    found = judgement.finding
    assert (found, found.places) == (Finding("conv_association", layer), ("value",))


class Steps(Late):
    """One token after the other: no result has positions, so nothing inside can be replaced at one."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        memory, before, read = torch.zeros(*k.shape[::2], v.shape[2]), torch.zeros_like(k[:, 0]), []
        for t in range(k.shape[1]):
            memory = memory + before[:, :, None] * v[:, t, None]
            before = k[:, t]
            read.append((q[:, t, None] @ memory)[:, 0])
        return torch.stack(read, dim=1)


def test_a_loop_over_time_hides_its_inside_and_the_verdict_claims_no_more_than_that() -> None:
    clean = TASK.sample(24, "test")
    found = me.verdict(shifting(Steps), clean, TASK.corrupt(clean), resamples=100)
    assert found.finding == Finding("direct_retrieval", 0)
    assert "Inside the layer, no activation between key and query restores more than 0.00" in found.evidence[-1]


Layout = tuple[tuple[int, ...], Axes, Callable[[Tensor], Tensor]]
LAYOUTS: dict[str, Layout] = {
    "as wide as long": ((16, 7, 7), Axes(0, True, 2), lambda x: x),
    "channels first": ((16, 7, 4), Axes(0, True, 3), lambda x: x.mT),
    "time first, as wide as there are documents": ((16, 7, 16), Axes(1, True, 0), lambda x: x.transpose(0, 1)),
    "documents and heads": ((16, 3, 7, 5), Axes(0, True, 2), lambda x: x.flatten(0, 1)),
    "heads and documents": ((16, 3, 7, 5), Axes(0, False, 2), lambda x: x.transpose(0, 1).flatten(0, 1)),
    "documents and positions": ((16, 7, 5), Axes(0, True, 1), lambda x: x.flatten(0, 1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_axes_are_found_by_where_documents_begin_to_differ(name: str) -> None:
    shape, wanted, arranged = LAYOUTS[name]
    key, generator = torch.tensor([1, 3, 2, 5, 1, 4, 2, 3]), torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    by_position = x.transpose(1, shape.index(7))  # (documents, L, ...)
    for document, first in enumerate(key.tolist()):
        by_position[8 + document, :first] = by_position[document, :first]  # corrupted documents after clean ones
    given = arranged(x)
    assert _axes(given, key, 7, padded=False) == wanted
    assert torch.equal(wanted.view(given, 16).flatten(), x.transpose(1, shape.index(7)).flatten())
    assert _axes(torch.randn(given.shape, generator=generator), key, 7, padded=False) is None


def reverse_recall(n_layers: int, layers: tuple[int, int]) -> tuple[me.LM, AR]:
    """The first working layer copies each key to the value after it; the last finds the asked value and reads there."""
    task: Any = me.build_task("ar", pairs=5, keys=13, values=13, query="value")
    stream = layout(task, ("key", "value", "previous", "position"), None)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        lm = embedding_only(stream, "attention", {"bias": True}, n_layers, 0, generator)
        store, retrieve = (part_of(lm, layer, Attention) for layer in layers)
        previous_token_head(lm, stream, store)
        where = [Match("value", "value"), Match("position", "position", -2.0)]  # not itself
        attend(retrieve, stream, where, [Copy("previous", "key", ANSWER * 3**0.5)], position_codes(lm, stream)[0])
        head(lm, stream, SURE)
        weight = lm.norm.weight
        weight[stream.slots["key"]], weight[stream.slots["value"]] = weight[stream.slots["value"]].clone(), 0.0
    return lm, task


@pytest.mark.parametrize(("n_layers", "layers"), [(2, (0, 1)), (4, (1, 3))])
def test_where_the_value_comes_first_it_is_stored_at_the_key(n_layers: int, layers: tuple[int, int]) -> None:
    found = judged(*reverse_recall(n_layers, layers))
    assert found == Finding("induction", layers[1], layers[0], "key")
    assert str(found) == f"induction: layer {layers[0]} stores the value at the key, layer {layers[1]} retrieves"
