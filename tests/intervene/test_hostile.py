"""Models built to mislead the rule: what it says of them must be true, or it must say that it does not know."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mecheval as me
from intervene.programs import Program, Row, Stream, judged, look, shifted
from mecheval.intervene.mechanism import Finding
from mecheval.types import EOS, FIRST_SYMBOL

KEYS = 8
TASK = me.build_task("ar", pairs=4, keys=KEYS, values=KEYS)
KEY = torch.zeros(TASK.vocab_size)
KEY[FIRST_SYMBOL : FIRST_SYMBOL + KEYS] = 1
VALUE = torch.zeros(TASK.vocab_size)
VALUE[FIRST_SYMBOL + KEYS :] = 1
number = torch.arange(TASK.vocab_size) - FIRST_SYMBOL
HIGH, LOW = (
    F.one_hot(digit.clamp(min=0) % KEYS, TASK.vocab_size).float() for digit in (number % KEYS // 4, number % 4)
)
"""(V, V) both digits of a symbol, each as a code: keys and values are two digits."""


def key(x: Stream) -> Tensor:
    return x["token"] * KEY


def value(x: Stream) -> Tensor:
    return x["token"] * VALUE


def is_value(x: Stream) -> Tensor:
    return value(x).sum(-1, keepdim=True)


def idle(x: Stream) -> None:
    """A layer that adds nothing."""


def store(x: Stream) -> None:
    x.add("before", shifted(key(x)) * is_value(x))


def fetch(x: Stream) -> None:
    x.add("answer", look(key(x), x["before"], value(x)))


def store_digits_apart(x: Stream) -> None:
    """One digit of the key at the value, the other one token later, with the value."""
    x.add("a", shifted(key(x)) @ HIGH * is_value(x))
    x.add("b", shifted(key(x), 2) @ LOW * shifted(is_value(x)))
    x.add("c", shifted(value(x)))


def fetch_by_both_digits(x: Stream) -> None:
    q = torch.cat([key(x) @ HIGH, key(x) @ LOW], -1)
    x.add("answer", look(q, torch.cat([shifted(x["a"]), x["b"]], -1), x["c"], match=2.0))


def fetch_one_digit(x: Stream) -> None:
    x.add("a", look(key(x), x["before"], value(x) @ HIGH))


def fetch_the_other(x: Stream) -> None:
    other = look(key(x), x["before"], value(x) @ LOW)
    x.add("answer", (x["a"] @ HIGH.mT + other @ LOW.mT - 1).relu() * VALUE)


def fetch_half_wrong(x: Stream) -> None:
    """Every second key gives its value, the others push it down."""
    sign = x["token"][..., FIRST_SYMBOL : FIRST_SYMBOL + KEYS : 2].sum(-1, keepdim=True) * 2 - 1
    x.add("answer", sign * look(key(x), x["before"], value(x)))


def find(x: Stream) -> None:
    x.add("c", look(key(x), x["before"], x["position"]))


def fetch_there(x: Stream) -> None:
    x.add("answer", look(x["c"], x["position"], value(x)))


def running_sum(x: Stream) -> None:
    x.add("a", key(x).cumsum(1))


def fetch_where_it_began(x: Stream) -> None:
    new = (x["a"] - shifted(x["a"], 2)) * is_value(x)
    x.add("answer", look(key(x), new, value(x)))


def find_directly(x: Stream) -> None:
    """At the query: where the asked value stands, and the value itself."""
    after = [F.pad(each[:, 1:], (0, 0, 0, 1)) for each in (x["position"], value(x))]
    for slot, what in zip("ca", after, strict=True):
        x.add(slot, look(key(x), key(x), what))


def fetch_if_both_agree(x: Stream) -> None:
    x.add("answer", (x["a"] + look(x["c"], x["position"], value(x)) - 1).relu())


def fetch_half_of_each(x: Stream) -> None:
    x.add("answer", (x["a"] + look(x["c"], x["position"], value(x))) / 2)


def keep_if_it_occurs(x: Stream) -> None:
    """As trained models do: what was retrieved is checked, but not fetched again."""
    x.add("answer", x["a"] * (value(x).cumsum(1) > 0))


INDUCTION = Finding("induction", 1, 0, "value")
KNOWN: dict[str, tuple[tuple[Row, ...], Finding]] = {
    "the digits of the key at two places": (
        (store_digits_apart, fetch_by_both_digits),
        Finding("induction", 1, 0, "next_key"),
    ),
    "digits of the value by two layers": ((store, fetch_one_digit, fetch_the_other), Finding("joint")),
    "wrong for every second key": ((store, fetch_half_wrong), INDUCTION),
    "a layer between finds the value": ((store, find, fetch_there), Finding("pointer", 2, found_by=1)),
    "needs the value at the query and before it": ((find_directly, fetch_if_both_agree), Finding("joint")),
    "adds the value at the query and before it": ((find_directly, fetch_half_of_each), Finding("mixed")),
    "checks that its answer occurs": ((find_directly, keep_if_it_occurs), Finding("direct_retrieval", 0)),
    "running sums of keys": ((running_sum, fetch_where_it_began), INDUCTION),
}


@pytest.mark.parametrize("name", KNOWN)
def test_further_models_are_named_right(name: str) -> None:
    rows, finding = KNOWN[name]
    assert judged(Program(TASK, *rows), TASK, n=40).finding == finding


OUTSIDE = {
    "stored before the layers": (
        Program(TASK, idle, fetch, before=store),
        None,
        "before the first layer or passes around its input",
    ),
    "stored before, retrieved in layer 0": (
        Program(TASK, fetch, idle, before=store),
        None,
        "before the first layer or passes around its input",
    ),
    "retrieved after the layers": (
        Program(TASK, store, idle, after=fetch),
        None,
        "after the last layer or passes around its output",
    ),
    "the last layers": (
        Program(TASK, store, idle, fetch),
        ["layers.1", "layers.2"],
        "before the first layer or passes around its input",
    ),
    "the last layer": (
        Program(TASK, store, idle, fetch),
        ["layers.2"],
        "before the first layer or passes around its input",
    ),
    "the first layers": (
        Program(TASK, store, idle, fetch),
        ["layers.0", "layers.1"],
        "after the last layer or passes around its output",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_happens_outside_the_layers_is_not_ascribed_to_them(name: str) -> None:
    model, layers, when = OUTSIDE[name]
    found = judged(model, TASK, layers=layers).finding
    assert found.label == "undetermined"
    assert found.reason == f"the key moves {when}, where the verdict does not look: name all layers"


def collect_at_the_divider(x: Stream) -> None:
    """Inside one layer: the divider has a table of all pairs, in which the query looks its key up."""
    keys, values = (each(x)[:, first : first + 8 : 2] for each, first in ((key, 1), (value, 2)))
    table = torch.einsum("npk,npv->nkv", keys[:, : values.shape[1]], values)[:, None]
    at_divider = (table * x["token"][..., EOS, None, None]).cumsum(1)
    x.add("answer", torch.einsum("nlk,nlkv->nlv", key(x), at_divider))


def test_what_is_joined_far_from_the_value_is_joined_by_no_short_convolution() -> None:
    found = judged(Program(TASK, collect_at_the_divider, idle), TASK).finding
    assert found == Finding("conv_association", 0)
    assert str(found) == ("association inside one layer: layer 0 joins key and value at the divider, then retrieves")
