"""Mixers with a matrix memory, written as plain recurrences, so that a part of the state can be edited.

Such a mixer keeps, in each head, a matrix S whose rows belong to directions of keys and whose columns are values:

| mixer | write | read |
|---|---|---|
| delta_net | S <- S + k (β (v - Sᵀ k))ᵀ | Sᵀ q |
| based | S <- S + φ(k) [v, 1]ᵀ | Sᵀ φ(q), divided by its last column |
| mamba | S <- exp(A dt) ⊙ S + B (dt u)ᵀ | Sᵀ C; one head for all channels |

n documents, L tokens, H heads, K width of a key, V width of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.intervene.places import Listener
from mecheval.mixers import Mixer
from mecheval.mixers.based import TaylorAttention
from mecheval.mixers.delta_net import DeltaNet
from mecheval.mixers.mamba import Mamba
from mecheval.ops.taylor_attention import EPS, taylor_features
from mecheval.sites import taps

Activations = Mapping[str, Tensor]  # name of a tap of the mixer -> (n, L, ...)
Step = Callable[[Tensor, int], Tensor]  # memory, position -> the memory after that position


@dataclass(frozen=True, eq=False)
class Memory:
    """A matrix memory while its mixer reads some documents."""

    keys: Tensor  # (n, L, H, K): the key with which each position writes
    queries: Tensor  # (n, L, H, K)
    width: int  # V, the width of a value
    step: Step
    finish: Callable[[Tensor], Tensor]  # what was read (n, L, H, V) -> the activation that leaves the memory

    def empty(self) -> Tensor:
        """The memory before the first position, (n, H, K, V)."""
        n, _, heads, rows = self.keys.shape
        return self.keys.new_zeros(n, heads, rows, self.width)

    def after(self, position: Tensor) -> Tensor:
        """The memory (n, H, K, V) after a position (n,) of each document."""
        found = S = self.empty()
        for t in range(self.keys.shape[1]):
            S = self.step(S, t)
            found = torch.where(_each(position == t), S, found)
        return found

    def read(self, position: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """What leaves the memory if it is changed after a position (n,) of each document and then continues."""
        S, read = self.empty(), []
        for t in range(self.keys.shape[1]):
            S = self.step(S, t)
            read.append(torch.einsum("nhkv,nhk->nhv", S, self.queries[:, t]))
            S = torch.where(_each(position == t), change(S), S)
        return self.finish(torch.stack(read, dim=1))


def _each(chosen: Tensor) -> Tensor:
    return chosen[:, None, None, None]


class Form(NamedTuple):
    """How a mixer's memory is computed from its activations."""

    inputs: tuple[str, ...]  # names of the taps that the recurrence reads
    output: str  # name of the tap with its output
    build: Callable[[nn.Module, Activations], Memory]


def _delta_net(mixer: nn.Module, seen: Activations) -> Memory:
    k, v, beta = seen["k"], seen["v"], seen["beta"]

    def step(S: Tensor, t: int) -> Tensor:
        missing = v[:, t] - torch.einsum("nhkv,nhk->nhv", S, k[:, t])
        return S + k[:, t, :, :, None] * (beta[:, t, :, None] * missing)[:, :, None]

    return Memory(k, seen["q"], v.shape[-1], step, lambda read: read)


def _based(mixer: nn.Module, seen: Activations) -> Memory:
    assert isinstance(mixer, TaylorAttention)
    q, k, v = (seen[name].unflatten(2, (mixer.num_heads, -1)) for name in ("q", "k", "v"))
    phi_k, ones = taylor_features(k), F.pad(v, (0, 1), value=1.0)  # the last column adds up the divisor

    def step(S: Tensor, t: int) -> Tensor:
        return S + phi_k[:, t, :, :, None] * ones[:, t, :, None]

    def finish(read: Tensor) -> Tensor:
        return (read[..., :-1] / (read[..., -1:] + EPS)).flatten(2)

    return Memory(phi_k, taylor_features(q), ones.shape[-1], step, finish)


def _mamba(mixer: nn.Module, seen: Activations) -> Memory:
    assert isinstance(mixer, Mamba)
    u, dt, B, C = (seen[name] for name in ("u", "dt", "B", "C"))
    rates = -torch.exp(mixer.A_log).mT  # (K, V)

    def step(S: Tensor, t: int) -> Tensor:
        decay = torch.exp(dt[:, t, None] * rates)[:, None]
        return decay * S + (B[:, t, :, None] * (dt * u)[:, t, None])[:, None]

    return Memory(B[:, :, None], C[:, :, None], u.shape[-1], step, lambda read: read[:, :, 0] + mixer.D * u)


FORMS: dict[type[Mixer], Form] = {
    DeltaNet: Form(("q", "k", "v", "beta"), "heads", _delta_net),
    TaylorAttention: Form(("q", "k", "v"), "heads", _based),
    Mamba: Form(("u", "dt", "B", "C"), "scan", _mamba),
}
"""The mixers with a matrix memory."""


def form_of(mixer: nn.Module) -> Form | None:
    """The form of this mixer's memory; None for a mixer without one."""
    return next((form for kind, form in FORMS.items() if isinstance(mixer, kind)), None)


def run_mixer(mixer: nn.Module, x: Tensor, listeners: Mapping[str, Listener]) -> Tensor:
    """The output of a mixer that is run by itself, using what each listener returns for its tap."""
    own = dict(taps(mixer))
    with ExitStack() as stack:
        for name, listener in listeners.items():
            tap = own[name]
            stack.callback(setattr, tap, "listener", tap.listener)
            tap.listener = listener
        y: Tensor = mixer(x)
    return y


def seen_by(mixer: nn.Module, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The activations of some taps of a mixer while it reads x (n, L, D)."""
    seen: dict[str, Tensor] = {}

    def keeper(name: str) -> Listener:
        return lambda value: seen.setdefault(name, value)

    run_mixer(mixer, x, {name: keeper(name) for name in names})
    return seen
