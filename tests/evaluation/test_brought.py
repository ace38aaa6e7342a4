"""Mixers as people have them work at once, and say how they are called; two readings are an error."""

from __future__ import annotations

import copy
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evaluation import brought
from mecheval import custom as own
from mecheval.custom import as_class
from mecheval.errors import UnknownName, UserError
from mecheval.evaluation.checks import check_mixer, how_called
from mecheval.mixers import adapter
from mecheval.mixers.base import make_mixer
from mecheval.model import LM

BROUGHT = Path(__file__).parent / "brought.py"
D, LONGEST = 16, 18


@pytest.mark.parametrize(
    ("name", "options", "called"),
    [
        ("ByDim", {}, "ByDim(dim=16)"),
        ("ByDim", {"heads": 2}, "ByDim(dim=16, heads=2)"),
        ("ByHiddenSize", {}, "ByHiddenSize(hidden_size=16, layer_idx=0), "
                             "takes the first of the tuple that forward returns"),
        ("InAndOut", {}, "InAndOut(d_in=16, d_out=16)"),
        ("Passing", {"heads": 2, "gain": 3}, "Passing(dim=16, heads=2, gain=3)"),
        ("Wrapped", {}, "Wrapped(input_size=16, hidden_size=16, batch_first=True), "
                        "takes the first of the tuple that forward returns"),
        ("AnObject", {}, "AnObject(embed_dim=16), takes the first of the Answer that forward returns"),
        ("Configured", {"n_head": 2}, "Configured(config=SumConfig(n_embd=16, n_head=2), layer_idx=0)"),
        ("Sized", {}, "Sized(sizes=Sizes(dim=16))"),
        ("ByAttribute", {"heads": 1}, "ByAttribute(cfg=Plain(d_model=16, heads=1))"),
        ("GRU", {}, "GRU(input_size=16, hidden_size=16, batch_first=True), "
                    "takes the first of the tuple that forward returns"),
        ("LSTM", {"num_layers": 2}, "LSTM(input_size=16, hidden_size=16, num_layers=2, batch_first=True), "
                                    "takes the first of the tuple that forward returns"),
        ("make", {}, "make(d_model=16)"),
        ("filled", {}, "filled(dim=16)"),
        ("deep", {}, "deep(input_size=16, hidden_size=16, batch_first=True), "
                     "takes the first of the tuple that forward returns"),
        ("Needy", {"hidden_size": 4}, "Needy(dim=16, hidden_size=4)"),
    ],
)  # fmt: skip
def test_it_is_checked_as_it_comes(name: str, options: dict[str, Any], called: str) -> None:
    cls = own.Source(BROUGHT, name).load()
    assert check_mixer(cls, options, D, LONGEST) == []
    assert how_called(cls, options, D) == called


