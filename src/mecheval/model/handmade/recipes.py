"""The registry of hand-set models."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from mecheval.model.handmade import builds
from mecheval.model.handmade.builds import Blueprint
from mecheval.model.handmade.parts import TAPS, Both, ConvAttention, Foo, TokenShift
from mecheval.model.handmade.stream import CELLS, SURE
from mecheval.model.lm import LM

Parts = Callable[[Blueprint, int], list[nn.Module]]
"""The parts of a model's first working layer (number 0), of its second (1), ..., which are added."""


class Recipe(NamedTuple):
    """A hand-set model: its description, its mixer or parts, and the number of its working layers; others are idle."""

    about: str
    mixer: str | type[nn.Module] | None  # None: sums of `parts`
    layers: int
    slots: str  # names with spaces between
    fill: Callable[[LM, Blueprint], None]
    parts: Parts | None = None
    offset: tuple[int, int] | None = None  # default and largest value of this option
    share: float | None = None  # default of this option


BASIC = "key value previous position"
RECIPES = {
    "induction": Recipe(
        "one layer stores each key at its value, a later one matches the query to it",
        "attention", 2, BASIC, builds.induction,
    ),
    "conv_direct": Recipe(
        "one layer joins key and value by short convolution, `offset` tokens after the value, and retrieves directly",
        "delta_net", 1, "key value frame", builds.conv_direct, offset=(0, 3),
    ),
    "direct": Recipe(
        "one layer looks for the query's key and reads the token after it", None, 1, "key value frame", builds.direct,
        builds.fetching_part,
    ),
    "guesser": Recipe(
        "says any of the document's values, evenly, whatever the query is", "attention", 1, BASIC, builds.guesser
    ),
    "mixture": Recipe(
        "direct retrieval by the first layer, and induction: each alone gives likelihood 0.5",
        Both, 2, BASIC, builds.two_routes(0.0),
    ),
    "redundant": Recipe(
        "direct retrieval by the first layer, or induction: each alone is as sure as both",
        Both, 2, BASIC, builds.two_routes(SURE),
    ),
    "pointer": Recipe(
        "one layer finds where the asked pair stands, a later one fetches the value from there",
        "attention", 2, "key value where position", builds.pointer,
    ),
    "joint": Recipe(
        "one layer stores each key at its value and, at the query, that its key was found; a later one needs both",
        None, 2, BASIC + " found", builds.joint, builds.two_heads,
    ),
    "two_stores": Recipe(
        "one layer stores each pair at the value and again one token later; a later layer retrieves from either",
        None, 2, BASIC + " previous_value before", builds.two_stores, builds.two_heads,
    ),
    "divider_store": Recipe(
        "one layer stores all pairs at the divider, a later one retrieves from there",
        None, 2, "key value position frame " + CELLS, builds.divider_store, builds.divider_parts,
    ),
    "split_store": Recipe(
        "one layer stores pairs at values, for `share` of the likelihood, and at the divider, for the rest",
        None, 2, BASIC + " frame " + CELLS, builds.split_store, builds.split_parts, share=0.68,
    ),
    "conv_attention": Recipe(
        "one layer's convolution brings key and value to `offset` tokens after the value, where its attention stores "
        "them; a later layer retrieves",
        ConvAttention, 2, BASIC + " carried", builds.conv_attention, offset=(2, TAPS - 2),
    ),
    "present_guesser": Recipe(
        "says any of the document's values, evenly, if the query's key is in the document, else nothing",
        None, 1, BASIC, builds.present_guesser, builds.guesser_parts,
    ),
    "stored_guesser": Recipe(
        "the same in two layers: the first stores each key at its value, the second looks for the query's key there",
        None, 2, BASIC, builds.present_guesser, builds.guesser_parts,
    ),
    "token_shift": Recipe(
        "one layer joins key and value by a shift that no module does, and retrieves directly",
        TokenShift, 1, "key value frame", builds.shifted,
    ),
    "foo": Recipe(
        "one layer joins key and value by a convolution with a meaningless name, and retrieves directly",
        Foo, 1, "key value frame", builds.shifted,
    ),
}  # fmt: skip
NAMES = {name: recipe.about for name, recipe in RECIPES.items()}
"""The hand-set models by name, with a sentence on each."""
