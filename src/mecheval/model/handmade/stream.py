"""The residual stream of hand-set models: slots, codes, and the head that reads the answer from them.

The stream is cut into slots of equal width; a symbol's code is a random vector of length 1:

| slot | what stands there | written by |
|---|---|---|
| key | the code of the token, if it is a key | the embedding |
| value | the code of the token, if it is a value; at a query, of the answer, short | the embedding; the mechanism |
| position | the code of the position, where there is attention | the position table |
| frame | the code of EOS, where the divider matters; of BOS, too, where there are no positions | the embedding |
| all others | copies of these codes from other tokens, e.g. `previous`: the key one token earlier | the mechanism |

No token's stream is empty, because a norm would turn noise there into a whole code. Three things make the maths plain:

- Codes have mean 0, so a LayerNorm only divides; its weight is set so that it makes the stream's length 1. A stream
  with n codes of length 1 holds each with length 1/√n after the norm, and an output map with a factor √n undoes that.
- Codes are orthogonal where the slot is wide enough, else nearly so. So copying a slot never mixes up symbols.
- The head is tied to the embedding, and the final norm keeps only the value slot: a query's own key cannot win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.model.lm import LM
from mecheval.tasks.ar import AR
from mecheval.types import BOS, EOS, FIRST_SYMBOL

ANSWER = 0.1
"""Length of the answer that a mechanism writes: short, so that it hardly changes what the next norm divides by."""
SURE = 5.0
"""Log odds of what a model says against all other tokens together: 0.993 to 0.007."""
WIDEST = 256
"""Width of a slot beyond which more symbols get nearly orthogonal codes, not a wider slot."""
CELLS = "cells"
"""The one slot that is wider: it holds the codes of all keys and values of a document, one after the other."""


class Layout(NamedTuple):
    """What stands where in the residual stream."""

    task: AR
    slots: dict[str, slice]
    width: int  # of one code

    @property
    def d_model(self) -> int:
        """Width of the stream."""
        return sum(slot.stop - slot.start for slot in self.slots.values())

    @property
    def codes_per_token(self) -> int:
        """Codes in the stream of a key or value as it is embedded: its own, and that of its position."""
        return 2 if "position" in self.slots else 1


def layout(task: AR, names: Sequence[str], d_model: int | None) -> Layout:
    """Slots by these names in a stream of width `d_model`; by default as wide as orthogonal codes need."""
    o = task.options
    sizes = {name: 2 * o.pairs if name == CELLS else 1 for name in names}
    total = sum(sizes.values())
    if d_model is None:
        width = min(1 + max(o.keys, o.values, task.max_tokens), WIDEST)
    elif d_model < 2 * total:
        raise UserError(
            f"handmade: d_model={d_model} is too small for {total} codes; use at least {2 * total}, better the default."
        )
    else:
        width = d_model // total
    slots, at = {}, 0
    for name, size in sizes.items():
        slots[name] = slice(at, at + size * width)
        at += size * width
    if d_model is not None:  # what is left over belongs to the last slot and stays empty
        slots["rest"] = slice(at, d_model)
    return Layout(task, slots, width)


def embedding_only(
    plan: Layout,
    mixer: str | Callable[..., nn.Module],
    options: dict[str, object],
    n_layers: int,
    seed: int,
    generator: torch.Generator,
) -> LM:
    """A model with embeddings, position codes and norms, in which all else is zero: every layer is idle."""
    task, slots, width, o = plan.task, plan.slots, plan.width, plan.task.options
    positions: Literal["none", "learned"] = "learned" if "position" in slots else "none"
    lm = LM(task.vocab_size, plan.d_model, n_layers, mixer, options, positions, task.max_tokens, seed)
    for weight in lm.parameters():
        weight.zero_()
    for i in range(n_layers):
        lm.get_parameter(f"blocks.{i}.norm1.weight").fill_(plan.d_model**-0.5)  # the norm alone gives length √D
    first_value = FIRST_SYMBOL + o.keys
    lm.embed.weight[FIRST_SYMBOL:first_value, slots["key"]] = codes(o.keys, width, generator)
    lm.embed.weight[first_value:, slots["value"]] = codes(o.values, width, generator)
    if lm.embed_positions is not None:
        lm.embed_positions.weight[:, slots["position"]] = codes(task.max_tokens, width, generator)
    if "frame" in slots:
        marked = [EOS] if "position" in slots else [BOS, EOS]
        lm.embed.weight[marked, slots["frame"]] = codes(len(marked), width, generator)
    return lm


def codes(n: int, width: int, generator: torch.Generator) -> Tensor:
    """(n, width): random, of length 1 and mean 0; orthogonal where there is room for that."""
    x = torch.randn(n, width, generator=generator)
    x -= x.mean(1, keepdim=True)
    q: Tensor = torch.linalg.qr(x.mT).Q.mT if n < width else F.normalize(x)
    return q


def head(lm: LM, plan: Layout, log_odds: float, values: int = 1, beside: int = 0) -> None:
    """The final norm keeps the value slot alone, with a factor: the `values` that a mechanism writes get these odds.

    Alike among them, and together against all other tokens, whose logits are 0. `beside`: how many codes a mechanism
    writes at the query besides them.
    """
    logit = log_odds + math.log((lm.vocab_size - values) / values)
    length = (plan.codes_per_token + beside + values * ANSWER**2) ** 0.5  # of the stream at a query
    lm.norm.weight[plan.slots["value"]] = logit * length / ANSWER * lm.d_model**-0.5


def add_noise(lm: LM, size: float, generator: torch.Generator) -> None:
    """Add Gaussian noise to every weight, `size` times the root mean square of its tensor; a zero tensor stays zero."""
    for weight in lm.parameters():
        rms = weight.square().mean().sqrt()
        weight.add_(torch.randn(weight.shape, generator=generator) * (size * rms))
