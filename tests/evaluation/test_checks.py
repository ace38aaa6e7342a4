from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from mecheval import custom as own
from mecheval.errors import UserError
from mecheval.evaluation.checks import check_mixer
from mecheval.mixers import MIXERS
from mecheval.model import LM

FAULTY = Path(__file__).parent / "faulty.py"
LEAKS = Path(__file__).parent / "leaks.py"
D, LONGEST = 16, 18


def mixer(name: str, file: Path = FAULTY) -> type[nn.Module]:
    return own.Source(file, name).load()


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(FAULTY.read_text().splitlines(), start=1) if text in line)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoForward", "NoForward has no forward; write `def forward(self, x)`"),
        ("TwoInputs", "TwoInputs.forward must work with x (B, L, D) alone: missing a required argument: 'mask'."),
        ("NoWidth", "NoWidth must take its width by a known name (d_model, dim, hidden_size, embed_dim, n_embd, "
                    "...); rename the argument, or name a function: def make(d_model): return NoWidth(width=d_model)."),
        ("Needs", "Needs needs d_state, heads; give --set d_state=VALUE --set heads=VALUE "
                  "(in Python options={'d_state': ..., 'heads': ...})."),
        ("FailsToBuild", f"FailsToBuild(d_model=16) failed, line {line_of('out of')}: RuntimeError: out of ideas"),
        ("FailsToRun", f"FailsToRun.forward failed on an input (3, 1, 16), line {line_of('return x @ x')}: Runtime"),
        ("OnlyOneToken", f"OnlyOneToken.forward failed on an input (3, {LONGEST}, 16), line"),
        ("OnlyOneToken", f"It takes up to 1 tokens, but documents have 1 to {LONGEST}: make its tables longer,"),
        ("Chunks", "It takes 4, 8, 12 ... tokens, but documents have 1 to 18: make its tables longer, or pad"),
        ("Remembers", "Remembers keeps something from one call to the next (seen): the same input gives two outputs."),
        ("InPlace", "InPlace.forward changes its input in place (x += ..., x[...] = ..., x.mul_()), which others also"),
        ("Positions", "It is called with x alone, so position_ids is None: make it inside forward, e.g. positions by"),
        ("Half", "Its weights are bfloat16, and models here are float32: build it without dtype=... or .to(...)"),
        ("InAList", "InAList has layers or parameters in a plain list (layers), where they are neither trained nor"),
        ("StateFirst", "StateFirst.forward returns a tuple, whose first tensor has shape (3, 16) for an input (B, L"),
        ("Halved", "Halved.forward gives shape (3, 1, 8) for an input (B, L, D) of (3, 1, 16); both must be the same"),
        ("Listless", "Listless.forward returns str, and neither it nor its first part is a tensor (B, L, D)."),
        ("Doubled", "Doubled.forward gives torch.float64 for an input of torch.float32; both must be the same: "),
        ("GivesNaN", "GivesNaN gives NaN at position 0 of 1, for ordinary inputs"),
        ("GivesInfinity", "GivesInfinity gives infinite numbers at position 0 of 1"),
        ("BadGradient", "BadGradient: the gradient of weight is NaN for ordinary inputs."),
        ("InfiniteGradient", "InfiniteGradient: the gradient of weight is infinite for ordinary inputs."),
        ("Normed", "Normed mixes the documents of a batch in training mode: changing document 0 changes the output of"),
        ("Noisy", "Noisy gives two outputs for the same input in evaluation mode"),
        ("Grows", "Grows makes late.weight in forward; make it in __init__"),
        ("Lazy", "Lazy has lazy parameters; give every layer its size"),
        ("WrongAt", "WrongAt: forward(x, at) must give the outputs at positions `at` (B, K)"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        check_mixer(mixer(name), {}, D, LONGEST)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "ahead"),
    [("Future", "any"), ("CentredConvolution", "next"), ("MeanOfAll", "any"), ("FutureInTraining", "any")],
)
def test_a_mixer_that_sees_the_future_is_refused(name: str, ahead: str) -> None:
    with pytest.raises(UserError) as error:
        check_mixer(mixer(name), {}, D, LONGEST)
    said = str(error.value)
    assert said.startswith(f"{name} is not causal: changing the input at position ")
    words = said.split()
    t, s = int(words[words.index("position") + 1]), int(words[len(words) - words[::-1].index("position")])
    assert s == t - 1 if ahead == "next" else s < t
    assert "so a model could read the answer from the future. Mask it" in said


