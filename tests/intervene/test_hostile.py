"""Models built to mislead the rule: what it says of them must be true, or it must say that it does not know."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mecheval as me
from intervene.programs import Program, Row, Stream, judged, look, shifted
from mecheval.intervene import Zero
from mecheval.intervene.finding import Finding
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


def join_or_look(x: Stream) -> None:
    """In one layer, two ways, each of which is enough: by the key at its value, and by the key itself."""
    x.add("answer", look(key(x), shifted(key(x)), value(x)))
    x.add("answer", look(key(x), key(x), F.pad(value(x)[:, 1:], (0, 0, 0, 1))))


def join_even_keys(x: Stream) -> None:
    """The same for half of the keys each."""
    even = x["token"][..., FIRST_SYMBOL : FIRST_SYMBOL + KEYS : 2].sum(-1, keepdim=True)
    x.add("answer", look(key(x) * even, shifted(key(x)), value(x)))
    x.add("answer", look(key(x) * (1 - even), key(x), F.pad(value(x)[:, 1:], (0, 0, 0, 1))))


def store_and_find(x: Stream) -> None:
    store(x)
    find_directly(x)


def keep_or_fetch_if_the_key_is_there(x: Stream) -> None:
    """At the query is enough; so are key and value, but only together."""
    present = look(key(x), key(x), key(x)).sum(-1, keepdim=True)
    x.add("answer", torch.maximum(x["a"], present * look(key(x), x["before"], value(x))))


ORDERS = torch.stack([torch.randperm(TASK.vocab_size, generator=torch.Generator().manual_seed(i)) for i in range(KEYS)])
"""(keys, V) for each key another order of all symbols."""


def bring_all(x: Stream) -> None:
    """At every later position: the sum of all values, each in the order of its key; what is asked plays no part."""
    keys = (shifted(key(x)) * is_value(x))[..., FIRST_SYMBOL : FIRST_SYMBOL + KEYS]
    each = torch.stack([value(x)[..., order] for order in ORDERS], -2)
    x.add("c", torch.einsum("nlk,nlkv->nlv", keys, each).cumsum(1))


def bring_what_was_stored(x: Stream) -> None:
    """The same in two layers, of which `store` is the first."""
    each = torch.stack([value(x)[..., order] for order in ORDERS], -2)
    keys = x["before"][..., FIRST_SYMBOL : FIRST_SYMBOL + KEYS]
    x.add("c", torch.einsum("nlk,nlkv->nlv", keys, each).cumsum(1))


def read_in_order(x: Stream) -> None:
    keys = key(x)[..., FIRST_SYMBOL : FIRST_SYMBOL + KEYS]
    each = torch.stack([x["c"][..., order.argsort()] for order in ORDERS], -2)
    x.add("answer", torch.einsum("nlk,nlkv->nlv", keys, each) * VALUE)


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
    "two ways in one layer": ((join_or_look, idle), Finding("redundant")),
    "two ways in one layer, by the key": ((join_even_keys, idle), Finding("undetermined")),
    "at the query, or key and value together": (
        (store_and_find, keep_or_fetch_if_the_key_is_there),
        Finding("redundant"),
    ),
    "running sums of keys": ((running_sum, fetch_where_it_began), INDUCTION),
    "all pairs at the query": ((bring_all, read_in_order), Finding("induction", 1, 0, "query")),
    "all pairs at the query, idle between": ((bring_all, idle, read_in_order), Finding("induction", 2, 0, "query")),
    "stored, then all pairs at the query": (
        (store, bring_what_was_stored, read_in_order),
        Finding("induction", 2, 0, "value"),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_further_models_are_named_right(name: str) -> None:
    rows, finding = KNOWN[name]
    assert judged(Program(TASK, *rows), TASK, n=40).finding == finding


REVERSE = me.build_task("ar", pairs=4, keys=KEYS, values=KEYS, query="value")


def join_value_first(x: Stream) -> None:
    """In reverse recall, what is asked is a value, and what is answered the key before it."""
    x.add("answer", look(value(x), value(x), shifted(key(x))))


def fetch_value_first(x: Stream) -> None:
    x.add("answer", look(value(x), value(x), x["before"]))


def join_after_the_pair(x: Stream) -> None:
    """Inside one layer, key and value come together one token after both."""
    x.add("answer", look(value(x), shifted(value(x)), shifted(key(x), 2)))


def store_after_the_pair(x: Stream) -> None:
    x.add("before", shifted(value(x)))
    x.add("c", shifted(key(x), 2))


def fetch_after_the_pair(x: Stream) -> None:
    x.add("answer", look(value(x), x["before"], x["c"]))


@pytest.mark.parametrize(
    ("rows", "finding", "said"),
    [
        ((join_value_first, idle), Finding("conv_association", 0), "layer 0 joins key and value at the key,"),
        ((store, fetch_value_first), Finding("induction", 1, 0, "key"), "stores the value at the key,"),
        ((join_after_the_pair, idle), Finding("conv_association", 0), "at the second position after the value,"),
        (
            (store_after_the_pair, fetch_after_the_pair),
            Finding("induction", 1, 0, "value+2"),
            "layer 0 stores the key at the second position after the value,",
        ),
    ],
)
def test_a_value_that_comes_first_comes_to_its_key_or_both_come_together_after_it(
    rows: tuple[Row, ...], finding: Finding, said: str
) -> None:
    found = judged(Program(REVERSE, *rows), REVERSE, n=40).finding
    assert found == finding
    assert said in str(found)


def look_ahead(x: Stream) -> None:
    """At every key stands the value that comes after it."""
    x.add("c", F.pad(value(x)[:, 1:], (0, 0, 0, 1)))


def fetch_at_the_key(x: Stream) -> None:
    x.add("answer", look(key(x), key(x), x["c"]))


def test_a_model_that_looks_ahead_has_no_name() -> None:
    """Its answers are causal, its activations are not: layer 0 associates, so layer 1 does not do both."""
    found = judged(Program(TASK, look_ahead, fetch_at_the_key), TASK, n=40).finding
    assert found.label == "undetermined"
    assert found.reason == "the model looks ahead: at the input of layer 1, a token changes what stands before it"


class Turned(nn.Module):
    """A layer of another shape: what it takes and gives has channels before positions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.inner = layer

    def forward(self, h: Tensor) -> Tensor:
        y: Tensor = self.inner(h.mT).mT
        return y


