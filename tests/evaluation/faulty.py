"""Mixers with one fault each, and some without, as users write them."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers import Mixer, MixerOptions
from mecheval.sites import Tap


class Good(nn.Module):
    """Linear attention behind a short convolution."""

    def __init__(self, d_model: int, width: int = 3) -> None:
        super().__init__()
        self.short = nn.Conv1d(d_model, d_model, width, groups=d_model, padding=width - 1)
        self.conv = Tap("conv")
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        u = self.conv(self.short(x.mT)[..., : x.shape[1]].mT)
        q, k, v = self.qkv(u).chunk(3, dim=-1)
        y: Tensor = (q @ k.mT / x.shape[-1]).tril() @ v
        return y


class Plain(nn.Module):
    """A base for faults: identity, with a weight."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_model, d_model) / math.sqrt(d_model))

    def forward(self, x: Tensor) -> Any:
        return x @ self.weight


class NoForward(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()


class TwoInputs(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return x


class NoWidth(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class Needs(Plain):
    def __init__(self, d_model: int, d_state: int, heads: int) -> None:
        super().__init__(d_model)
        self.d_state = d_state + heads


class FailsToBuild(Plain):
    def __init__(self, d_model: int) -> None:
        raise RuntimeError("out of\nideas")


class FailsToRun(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x


class OnlyOneToken(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], 1, x.shape[2])


class Halved(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x[..., : x.shape[-1] // 2]


class Tupled(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return x @ self.weight, None


class Listless(Plain):
    def forward(self, x: Tensor) -> str:
        return "x"


class StateFirst(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ self.weight).cumsum(1)
        return y[:, -1], y


class Chunks(Plain):
    """Made for documents of whole chunks."""

    def forward(self, x: Tensor) -> Tensor:
        chunks = (x @ self.weight).view(x.shape[0], x.shape[1] // 4, 4, x.shape[2])
        return chunks.cumsum(2).view(x.shape)


class Remembers(Plain):
    """Begins where the documents of the call before ended."""

    seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = (x @ self.weight).cumsum(1)
        y = y if self.seen is None else y + self.seen
        self.seen = y[:, -1].mean(0).detach()
        return y


class InPlace(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x *= 0.5
        return (x @ self.weight).cumsum(1)


class Positions(Plain):
    def forward(self, x: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        return x * position_ids[:, :, None].cos() @ self.weight  # type: ignore[index]


class Half(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_model, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x).cumsum(1)
        return y


class InAList(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.layers = [nn.Linear(d_model, d_model)]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers[0](x)
        return y


class Doubled(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x.double()


class GivesNaN(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x / (torch.arange(x.shape[1]) > 4)[None, :, None].float() * 0


class GivesInfinity(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).abs().add(1e4).square().square().square().square()


class BadGradient(Plain):
    def forward(self, x: Tensor) -> Tensor:
        zero = (self.weight - self.weight).sum()
        return x + zero.sqrt()


class InfiniteGradient(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x + (self.weight - self.weight.detach()).sum().sqrt()


class Detached(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).detach()


class Untrained(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.detach()


class Constant(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight[0].expand_as(x)


class Future(Plain):
    """Softmax over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ x @ self.weight


class CentredConvolution(nn.Module):
    """Sees one token ahead."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.short = nn.Conv1d(d_model, d_model, 3, groups=d_model, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.short(x.mT).mT
        return y


class MeanOfAll(Plain):
    """Hidden behind a projection that starts as zero."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True).expand_as(x) @ self.weight


class FutureInTraining(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(1, keepdim=True) if self.training else x


class LongConvolution(nn.Module):
    """By FFT, causal up to rounding."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(d_model, 2048) * 30)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        spectrum = torch.fft.rfft(x.mT, n=2 * n) * torch.fft.rfft(self.filter[:, :n], n=2 * n)
        y: Tensor = torch.fft.irfft(spectrum, n=2 * n)[..., :n].mT
        return y


class Normed(nn.Module):
    """Batch norm: over documents and positions."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.mT).mT
        return y


class Noisy(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Dropped(Plain):
    """Dropout is fine: evaluation mode switches it off."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x @ self.weight, 0.5, self.training)


class Grows(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(x.shape[-1], x.shape[-1])
        y: Tensor = self.late(x)
        return y


class Lazy(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.LazyLinear(d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y


class OtherRandom(Plain):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.scale = nn.Parameter(torch.tensor(random.SystemRandom().random()))


class NoParameters(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class Limited(Plain):
    """Made for short documents, as one with a position table is."""

    def __init__(self, d_model: int, limit: int) -> None:
        super().__init__(d_model)
        self.places = nn.Parameter(torch.randn(limit, d_model))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.places[torch.arange(x.shape[1])]


class BadTap(Plain):
    """A site that has no position axis where its shape says."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.tap = Tap("flat")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.tap((x @ self.weight).flatten(0, 1)).view_as(x)
        return y


class HouseOptions(MixerOptions):
    heads: int = 1


class House(Mixer):
    """A `Mixer` of one's own, with declared options, that answers where it is asked."""

    Options = HouseOptions

    def __init__(self, d_model: int, layer: int, options: HouseOptions) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        y: Tensor = self.inner(x).cumsum(1)
        return y if at is None else y[torch.arange(len(x))[:, None], at]

    def state_size(self, length: int) -> int:
        return self.inner.out_features


class WrongAt(House):
    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        return super().forward(x) if at is None else super().forward(x)[:, : at.shape[1]]


def function(d_model: int) -> nn.Module:
    return Plain(d_model)


class NotAModule:
    def __init__(self, d_model: int) -> None:
        pass


number = 3
