"""Custom mixers of hand-set models: fixed code on slots of the stream where no built-in layer does what is wanted.

B batch, L length, D width of the stream, W width of a code, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers import build_mixer
from mecheval.mixers.parts import ShortConv
from mecheval.model.handmade.heads import SHARPNESS
from mecheval.model.handmade.stream import ANSWER, CELLS, Layout
from mecheval.sites import Tap

TAPS = 4
"""Number of taps of the short convolutions."""


class Sum(nn.Module):
    """Several mixers side by side in one layer; their outputs are added. Without parts the layer is idle."""

    block = "mamba"  # no MLP, which would be far too large beside a wide stream

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        y = torch.zeros_like(x)
        for part in self.parts:
            y = y + part(x)
        return y


class Both(nn.Module):
    """Attention and DeltaNet side by side in one layer; their outputs are added."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.attention = build_mixer("attention", d_model, bias=True)
        self.delta_net = build_mixer("delta_net", d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        y: Tensor = self.attention(x) + self.delta_net(x)
        return y


class ConvAttention(nn.Module):
    """A depthwise causal convolution in front of attention, as in many hybrids."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.conv1d = ShortConv(d_model, TAPS, bias=False)
        self.conv = Tap("conv")
        self.attention = build_mixer("attention", d_model, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        y: Tensor = self.attention(self.conv(self.conv1d(x)))
        return y


class Shifted(nn.Module):
    """Linear attention whose keys come from the token before: key and value are joined and read in one layer.

    It names no site inside, so that an analysis has to find the shift by itself.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        q, k, v = self.q_proj(x), self.k_proj(self.shift(x)), self.v_proj(x)
        y: Tensor = self.out_proj((q @ k.mT).tril() @ v)
        return y

    def shift(self, x: Tensor) -> Tensor:
        """The tokens before, (B, L, D), with zeros in front."""
        return F.pad(x, (0, 0, 1, 0))[:, :-1]


class TokenShift(Shifted):
    """The shift is a pad and a slice, which belong to no module."""


class Foo(Shifted):
    """The shift is a plain convolution, channels first, under a meaningless name."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.foo = nn.Conv1d(d_model, d_model, TAPS, groups=d_model, padding=TAPS - 1, bias=False)

    def shift(self, x: Tensor) -> Tensor:
        """The tokens before, (B, L, D), with zeros in front."""
        y: Tensor = self.foo(x.mT)[..., : x.shape[1]].mT
        return y


class Collect(nn.Module):
    """At the divider: the keys and values of the whole body, each in a cell of its own."""

    def __init__(self, plan: Layout) -> None:
        super().__init__()
        self.slots, self.count = plan.slots, 2 * plan.task.options.pairs
        self.factor = plan.codes_per_token**0.5
        self.is_divider = nn.Parameter(torch.empty(plan.width))  # to be set to √codes times the code of EOS

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        body = x[:, 1 : 1 + self.count] * self.factor  # after BOS
        content = torch.stack([body[..., self.slots["key"]], body[..., self.slots["value"]]], dim=2)  # (B, S, 2, W)
        index = torch.arange(body.shape[1], device=x.device)
        cells = content[:, index, index % 2]  # (B, S, W): keys and values take turns
        gate = x[..., self.slots["frame"]] @ self.is_divider  # (B, L)
        past = torch.arange(x.shape[1], device=x.device)[:, None] > index  # (L, S), causal for any document
        written = torch.einsum("bl,ls,bsw->blsw", gate, past.to(x), cells).flatten(2)
        y = torch.zeros_like(x)
        y[..., self.slots[CELLS]][..., : written.shape[-1]] = written
        return y


class Recollect(nn.Module):
    """A query compares its key with those in the cells before it, and copies the value of the cell that matches."""

    def __init__(self, plan: Layout, answer: float = ANSWER) -> None:
        super().__init__()
        self.slots, self.width, self.pairs = plan.slots, plan.width, plan.task.options.pairs
        self.query_factor = plan.codes_per_token**0.5
        self.cell_factor = (2 * self.pairs + 2) ** 0.5  # the codes at the divider: the cells, EOS and the position
        self.answer = answer

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        cells = x[..., self.slots[CELLS]].cumsum(1) * self.cell_factor  # only the divider holds any
        keys, values = cells.unflatten(-1, (self.pairs, 2, self.width)).unbind(3)  # (B, L, P, W)
        q = x[..., self.slots["key"]] * self.query_factor
        scores = torch.einsum("blw,blpw->blp", q, keys) * SHARPNESS
        weights = (F.pad(scores, (0, 1), value=SHARPNESS / 2)).softmax(-1)[..., :-1]  # half a match wins nothing
        y = torch.zeros_like(x)
        y[..., self.slots["value"]] = self.answer * torch.einsum("blp,blpw->blw", weights, values)
        return y


class Guess(nn.Module):
    """If a token's key stands in slot `where` of an earlier token: all values of the document, evenly; else nothing."""

    def __init__(self, plan: Layout, where: str) -> None:
        super().__init__()
        self.slots, self.where = plan.slots, where
        stored = 1 if where == "previous" else 0  # a code more at every value
        self.query_factor = plan.codes_per_token**0.5
        self.store_factor = (plan.codes_per_token + stored) ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        scores = (x[..., self.slots["key"]] * self.query_factor) @ (
            x[..., self.slots[self.where]] * self.store_factor
        ).mT
        scores = (scores * SHARPNESS).tril(-1)  # not itself; where nothing matches, scores are 0
        present = F.pad(scores, (0, 1), value=SHARPNESS / 2).softmax(-1)[..., :-1].sum(-1, keepdim=True)  # (B, L, 1)
        y = torch.zeros_like(x)
        y[..., self.slots["value"]] = ANSWER * present * self.store_factor * x[..., self.slots["value"]].cumsum(1)
        return y


class Fetch(nn.Module):
    """A token looks for its key before itself and reads what stands after it: nothing joins key and value first."""

    def __init__(self, plan: Layout) -> None:
        super().__init__()
        self.slots, self.factor = plan.slots, plan.codes_per_token**0.5

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        key = x[..., self.slots["key"]] * self.factor
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu()
        scores = (key @ key.mT * SHARPNESS).masked_fill(later, -torch.inf)
        weights = F.pad(scores, (1, 0), value=SHARPNESS / 2).softmax(-1)[..., 1:]  # half a match wins nothing
        after = F.pad(x[:, 1:, self.slots["value"]], (0, 0, 0, 1))  # of earlier tokens, so not in the future
        y = torch.zeros_like(x)
        y[..., self.slots["value"]] = ANSWER * self.factor * weights @ after
        return y
