"""Sound mixers as people have them: with other names for the width, with configs, as functions, with tuples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import GRU, LSTM

__all__ = ["GRU", "LSTM"]


class Sum(nn.Module):
    """A base: a causal sum of projected inputs. What it was called with is kept in `given`."""

    def __init__(self, width: int, **given: Any) -> None:
        super().__init__()
        self.inner, self.given = nn.Linear(width, width), given

    def forward(self, x: Tensor) -> Any:
        return self.inner(x).cumsum(1)


class ByDim(Sum):
    def __init__(self, dim: int, *, heads: int = 4) -> None:
        super().__init__(dim, heads=heads)


class ByHiddenSize(Sum):
    """The width has a default, the output is a tuple, and the block has a number."""

    def __init__(self, mode: str = "chunk", hidden_size: int = 1024, layer_idx: int | None = None, **rest: Any) -> None:
        super().__init__(hidden_size, mode=mode, layer_idx=layer_idx)

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, past: None = None, **rest: Any
    ) -> tuple[Tensor, None, None]:
        return super().forward(hidden_states), None, past


class InAndOut(Sum):
    def __init__(self, d_in: int, d_out: int, bias: bool = False) -> None:
        super().__init__(d_in, d_out=d_out)


class Passing(ByDim):
    def __init__(self, *args: Any, gain: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given["gain"] = gain


class Wrapped(nn.Module):
    """Documents are the second axis unless it is told otherwise."""

    def __init__(self, input_size: int, hidden_size: int, batch_first: bool = False) -> None:
        super().__init__()
        self.rnn = nn.LSTM(input_size, hidden_size, batch_first=batch_first)

    def forward(self, x: Tensor) -> Any:
        return self.rnn(x)


@dataclass
class Answer:
    cache: Tensor
    last_hidden_state: Tensor


class AnObject(Sum):
    def __init__(self, embed_dim: int) -> None:
        super().__init__(embed_dim)

    def forward(self, x: Tensor) -> Answer:
        return Answer(x[:, :1], super().forward(x))


@dataclass(frozen=True)
class SumConfig:
    n_embd: int
    n_head: int = 4
    dropout: float = 0.0


class Configured(Sum):
    def __init__(self, config: SumConfig, layer_idx: int) -> None:
        super().__init__(config.n_embd, heads=config.n_head, layer_idx=layer_idx)


class Sizes(NamedTuple):
    dim: int = 1
    heads: int = 1


class Sized(Sum):
    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__((sizes or Sizes()).dim)


class Plain:
    """A config whose fields are attributes."""

    d_model = 512
    heads = 2


class ByAttribute(Sum):
    def __init__(self, cfg: Plain) -> None:
        super().__init__(cfg.d_model, heads=cfg.heads)


class Needy(Sum):
    def __init__(self, dim: int, hidden_size: int, kernel: int = 3, rate: float = 0.5, mode: str = "a", some: Any = 1):
        super().__init__(dim)


class TwoConfigs(Sum):
    def __init__(self, options) -> None:  # type: ignore[no-untyped-def]
        super().__init__(options.d_model)


def make(d_model: int, heads: int = 2) -> nn.Module:
    return ByDim(d_model, heads=heads)


def nothing(d_model: int) -> None:
    torch.zeros(d_model)


filled = partial(ByDim, heads=8)
deep = partial(nn.GRU, num_layers=2)
