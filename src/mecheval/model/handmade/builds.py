"""The weights and parts of each hand-set model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from mecheval.mixers import Attention, DeltaNet
from mecheval.model.handmade.heads import (
    Copy,
    Head,
    Match,
    attend,
    averaging_head,
    direct_retrieval,
    induction_head,
    moved,
    part_of,
    position_codes,
    presence_head,
    previous_token_head,
)
from mecheval.model.handmade.parts import (
    Collect,
    ConvAttention,
    Fetch,
    Foo,
    Guess,
    Recollect,
    Shifted,
)
from mecheval.model.handmade.stream import ANSWER, SURE, Layout, head
from mecheval.model.lm import LM
from mecheval.types import EOS

TWICE = 2.0
"""The weight of a match if the query's stream also holds a stored pair, because its codes are then shorter."""


class Blueprint(NamedTuple):
    """The choices that are made before a model is built."""

    stream: Layout
    layers: tuple[int, ...]  # the layers that are not idle, ascending
    offset: int
    share: float


def induction(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `induction`."""
    first, last = (part_of(lm, layer, Attention) for layer in plan.layers)
    previous_token_head(lm, plan.stream, first)
    induction_head(lm, plan.stream, last)
    head(lm, plan.stream, SURE)


def conv_direct(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `conv_direct`."""
    direct_retrieval(lm, plan.stream, part_of(lm, plan.layers[0], DeltaNet), plan.offset)
    head(lm, plan.stream, SURE)


def direct(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `direct`."""
    head(lm, plan.stream, SURE)


def guesser(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `guesser`."""
    averaging_head(plan.stream, part_of(lm, plan.layers[0], Attention))
    head(lm, plan.stream, SURE, values=plan.stream.task.options.pairs)


def two_routes(log_odds: float) -> Callable[[LM, Blueprint], None]:
    """Set the weights of `mixture` or `redundant`: two routes, each of which alone gives these odds.

    Both together double the logit.
    """

    def build(lm: LM, plan: Blueprint) -> None:
        direct_retrieval(lm, plan.stream, part_of(lm, plan.layers[0], DeltaNet))
        previous_token_head(lm, plan.stream, part_of(lm, plan.layers[0], Attention))
        induction_head(lm, plan.stream, part_of(lm, plan.layers[1], Attention))
        head(lm, plan.stream, log_odds)

    return build


def pointer(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `pointer`."""
    stream = plan.stream
    find, fetch = (part_of(lm, layer, Attention) for layer in plan.layers)
    presence_head(lm, stream, find, "position", "where")
    after_it = Match("where", "position", moved(lm, stream, 1))
    written = Copy("value", "value", ANSWER * stream.codes_per_token**0.5)
    attend(fetch, stream, [after_it], [written], position_codes(lm, stream)[0])
    head(lm, stream, SURE, beside=1)


def joint(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `joint`."""
    stream, (store, retrieve) = plan.stream, plan.layers
    previous_token_head(lm, stream, part_of(lm, store, Head))
    presence_head(lm, stream, part_of(lm, store, Head, 1), "key", "found")
    written = Copy("value", "value", ANSWER * (stream.codes_per_token + 1) ** 0.5)
    sink = position_codes(lm, stream)[0]
    attend(part_of(lm, retrieve, Head), stream, [Match("found", "previous")], [written], sink)
    head(lm, stream, SURE, beside=1)


def two_stores(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `two_stores`."""
    stream, (store, retrieve), codes = plan.stream, plan.layers, plan.stream.codes_per_token
    back = [Match("position", "position", moved(lm, stream, -tokens)) for tokens in (1, 2)]
    copies = [Copy("key", "previous", codes**0.5), Copy("value", "previous_value", codes**0.5)]
    attend(part_of(lm, store, Head), stream, back[:1], copies)
    attend(part_of(lm, store, Head, 1), stream, back[1:], [Copy("key", "before", codes**0.5)])
    induction_head(lm, stream, part_of(lm, retrieve, Head))
    written = Copy("previous_value", "value", ANSWER * (codes + 2) ** 0.5)
    sink = position_codes(lm, stream)[0]
    attend(part_of(lm, retrieve, Head, 1), stream, [Match("key", "before")], [written], sink)
    head(lm, stream, SURE)


def divider_store(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `divider_store`."""
    know_divider(lm, plan)
    head(lm, plan.stream, SURE)


def split_store(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `split_store`."""
    know_divider(lm, plan)
    at_value, at_divider = strengths(lm.vocab_size, plan.share)
    previous_token_head(lm, plan.stream, part_of(lm, plan.layers[0], Head))
    induction_head(lm, plan.stream, part_of(lm, plan.layers[1], Head), ANSWER * at_value / (at_value + at_divider))
    head(lm, plan.stream, at_value + at_divider - math.log(lm.vocab_size - 1))


def know_divider(lm: LM, plan: Blueprint) -> None:
    """Make the first working layer collect all pairs at EOS."""
    stream = plan.stream
    eos = lm.embed.weight[EOS, stream.slots["frame"]]
    part_of(lm, plan.layers[0], Collect).is_divider.copy_(eos * stream.codes_per_token**0.5)


def strengths(vocab_size: int, share: float) -> tuple[float, float]:
    """The logits of two routes, one of which restores `share` of what both together restore, the other the rest.

    Without a route all tokens are equally likely. Both logits add up, so what both restore depends on the two: it is
    put in again until it no longer changes.
    """
    chance, others = 1 / vocab_size, math.log(vocab_size - 1)
    gap = 1 - chance
    for _ in range(50):
        one, other = (others + math.log(p / (1 - p)) for p in (chance + share * gap, chance + (1 - share) * gap))
        gap = 1 / (1 + math.exp(others - one - other)) - chance
    return one, other


def conv_attention(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `conv_attention`."""
    stream, slots, codes = plan.stream, plan.stream.slots, plan.stream.codes_per_token
    store, retrieve = (part_of(lm, layer, ConvAttention) for layer in plan.layers)
    for slot, distance in (("key", plan.offset + 1), ("value", plan.offset), ("position", 0)):
        store.conv1d.weight[slots[slot], 0, -1 - distance] = 1
    retrieve.conv1d.weight[:, 0, -1] = 1
    copies = [Copy("key", "previous", codes**0.5), Copy("value", "carried", codes**0.5)]
    attend(part_of(lm, plan.layers[0], Attention), stream, [Match("position", "position")], copies)
    written = Copy("carried", "value", ANSWER * (codes + 2) ** 0.5)
    sink = position_codes(lm, stream)[0]
    attend(part_of(lm, plan.layers[1], Attention), stream, [Match("key", "previous", TWICE)], [written], sink)
    head(lm, stream, SURE, beside=2 if plan.offset == 2 else 0)  # the last pair is stored at the query


def shifted(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `token_shift` or `foo`."""
    mixer, slots = part_of(lm, plan.layers[0], Shifted), plan.stream.slots
    for proj, slot in ((mixer.q_proj, "key"), (mixer.k_proj, "key"), (mixer.v_proj, "value")):
        proj.weight[slots[slot], slots[slot]].fill_diagonal_(1)
    mixer.out_proj.weight[slots["value"], slots["value"]].fill_diagonal_(ANSWER)
    if isinstance(mixer, Foo):
        mixer.foo.weight[:, 0, -2] = 1  # the token before
    head(lm, plan.stream, SURE)


def present_guesser(lm: LM, plan: Blueprint) -> None:
    """Set the weights of `present_guesser` or `stored_guesser`."""
    if len(plan.layers) == 2:
        previous_token_head(lm, plan.stream, part_of(lm, plan.layers[0], Head))
    head(lm, plan.stream, SURE, values=plan.stream.task.options.pairs)


def two_heads(plan: Blueprint, number: int) -> list[nn.Module]:
    """Two heads in every working layer, each wide enough for a sink and two matches."""
    return [Head(plan.stream.d_model, 3 * plan.stream.width) for _ in range(2)]


def fetching_part(plan: Blueprint, number: int) -> list[nn.Module]:
    """A part that finds the key and reads the next token."""
    return [Fetch(plan.stream)]


def divider_parts(plan: Blueprint, number: int) -> list[nn.Module]:
    """A part that collects all pairs, then one that retrieves from them."""
    return [Recollect(plan.stream)] if number else [Collect(plan.stream)]


def split_parts(plan: Blueprint, number: int) -> list[nn.Module]:
    """The parts of `divider_parts`, each with a head beside it."""
    small = Head(plan.stream.d_model, 2 * plan.stream.width)
    at_value, at_divider = strengths(plan.stream.task.vocab_size, plan.share)
    answer = ANSWER * at_divider / (at_value + at_divider)
    return [small, Recollect(plan.stream, answer) if number else Collect(plan.stream)]


def guesser_parts(plan: Blueprint, number: int) -> list[nn.Module]:
    """In one working layer, a guess by the keys themselves; in two, a head that copies keys, then a guess by those."""
    if len(plan.layers) == 1:
        return [Guess(plan.stream, "key")]
    return [Guess(plan.stream, "previous") if number else Head(plan.stream.d_model, 2 * plan.stream.width)]
