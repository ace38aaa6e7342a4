"""Hand-set weights of real layers: attention heads of every kind, and DeltaNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers import Attention, DeltaNet
from mecheval.model.handmade.stream import ANSWER, Layout
from mecheval.model.lm import LM
from mecheval.types import FIRST_SYMBOL

SHARPNESS = 60.0
"""Attention score of two equal codes with nothing beside them; as used, of positions a half of it, of keys 1/√6."""
SINK = 12.0
"""Score by which a query looks at BOS, where there is no value: far above no match, far below a match."""
SMALL = 0.03
"""Length of a code before silu, which is almost linear there: silu(z) ≈ z/2."""
SHUT = 6.0
"""How far below 0 the logit of a shut gate is: sigmoid(-6) is 0.0025. More would shut no better and amplify noise."""

M = TypeVar("M", bound=nn.Module)


class Head(nn.Module):
    """One causal attention head with an inner width of its own, so that it stays small beside a wide stream."""

    def __init__(self, d_model: int, d_head: int) -> None:
        super().__init__()
        self.d_head = d_head
        self.q_proj = nn.Linear(d_model, d_head)
        self.k_proj = nn.Linear(d_model, d_head, bias=False)
        self.v_proj = nn.Linear(d_model, d_head, bias=False)
        self.out_proj = nn.Linear(d_head, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        q, k, v = (proj(x)[:, None] for proj in (self.q_proj, self.k_proj, self.v_proj))
        y: Tensor = self.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        return y


class Match(NamedTuple):
    """A head attends where the code in slot `key` equals that in its own slot `query`, after the map `turn` (W, W)."""

    query: str
    key: str
    turn: Tensor | float = 1.0  # a factor sets the weight of this match


class Copy(NamedTuple):
    """A head copies slot `source` of what it looks at to its own slot `to`, times `turn` (W, W) or a factor."""

    source: str
    to: str
    turn: Tensor | float = 1.0


def attend(
    part: Attention | Head, plan: Layout, where: Sequence[Match], what: Sequence[Copy], sink: Tensor | None = None
) -> None:
    """Set the weights of one head: where it looks, by the sum of all matches, and what it copies from there.

    `sink` is the code of BOS: with it, a token that matches nothing looks at BOS.
    """
    width, slots = plan.width, plan.slots
    if isinstance(part, Attention):
        q, k, v = part.Wqkv.weight.split(plan.d_model)
        bias = part.Wqkv.bias
    else:
        q, k, v, bias = part.q_proj.weight, part.k_proj.weight, part.v_proj.weight, part.q_proj.bias
    scale = part.d_head**0.5  # undoes attention's 1/√E
    # Maps of q, k and v are of one size, because they can be one tensor, and noise is relative to the whole of it.
    size = (SHARPNESS * scale) ** 0.5
    if sink is not None:
        bias[:width] = sink * SINK * scale / size
        k[:width, slots["position"]].fill_diagonal_(size)
    for i, match in enumerate(where, start=1):
        rows = slice(i * width, (i + 1) * width)
        q[rows, slots[match.query]] = as_map(match.turn, width) * size
        k[rows, slots[match.key]].fill_diagonal_(size)
    for i, copy in enumerate(what):
        rows = slice(i * width, (i + 1) * width)
        v[rows, slots[copy.source]].fill_diagonal_(size)
        part.out_proj.weight[slots[copy.to], rows] = as_map(copy.turn, width) / size


def as_map(turn: Tensor | float, width: int) -> Tensor:
    """A factor as a map of codes (width, width); a map is returned unchanged."""
    return turn if isinstance(turn, Tensor) else turn * torch.eye(width)


def previous_token_head(lm: LM, plan: Layout, part: Attention | Head) -> None:
    """Each token looks at the one before it and stores its key: previous <- key."""
    one_back = Match("position", "position", moved(lm, plan, -1))
    attend(part, plan, [one_back], [Copy("key", "previous", plan.codes_per_token**0.5)])


def induction_head(lm: LM, plan: Layout, part: Attention | Head, answer: float = ANSWER) -> None:
    """A query looks at the token that stores its key, and copies the value there; without such a token, at BOS."""
    codes = plan.codes_per_token + 1  # a value stands beside its stored key
    written = Copy("value", "value", answer * codes**0.5)
    attend(part, plan, [Match("key", "previous")], [written], position_codes(lm, plan)[0])


def averaging_head(plan: Layout, part: Attention) -> None:
    """Queries and keys are zero, so each token looks at all before it alike; the mean becomes a sum over the document.

    Where codes overlap, some values gain from the others: then the guess is even only on average over documents.
    """
    tokens = 2 * plan.task.options.pairs + 3  # BOS, the pairs, EOS and the query itself
    attend(part, plan, [], [Copy("value", "value", ANSWER * tokens * plan.codes_per_token**0.5)])


def presence_head(lm: LM, plan: Layout, part: Attention | Head, source: str, to: str) -> None:
    """A query looks at its key in the body, never at itself, and copies slot `source`; else at BOS, and copies nothing.

    The code of BOS's own position is not copied, so that "nothing found" leaves the slot empty.
    """
    bos = position_codes(lm, plan)[0]
    but_bos = plan.codes_per_token**0.5 * (torch.eye(plan.width) - torch.outer(bos, bos))
    where = [Match("key", "key"), Match("position", "position", -2.0)]
    attend(part, plan, where, [Copy(source, to, but_bos if source == "position" else plan.codes_per_token**0.5)], bos)


def direct_retrieval(lm: LM, plan: Layout, delta_net: DeltaNet, offset: int = 0) -> None:
    """At a value, or `offset` tokens later, convolutions bring key and value together; a query reads them from memory.

    Elsewhere there is no key at this distance, so nothing is written. With an offset of 2 the last pair meets at the
    query itself, just in time. With 3 it would be too late: the taps there also join pairs two tokens after the value,
    and a gate shuts them at values, where this would hold in the body. So only the last pair is joined early.
    """
    slots, width = plan.slots, plan.width
    for proj, slot in ((delta_net.q_proj, "key"), (delta_net.k_proj, "key"), (delta_net.v_proj, "value")):
        proj.weight[slots[slot], slots[slot]].fill_diagonal_(SMALL)
    delta_net.q_conv1d.weight[:, 0, -1] = 1  # this token
    for each in (offset, 2) if offset > 2 else (offset,):
        delta_net.k_conv1d.weight[:, 0, -2 - each] = 1  # the key stands one before the value
        delta_net.v_conv1d.weight[:, 0, -1 - each] = 1
    if offset > 2:
        values = lm.embed.weight[FIRST_SYMBOL + plan.task.options.keys :, slots["value"]]
        every_value = torch.linalg.lstsq(values, torch.ones(len(values), 1)).solution[:, 0]
        delta_net.b_proj.weight[0, slots["value"]] = -SHUT * plan.codes_per_token**0.5 * every_value
    delta_net.o_norm.weight.fill_(1)
    # How long a value is when it comes out of memory and o_norm; q and k have been brought back to length 1.
    written = 0.5 * SMALL / 2 * plan.codes_per_token**-0.5  # beta = sigmoid(0) = 1/2; silu(z) ≈ z/2
    # q's scale; and o_norm, whose epsilon outweighs so short an input.
    found = written * delta_net.key_size**-0.5 * 1e-5**-0.5
    delta_net.o_proj.weight[slots["value"], slots["value"]] = torch.eye(width) * (ANSWER / found)


def position_codes(lm: LM, plan: Layout) -> Tensor:
    """(L, width) codes of the positions."""
    assert lm.embed_positions is not None, "all models with attention have positions"
    return lm.embed_positions.weight[:, plan.slots["position"]]


def moved(lm: LM, plan: Layout, by: int) -> Tensor:
    """The map (width, width) from the code of a position to that of the position `by` tokens later, within the text."""
    code_LW = position_codes(lm, plan)
    target = (torch.arange(len(code_LW)) + by).clamp(0, len(code_LW) - 1)
    return code_LW[target].mT @ code_LW


def part_of(lm: LM, layer: int, kind: type[M], number: int = 0) -> M:
    """The first, or another, part of this kind of the mixer in a layer."""
    return [module for module in lm.blocks[layer].modules() if isinstance(module, kind)][number]