class Channels(Program):
    def __init__(self) -> None:
        super().__init__(TASK, store, fetch)
        self.layers = nn.ModuleList(map(Turned, self.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens).mT
        for layer in self.layers:
            h = layer(h)
        return self.unembed(h.mT)


class Twice(Program):
    def __init__(self) -> None:
        super().__init__(TASK, store, fetch)
        self.layers = nn.ModuleList([self.layers[0], self.layers[0]])


@pytest.mark.parametrize(
    ("model", "site", "said"),
    [(Channels(), "layers.1.input", "positions second"), (Twice(), "layers.0.input", "several times")],
    ids=["channels first", "one layer twice"],
)
def test_what_cannot_be_patched_is_refused(model: nn.Module, site: str, said: str) -> None:
    clean = TASK.sample(16, "test")
    with pytest.raises(me.errors.UserError, match=said):
        me.interchange(model, clean, TASK.corrupt(clean), [site], ["value"])
    if said == "positions second":
        with pytest.raises(me.errors.UserError, match=said):
            me.ablate(model, clean, Zero(), [site])


BEFORE, AFTER = "before the first layer or passes around its input", "after the last layer or passes around its output"
OUTSIDE = {
    "stored before the layers": (Program(TASK, idle, fetch, before=store), None, BEFORE),
    "stored before, retrieved in layer 0": (Program(TASK, fetch, idle, before=store), None, BEFORE),
    "retrieved after the layers": (Program(TASK, store, idle, after=fetch), None, AFTER),
    "the last layers": (Program(TASK, store, idle, fetch), ["layers.1", "layers.2"], BEFORE),
    "the last layer": (Program(TASK, store, idle, fetch), ["layers.2"], BEFORE),
    "the first layers": (Program(TASK, store, idle, fetch), ["layers.0", "layers.1"], AFTER),
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
