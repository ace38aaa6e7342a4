"""What mixers with a matrix memory share: projections, short convolutions, sites, and the recurrence.

B batch, L length, K positions asked for, H heads, E width of a head's keys, V of its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.mixers.base import Mixer
from mecheval.mixers.options import GLAOptions, RetNetOptions
from mecheval.mixers.parts import RMSNorm, ShortConv, projected_conv_at
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_states
from mecheval.ops.product import Linear
from mecheval.ops.queries import take
from mecheval.ops.unit_silu import unit_silu
from mecheval.ops.weights import of_result, one_value_each
from mecheval.sites import Tap


class MemoryMixer(Mixer):
    """Queries, keys and values of H heads, each with a memory (E, V) that the linear recurrence writes and reads.

    A mixer creates its own maps between `__init__` and `add_sites`, so that parameters are in upstream's order.
    """

    q: Tap
    k: Tap
    v: Tap
    gate: Tap
    g_proj: nn.Module
    use_gate = False
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    q_conv1d: ShortConv
    k_conv1d: ShortConv
    v_conv1d: ShortConv
    canon_b = ("q_proj", "k_proj", "v_proj")
    weighs = ("weights", "v", "heads")
    query = "q"
    """The paper's name of a query, which is also that of its map and sites."""

    def __init__(self, d_model: int, num_heads: int, key_size: int, value_size: int) -> None:
        super().__init__()
        self.d_model, self.num_heads, self.key_size, self.value_size = d_model, num_heads, key_size, value_size
        self.conv_channels = self.taps = 0
        for name, size in ((self.query, key_size), ("k", key_size), ("v", value_size)):
            setattr(self, f"{name}_proj", Linear(d_model, num_heads * size, bias=False))

    def add_sites(self, taps: int, gates: Mapping[str, str], convolved: str = "") -> None:
        """Add short convolutions with this number of taps (0: none) on q, k and v, or on those named, and the sites.

        `gates` are further sites, with their axes.
        """
        for name in convolved or f"{self.query}kv":
            if taps:
                channels = getattr(self, f"{name}_proj").out_features
                setattr(self, f"{name}_conv1d", ShortConv(channels, taps, bias=False))
                setattr(self, f"{name}_conv", Tap(f"{name}_conv", "B L C", kind="short_conv"))
                self.conv_channels, self.taps = self.conv_channels + channels, taps
        shapes = {self.query: "B L H E", "k": "B L H E", "v": "B L H V", **gates}
        for name, shape in shapes.items():
            setattr(self, name, Tap(name, shape))
        self.state = Tap("state", "B L H E V", readonly=True)
        self.weights = Tap("weights", "B H L S", kind="weights", readonly=True)
        self.heads = Tap("heads", "B L H V", heads=self.num_heads)

    def project(self, name: str, x: Tensor, at: Tensor | None = None) -> Tensor:
        """The map called `name` of x, with its short convolution if it has one; (B, L or K, C)."""
        linear, conv = getattr(self, f"{name}_proj"), getattr(self, f"{name}_conv1d", None)
        y: Tensor
        if conv is None:
            y = linear(x if at is None else take(x, at))
        elif at is None:
            y = getattr(self, f"{name}_conv")(conv(linear(x)))
        else:
            y = projected_conv_at(x, linear.weight, None, conv.weight, None, at)
        return y

    def split(self, x: Tensor) -> Tensor:
        """(B, L, HX) -> (B, L, H, X)."""
        return x.view(*x.shape[:2], self.num_heads, x.shape[-1] // self.num_heads)

    def read(self, q: Tensor, k: Tensor, v: Tensor, at: Tensor | None, **parts: Tensor) -> Tensor:
        """What the queries read from the memory, (B, L or K, H, V); `parts` are g, beta, a and b of the recurrence."""
        if self.state.listening:
            self.state(linear_recurrence_states(k, v, **parts))
        if self.weights.listening:
            self.weights(of_result(linear_recurrence(q, k, one_value_each(v), final_state=False, **parts)))
        return self.heads(linear_recurrence(q, k, v, at=at, final_state=False, **parts))

    def unit_parts(self, x: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v = silu(conv(W x)), q and k of unit length, q scaled by 1/√E; (B, L or K, H, E), (B, L, H, E or V)."""
        q = self.q(unit_silu(self.split(self.project("q", x, at)), self.key_size**-0.5))
        k = self.k(unit_silu(self.split(self.project("k", x))))
        return q, k, self.v(self.split(F.silu(self.project("v", x))))

    def opened(self, x: Tensor, at: Tensor | None, how: Callable[[Tensor], Tensor] = F.silu) -> Tensor | None:
        """The output gate, (B, L or K, H, V), after its nonlinearity; None in a mixer without a gate."""
        return how(self.gate(self.split(self.g_proj(x if at is None else take(x, at))))) if self.use_gate else None

    def state_size(self, length: int) -> int:
        """The memory, and the tokens that the convolutions still reach."""
        memory = self.num_heads * self.key_size * self.value_size
        return memory + min(length, max(0, self.taps - 1)) * self.conv_channels


class FadingAttention(MemoryMixer):
    """Linear attention whose memory fades: what GLA and RetNet share.

    Keys and values are as wide as the model times a factor, and the output is normalised, then gated.
    """

    def __init__(self, d_model: int, name: str, options: GLAOptions | RetNetOptions, gates: Mapping[str, str]) -> None:
        heads = options.num_heads
        keys, values = (
            size_of_head(whole(d_model * expand, name, what), heads, name, what)
            for expand, what in ((options.expand_k, "keys"), (options.expand_v, "values"))
        )
        super().__init__(d_model, heads, keys, values)
        self.use_gate = options.use_output_gate
        if self.use_gate:
            self.g_proj = Linear(d_model, heads * values, bias=False)
            gates = {**gates, "gate": "B L H V"}
        self.add_sites(options.conv_size if options.use_short_conv else 0, gates)

    def add_output(self) -> None:
        """Add the map to the output and the norm before it, whose name upstream depends on whether there is a gate."""
        self.o_proj = Linear(self.num_heads * self.value_size, self.d_model, bias=False)
        setattr(self, "g_norm_swish_gate" if self.use_gate else "g_norm", RMSNorm(self.value_size))

    def inputs(self, x: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v = W x, or silu(conv(W x)), q scaled by 1/√E; (B, L or K, H, E), (B, L, H, E), (B, L, H, V)."""
        q, k, v = self.project("q", x, at), self.project("k", x), self.project("v", x)
        if self.taps:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        return self.split(q) * self.key_size**-0.5, self.split(k), self.split(v)

    def output(self, o: Tensor, x: Tensor, at: Tensor | None) -> Tensor:
        """What was read, (B, L or K, H, V), normalised, gated and mapped to the stream."""
        norm: RMSNorm = self.g_norm_swish_gate if self.use_gate else self.g_norm  # type: ignore[assignment]
        y: Tensor = self.o_proj(norm(o, self.opened(x, at)).flatten(2))
        return y


def size_of_head(width: float, heads: int, name: str, what: str) -> int:
    """The width of one of `heads` heads that share `width`, or an error if it is not a multiple."""
    if width < heads or width % heads:
        raise UserError(f"{name}: {what} are {width:g} wide, which is not a multiple of num_heads={heads}.")
    return round(width / heads)


def whole(width: float, name: str, what: str) -> int:
    """`width` as a whole number, or an error."""
    if width < 1 or width != round(width):
        raise UserError(f"{name}: {what} would be {width:g} wide, which is not a whole number.")
    return round(width)


def decay_parameters(heads: int, steps: int, least: float) -> tuple[nn.Parameter, nn.Parameter]:
    """A_log (H,), with A uniform on [least, 16], and dt_bias: softplus⁻¹ of steps log-uniform on [0.001, 0.1]."""
    A_H = torch.empty(heads).uniform_(least, 16)
    dt = torch.empty(steps).uniform_(math.log(0.001), math.log(0.1)).exp().clamp(min=1e-4)
    return nn.Parameter(A_H.log()), nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
