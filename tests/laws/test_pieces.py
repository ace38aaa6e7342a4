"""Laws of reading in pieces: token by token every mixer gives the numbers of the whole, from a state of known size."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from laws.test_mixers import VARIANTS, D, build, error, random
from mecheval.analysis.cost_cell import Counting
from mecheval.errors import UserError
from mecheval.mixers import Mixer
from mecheval.model import LM
from mecheval.ops import dispatch
from mecheval.ops.pieces import State, reading
from mecheval.ops.short_conv import short_conv

SAME = 1e-5
"""What is asked of every mixer, relative to its largest output."""


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_steps_give_the_whole_and_carry_what_they_say(variant: str) -> None:
    mixer = build(variant, **({"d_state": 32} if variant == "h3" else {}))
    assert isinstance(mixer, Mixer)
    x = random(2, 100, D)
    whole, state, steps = mixer(x), State(), []
    for t in range(x.shape[1]):
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
        if t + 1 in (1, 2, 37, 100):
            assert state.size == mixer.state_size(t + 1)
            assert error(torch.stack(steps, dim=1), mixer(x[:, : t + 1])) < SAME
    assert error(torch.stack(steps, dim=1), whole) < SAME


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_pieces_of_any_length_in_double_precision(variant: str) -> None:
    mixer = build(variant, **({"d_state": 32} if variant == "h3" else {})).double()
    pieces = [random(2, length, D, seed=length).double() for length in (1, 7, 2, 5)]
    whole, state, found = mixer(torch.cat(pieces, dim=1)), State(), []
    for piece in pieces:
        with reading(state) as now:
            found.append(mixer(piece))
        state = now.after(piece.shape[1])
    assert error(torch.cat(found, dim=1), whole) < 1e-12


class Cumulative(nn.Module):
    """A custom mixer that knows nothing of pieces."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x).cumsum(1)
        return y


@pytest.mark.parametrize(
    ("mixer", "canon"), [("attention", "ABCD"), ("mamba", "A"), ("mamba+attention", ""), (Cumulative, "C")]
)
def test_a_model_reads_in_pieces_and_its_states_never_change(mixer: str | type[nn.Module], canon: str) -> None:
    lm = LM(20, D, mixer=mixer, canon=canon, seed=0)
    tokens = torch.randint(20, (3, 12), generator=torch.Generator().manual_seed(0))
    whole = lm(tokens)
    first, state = lm.read(tokens[:, :5])
    for _ in range(2):  # a state can be continued as often as one likes
        second, after = lm.read(tokens[:, 5:], state)
        assert error(torch.cat([first, second], dim=1), whole) < SAME
    assert (state.length, after.length) == (5, 12)
    assert not isinstance(mixer, str) or after.size == lm.state_size(12)
    torch.testing.assert_close(lm(tokens), whole, rtol=0, atol=0)  # afterwards, documents are whole again


@pytest.mark.parametrize("mixer", ["attention", "hyena", "mamba", "delta_net"])
def test_generation_is_the_likeliest_token_again_and_again(mixer: str) -> None:
    lm = LM(20, D, mixer=mixer, seed=0)
    tokens = torch.tensor([[3, 7], [5, 1]])
    expected = tokens
    for _ in range(6):
        expected = torch.cat([expected, lm(expected)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(lm.generate(tokens, 6), expected)
    assert torch.equal(lm.generate(tokens, 0), tokens)
    drawn = lm.generate(tokens, 6, temperature=1.0, seed=1)
    assert torch.equal(drawn, lm.generate(tokens, 6, temperature=1.0, seed=1))
    assert torch.equal(lm.generate(tokens, 6, temperature=1.0, top_k=1), expected)
    assert lm.training


@torch.no_grad()
def test_mamba_generates_its_thousandth_token_at_the_cost_of_its_first() -> None:
    lm, few = LM(20, D, mixer="mamba", positions="none", seed=0), torch.tensor([[3, 1, 4, 1]])
    first = few[:, :1]
    _, start = lm.read(few)  # as many tokens as its short convolution looks at
    _, end = lm.read(lm.generate(few, 1000))
    assert (start.length, end.length) == (4, 1004)
    assert start.size == end.size == lm.state_size(4) == lm.state_size(1004)
    times: dict[int, list[float]] = {4: [], 1004: []}
    flops = {}
    for _ in range(30):  # in turn, so that the two are measured under the same conditions
        for state in (start, end):
            before = time.process_time()
            lm.read(first, state)
            times[state.length].append(time.process_time() - before)
    for state in (start, end):
        with dispatch.path("reference"), Counting() as counting:
            lm.read(first, state)
        flops[state.length] = counting.flops
    assert flops[4] == flops[1004]
    assert min(times[1004]) < 1.5 * min(times[4])


def test_what_cannot_be_generated_is_one_line() -> None:
    lm, tokens = LM(20, D, seed=0, max_length=4), torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(UserError, match="temperature"):
        lm.generate(tokens, 1, temperature=-1.0)
    with pytest.raises(UserError, match="top_k of 1 to 20"):
        lm.generate(tokens, 1, temperature=1.0, top_k=21)
    with pytest.raises(UserError, match="L >= 1"):
        lm.generate(tokens[:, :0], 1)
    with pytest.raises(UserError, match="position table"):
        lm.generate(tokens, 4)
    with reading(State()), pytest.raises(ValueError, match="in pieces"):
        short_conv(random(1, 2, 3), random(3, 1, 2), at=tokens)
    tap = LM(20, D, mixer="mamba", seed=0)
    tap.taps()["blocks.0.mixer.state"].listener = lambda state: state
    with pytest.raises(UserError, match="whole documents"):
        tap.read(tokens)