@pytest.mark.parametrize(
    ("name", "mode", "pairs"),
    [
        ("NotBatchFirst", "training", {(0, 1), (0, 2)}),
        ("SeesLater", "training", {(1, 0)}),
        ("SeesLaterInTraining", "training", {(1, 0)}),
        ("SeesLaterInEvaluation", "evaluation", {(1, 0)}),
        ("MiddleSeesFirst", "training", {(0, 1)}),
        ("Neighbours", "training", {(0, 1)}),
        ("MeanOfBatch", "training", {(0, 1), (0, 2)}),
        ("LargestOfBatch", "training", {(i, j) for i in range(3) for j in range(3) if i != j}),
    ],
)
def test_a_mixer_that_mixes_documents_is_refused(name: str, mode: str, pairs: set[tuple[int, int]]) -> None:
    """`pairs`: the document that was changed, and one that it may have leaked into."""
    with pytest.raises(UserError) as error:
        check_mixer(mixer(name, LEAKS), {}, D, LONGEST)
    said = str(error.value)
    pattern = rf"{name} mixes the documents of a batch in {mode} mode: changing document (\d) .* of document (\d) by "
    found = re.match(pattern, said)
    assert found, said
    assert (int(found[1]), int(found[2])) in pairs
    assert "batch_first=True" in said


@pytest.mark.parametrize(("name", "document"), [("PlaceInBatch", 1), ("SizeOfBatch", 0)])
def test_a_mixer_that_knows_a_documents_place_or_the_batchs_size_is_refused(name: str, document: int) -> None:
    with pytest.raises(UserError, match=f"{name} gives document {document} another output alone than in a batch of 3;"):
        check_mixer(mixer(name, LEAKS), {}, D, LONGEST)


@pytest.mark.parametrize("name", ["Good", "Plain", "LongConvolution", "Dropped", "NoParameters", "House", "Tupled"])
def test_what_is_sound_passes_in_silence(name: str) -> None:
    assert check_mixer(mixer(name), {}, D, LONGEST) == []


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("Constant", "the output of Constant does not depend on its input at all."),
        ("Detached", "no gradient passes through Detached"),
        ("Untrained", "no parameter of Untrained gets a gradient, so none is trained."),
        ("OtherRandom", "OtherRandom does not draw its initial weights from torch's generator"),
    ],
)
def test_what_is_odd_is_a_warning(name: str, warning: str) -> None:
    [said] = check_mixer(mixer(name), {}, D, LONGEST)
    assert warning in said


@pytest.mark.parametrize("name", ["attention", "base_conv", "delta_net", "h3", "hyena", "mamba"])
def test_the_built_in_mixers_pass(name: str) -> None:
    cls = MIXERS.get(name)
    assert isinstance(cls, type)
    assert check_mixer(cls, {}, D, LONGEST) == []


@pytest.mark.parametrize("longest", [5, 7, 18, 100])
def test_no_input_is_longer_than_the_tasks_documents(longest: int) -> None:
    assert check_mixer(mixer("Limited"), {"limit": longest}, D, longest) == []
    with pytest.raises(UserError, match=r"Limited.forward failed on an input"):
        check_mixer(mixer("Limited"), {"limit": longest - 1}, D, longest)


def test_checks_leave_random_numbers_and_threads_as_they_were() -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    check_mixer(mixer("Good"), {}, D, LONGEST)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_checks_at_the_scales_width_take_less_than_a_second() -> None:
    cls = mixer("Good")
    check_mixer(cls, {}, 128, 20)
    began = time.process_time()
    check_mixer(cls, {}, 128, 20)
    assert time.process_time() - began < 1


def test_an_own_class_works_in_a_model_without_any_of_this() -> None:
    lm = LM(9, D, 2, mixer("Good"))
    assert "blocks.1.mixer.conv" in lm.sites()
