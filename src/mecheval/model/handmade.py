"""Models whose mechanism is known, because every weight was set by hand and nothing was trained.

They recall in associative recall (`BOS k1 v1 k2 v2 ... EOS query`), or fail to, in a way that an analysis must find.
They are ordinary `LM`s: real attention and real DeltaNet layers, with a few wires and zeros elsewhere.

The residual stream is cut into four slots of equal width; a symbol's code is a random vector of length 1:

| slot | what stands there | written by |
|---|---|---|
| key | the code of the token, if it is a key | the embedding |
| value | the code of the token, if it is a value; at a query, of the answer, short | the embedding; the mechanism |
| previous | the code of the key one token earlier | a previous-token head |
| position | the code of the position | the position table, where there is attention |

The frame (PAD, BOS, EOS) has no code. Three things make the maths plain:

- Codes have mean 0, so a LayerNorm only divides; its weight is set so that it makes the stream's length 1. A stream
  with n codes of length 1 holds each with length 1/√n after the norm, and an output map with a factor √n undoes that.
- Codes are orthogonal where the slot is wide enough, else nearly so. So `wire` (copy a slot) never mixes up symbols.
- The head is tied to the embedding, and the final norm keeps only the value slot: a query's own key cannot win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError
from mecheval.mixers import Attention, DeltaNet, build_mixer
from mecheval.model import LM
from mecheval.tasks import AR, Task
from mecheval.types import FIRST_SYMBOL

SHARPNESS = 60.0
"""Attention score of two equal codes with nothing beside them; as used, of positions a half of it, of keys 1/√6."""
SINK = 12.0
"""Score by which a query looks at BOS, where there is no value: far above no match, far below a match."""
ANSWER = 0.1
"""Length of the answer that a mechanism writes: short, so that it hardly changes what the next norm divides by."""
SMALL = 0.03
"""Length of a code before silu, which is almost linear there: silu(z) ≈ z/2."""
SURE = 5.0
"""Log odds of what a model says against all other tokens together: 0.993 to 0.007."""
WIDEST = 256
"""Width of a slot beyond which more symbols get nearly orthogonal codes, not a wider slot."""

M = TypeVar("M", bound=nn.Module)


class Slots(NamedTuple):
    """The parts of the residual stream."""

    key: slice
    value: slice
    previous: slice
    position: slice


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


class Recipe(NamedTuple):
    """What a model is, what it is made of, and in how many layers it works; its other layers do nothing."""

    about: str
    mixer: str | Callable[..., nn.Module]
    layers: int


RECIPES = {
    "induction": Recipe("one layer stores each key at its value, a later one matches the query to it", "attention", 2),
    "conv_direct": Recipe("one layer joins key and value by short convolution and retrieves directly", "delta_net", 1),
    "guesser": Recipe("says any of the document's values, evenly, whatever the query is", "attention", 1),
    "mixture": Recipe("direct retrieval by the first layer, and induction: each alone gives likelihood 0.5", Both, 2),
}
NAMES = {name: recipe.about for name, recipe in RECIPES.items()}
"""The models that exist, with a sentence each."""


def handmade(
    name: str,
    task: Task,
    *,
    layer: int | Sequence[int] | None = None,
    n_layers: int = 2,
    d_model: int | None = None,
    seed: int = 0,
) -> LM:
    """The model called `name` for an associative recall task that asks for keys.

    `layer`: in which layer it works, or layers, ascending; by default the first ones; all others are idle.
    `d_model`: four slots; by default as wide as orthogonal codes need, up to 4 · 256. In less, codes overlap.
    `seed`: of the codes; all seeds give other weights and the same mechanism.
    """
    if name not in RECIPES:
        raise UnknownName("handmade model", name, RECIPES)
    if not isinstance(task, AR) or task.options.query != "key":
        raise UserError("handmade: the task must be associative recall of values, build_task('ar', query='key').")
    working = _working(name, layer, n_layers)
    with torch.no_grad():
        lm = _embedding_only(task, RECIPES[name].mixer, n_layers, d_model, seed)
        if name == "induction":
            previous_token_head(lm, working[0])
            induction_head(lm, working[1])
            head(lm, SURE)
        elif name == "conv_direct":
            direct_retrieval(lm, working[0])
            head(lm, SURE)
        elif name == "guesser":
            read_by_query = 2 * task.options.pairs + 3  # BOS, the pairs, EOS and the query itself
            averaging_head(lm, working[0], read_by_query)
            head(lm, SURE, values=task.options.pairs)
        else:
            direct_retrieval(lm, working[0])
            previous_token_head(lm, working[0])
            induction_head(lm, working[1])
            head(lm, 0.0)  # even odds after one of the two; both together double the logit
    return lm


def previous_token_head(lm: LM, layer: int) -> None:
    """Each token looks at the one before it and stores its key: previous <- key."""
    slots, attention, code_LW = _slots(lm), _part(lm, layer, Attention), _position_codes(lm)
    q, k, v = attention.Wqkv.weight.split(lm.d_model)
    one_back = code_LW[:-1].mT @ code_LW[1:]  # the code of t -> the code of t-1
    q[slots.position, slots.position] = one_back * SHARPNESS * attention.d_head**0.5  # √E undoes attention's 1/√E
    wire(k, slots.position, slots.position)
    wire(v, slots.key, slots.key)
    wire(attention.out_proj.weight, slots.previous, slots.key, _codes_per_token(lm) ** 0.5)


def induction_head(lm: LM, layer: int) -> None:
    """A query looks at the token that stores its key, and copies the value there; without such a token, at BOS."""
    slots, attention, code_LW = _slots(lm), _part(lm, layer, Attention), _position_codes(lm)
    q, k, v = attention.Wqkv.weight.split(lm.d_model)
    wire(q, slots.previous, slots.key, SHARPNESS * attention.d_head**0.5)
    wire(k, slots.previous, slots.previous)
    attention.Wqkv.bias[slots.position] = code_LW[0] * SINK * attention.d_head**0.5  # of q, whose rows come first
    wire(k, slots.position, slots.position)
    wire(v, slots.value, slots.value)
    codes = _codes_per_token(lm) + 1  # a value stands beside its stored key
    wire(attention.out_proj.weight, slots.value, slots.value, ANSWER * codes**0.5)


def averaging_head(lm: LM, layer: int, tokens: int) -> None:
    """Queries and keys are zero, so each token looks at all before it alike; undo the mean over `tokens` of them.

    Where codes overlap, some values gain from the others: then the guess is even only on average over documents.
    """
    slots, attention = _slots(lm), _part(lm, layer, Attention)
    wire(attention.Wqkv.weight[2 * lm.d_model :], slots.value, slots.value)
    wire(attention.out_proj.weight, slots.value, slots.value, ANSWER * tokens * _codes_per_token(lm) ** 0.5)


def direct_retrieval(lm: LM, layer: int) -> None:
    """At a value, its convolution brings the key that stands before it; memory joins the two; a query reads the value.

    Nothing is written elsewhere: one token after a value, BOS or EOS there is no key.
    """
    slots, delta_net = _slots(lm), _part(lm, layer, DeltaNet)
    wire(delta_net.q_proj.weight, slots.key, slots.key, SMALL)
    wire(delta_net.k_proj.weight, slots.key, slots.key, SMALL)
    wire(delta_net.v_proj.weight, slots.value, slots.value, SMALL)
    delta_net.q_conv1d.weight[:, 0, -1] = 1  # this token
    delta_net.k_conv1d.weight[:, 0, -2] = 1  # the token before
    delta_net.v_conv1d.weight[:, 0, -1] = 1  # this token
    delta_net.o_norm.weight.fill_(1)
    # How long a value is when it comes out of memory and o_norm; q and k have been brought back to length 1.
    written = 0.5 * SMALL / 2 * _codes_per_token(lm) ** -0.5  # beta = sigmoid(0) = 1/2; silu(z) ≈ z/2
    found = (
        written * delta_net.key_size**-0.5 * 1e-5**-0.5
    )  # q's scale; o_norm, whose epsilon outweighs so short an input
    wire(delta_net.o_proj.weight, slots.value, slots.value, ANSWER / found)


def head(lm: LM, log_odds: float, values: int = 1) -> None:
    """The final norm keeps the value slot alone, with a factor: the `values` that a mechanism writes get these odds.

    Alike among them, and together against all other tokens, whose logits are 0.
    """
    logit = log_odds + math.log((lm.vocab_size - values) / values)
    length = (_codes_per_token(lm) + values * ANSWER**2) ** 0.5  # of the stream at a query
    lm.norm.weight[_slots(lm).value] = logit * length / ANSWER * lm.d_model**-0.5


def wire(weight: Tensor, to: slice, source: slice, factor: float = 1.0) -> None:
    """Copy a slot: add to the linear map y = weight x that y[to] has factor · x[source]."""
    weight[to, source].fill_diagonal_(factor)


def _slots(lm: LM) -> Slots:
    count = len(Slots._fields)
    width = lm.d_model // count
    return Slots(*(slice(i * width, (i + 1) * width) for i in range(count)))


def _codes(n: int, width: int, generator: torch.Generator) -> Tensor:
    """(n, width): random, of length 1 and mean 0; orthogonal where there is room for that."""
    x = torch.randn(n, width, generator=generator)
    x -= x.mean(1, keepdim=True)
    q: Tensor = torch.linalg.qr(x.mT).Q.mT if n < width else F.normalize(x)
    return q


def _position_codes(lm: LM) -> Tensor:
    """(L, width) codes of the positions."""
    assert lm.embed_positions is not None, "all models with attention have positions"
    return lm.embed_positions.weight[:, _slots(lm).position]


def _codes_per_token(lm: LM) -> int:
    """Codes in the stream of a key or value as it is embedded: its own, and that of its position."""
    return 1 if lm.embed_positions is None else 2


def _embedding_only(
    task: AR, mixer: str | Callable[..., nn.Module], n_layers: int, d_model: int | None, seed: int
) -> LM:
    """A model with embeddings, position codes and norms, in which all else is zero: every layer is idle."""
    o = task.options
    if d_model is None:
        d_model = len(Slots._fields) * min(1 + max(o.keys, o.values, task.max_tokens), WIDEST)
    elif d_model < 8:
        raise UserError(f"handmade: d_model={d_model} is too small for four slots; use at least 8, better the default.")
    positions: Literal["none", "learned"] = "none" if mixer == "delta_net" else "learned"
    options = {"bias": True} if mixer == "attention" else {}
    lm = LM(task.vocab_size, d_model, n_layers, mixer, options, positions, task.max_tokens, seed)
    for weight in lm.parameters():
        weight.zero_()
    for i in range(n_layers):
        lm.get_parameter(f"blocks.{i}.norm1.weight").fill_(d_model**-0.5)  # LayerNorm alone gives length √D
    slots, generator = _slots(lm), torch.Generator().manual_seed(seed)
    width = slots.key.stop
    first_value = FIRST_SYMBOL + o.keys
    lm.embed.weight[FIRST_SYMBOL:first_value, slots.key] = _codes(o.keys, width, generator)
    lm.embed.weight[first_value:, slots.value] = _codes(o.values, width, generator)
    if lm.embed_positions is not None:
        lm.embed_positions.weight[:, slots.position] = _codes(task.max_tokens, width, generator)
    return lm


def _working(name: str, layer: int | Sequence[int] | None, n_layers: int) -> tuple[int, ...]:
    """The layers that do something."""
    count = RECIPES[name].layers
    chosen = tuple(range(count)) if layer is None else (layer,) if isinstance(layer, int) else tuple(layer)
    if len(chosen) != count or list(chosen) != sorted(set(chosen)) or not set(chosen) <= set(range(n_layers)):
        raise UserError(
            f"handmade: {name} works in {count} of n_layers={n_layers} layers; "
            f"layer must name {count}, ascending, from 0 to {n_layers - 1} (got {', '.join(map(str, chosen))})."
        )
    return chosen


def _part(lm: LM, layer: int, kind: type[M]) -> M:
    """The mixer of this kind in a layer."""
    [part] = [module for module in lm.blocks[layer].modules() if isinstance(module, kind)]
    return part