def test_what_is_given_arrives() -> None:
    def given(name: str, layer: int = 3, **options: Any) -> Any:
        return make_mixer(own.Source(BROUGHT, name).load(), name, D, layer, options).given

    assert given("filled") == {"heads": 8}
    assert given("filled", heads=2) == {"heads": 2}
    assert given("Configured", n_head=2) == {"heads": 2, "layer_idx": 3}
    assert given("ByAttribute", heads=1) == {"heads": 1}
    assert given("ByHiddenSize") == {"mode": "chunk", "layer_idx": 3}
    assert given("Passing", gain=3, heads=1) == {"gain": 3, "heads": 1}
    assert brought.Plain.d_model == 512, "the config's class stays as it is"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Needy", {}, "Needy takes dim and hidden_size, and one of them is the width of the model: give the other "
                      "(--set hidden_size=VALUE, or --set dim=VALUE)."),
        ("Needy", {"hidden_size": 4, "kernel": "three"},
         "Needy: kernel must be a whole number (got 'three'); its default is 3."),
        ("Needy", {"hidden_size": 4, "kernel": 2.5},
         "Needy: kernel must be a whole number (got 2.5); its default is 3."),
        ("Needy", {"hidden_size": 4, "kernel": True},
         "Needy: kernel must be a whole number (got True); its default is 3."),
        ("Needy", {"hidden_size": 4, "rate": "x"}, "Needy: rate must be a number (got 'x'); its default is 0.5."),
        ("Needy", {"hidden_size": 4, "mode": 3}, "Needy: mode must be text (got 3); its default is 'a'."),
        ("Configured", {"n_heads": 2}, "unknown option of Configured 'n_heads'. Did you mean 'n_head'? "
                                       "Choices: dropout, n_head."),
        ("TwoConfigs", {}, "TwoConfigs takes its width as a field of options, and its file has no class with one "
                           "(d_model, dim, hidden_size, ...); write `options: ItsClass`, or name a function: "
                           "def make(d_model): return TwoConfigs(...)."),
        ("nothing", {}, "nothing(d_model=16) returns nothing; it must return a torch module, which is then the mixer."),
    ],
)  # fmt: skip
def test_what_has_two_readings_or_none_is_one_line(name: str, options: dict[str, Any], message: str) -> None:
    if name == "TwoConfigs":  # the file has one class whose name says that it is a config, which would be taken
        brought.TwoConfigs.__module__ = "torch"
    cls = getattr(brought, name) if name == "TwoConfigs" else own.Source(BROUGHT, name).load()
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        check_mixer(cls, options, D, LONGEST)


@pytest.mark.parametrize("value", [1, 0.25])
def test_a_number_may_be_whole(value: float) -> None:
    call = adapter.call_of(brought.Needy, "Needy", D, 0, {"hidden_size": 4, "rate": value, "some": "thing"})
    assert call.arguments == {"dim": D, "hidden_size": 4, "rate": value, "some": "thing"}


def test_the_first_output_is_taken_in_models_and_their_copies() -> None:
    torch.manual_seed(0)
    lm = LM(9, D, 1, brought.GRU)
    gru = lm.get_submodule("blocks.0.mixer")
    assert isinstance(gru, nn.GRU)
    x = torch.randn(2, 5, D)
    expected: Tensor = nn.GRU.forward(gru, x)[0]
    assert torch.equal(gru(x), expected)
    tokens = torch.arange(6)[None]
    assert torch.equal(copy.deepcopy(lm)(tokens), lm(tokens))
    assert "blocks.0.mixer.weight_hh_l0" in lm.state_dict(), "the names of weights are the mixer's own"


def test_a_function_has_the_name_of_its_file_and_what_is_filled_in_counts() -> None:
    cls = own.checked(brought.make, "make")
    assert own.own_name(cls) == own.Source(BROUGHT, "make").name
    fills = [own.own_name(own.checked(partial(brought.ByDim, heads=heads), "filled")) for heads in (2, 2, 3)]
    assert fills[0] == fills[1] != fills[2]


def test_a_function_from_a_prompt_is_named_by_its_code_and_the_classes_that_it_names() -> None:
    text = (
        "from torch import nn\nclass A(nn.Module):\n    def forward(self, x): return x + 1\n"
        "def make(d_model): return A()\n"
    )

    def name(code: str) -> str:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(code, names)
        return own.own_name(as_class(names["make"], "make"))

    assert name(text) == name(text + "\n# a comment")
    assert len({name(text), name(text.replace("x + 1", "x + 2")), name(text.replace("A()", "A() and A()"))}) == 3


def test_options_of_a_mixer_with_two_readings_are_both() -> None:
    assert adapter.option_names(brought.Needy) == (["dim", "hidden_size", "kernel", "rate", "mode", "some"], False)
    assert adapter.option_names(brought.GRU)[0][:2] == ["hidden_size", "num_layers"]
    with pytest.raises(UnknownName):
        adapter.call_of(brought.GRU, "GRU", D, 0, {"bidirectionl": True})
