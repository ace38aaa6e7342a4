"""Which pairs are in a state: exact on a model whose memory was set by hand."""

from __future__ import annotations

import pytest
import torch

import mecheval as me
from mecheval.errors import UserError
from mecheval.intervene.stored import held, layers_with, probed_pairs
from mecheval.mixers.memory import MemoryMixer
from mecheval.mixers.options import BUILT_IN
from mecheval.model.handmade import handmade

TASK = me.build_task("ar", pairs=3, keys=6, values=5)


def test_the_probe_reads_exactly_the_pairs_that_a_hand_set_memory_has() -> None:
    lm = handmade("conv_direct", TASK)
    found = probed_pairs(lm, TASK.sample(400, "train"), TASK.sample(100, "test"))
    first = found[found["layer"] == 0].set_index(["position", "pair"])["accuracy"]
    joined = {}
    for pair in range(3):
        exact = [position for position in range(8) if first[position, pair] == 1]
        assert exact == list(range(exact[0], 8))  # once it is there, it stays
        joined[pair] = exact[0]
    assert joined == {pair: 2 * pair + 2 for pair in range(3)}  # at its value, where key and value are joined
    assert max(first[position, pair] for pair in range(3) for position in range(2 * pair + 2)) < 0.6


def test_what_orthonormal_keys_wrote_is_found_with_them() -> None:
    batch = TASK.sample(20, "test")
    found = held(handmade("conv_direct", TASK), batch)[0]
    assert all(found[7, position] == 1 for position in (2, 4, 6))  # the values, where key and value are joined


@pytest.mark.parametrize("mixer", BUILT_IN)
def test_every_mixer(mixer: str) -> None:
    options = {"d_state": 32} if mixer == "h3" else None
    lm = me.LM(TASK.vocab_size, 16, mixer=mixer, mixer_options=options, seed=0)
    found = probed_pairs(lm, TASK.sample(30, "train"), TASK.sample(10, "test"))
    assert sorted(found["layer"].unique()) == layers_with(lm, "state")
    assert found["accuracy"].between(0, 1).all()
    shares = held(lm, TASK.sample(10, "test"))
    memory = isinstance(lm.get_submodule("blocks.0.mixer"), MemoryMixer) and mixer != "mesa_net"
    assert set(shares) == ({0, 1} if memory else set())
    for share in shares.values():
        assert share[0, 0] == 1  # the first token is alone
        assert torch.equal(share, share.tril())


def test_other_documents_are_refused() -> None:
    other = me.build_task("atr", max_length=16).sample(4, "test")
    with pytest.raises(UserError, match="associative recall"):
        probed_pairs(me.LM(64, 8, mixer="mamba"), other, other)
    many = me.build_task("ar", pairs=2, keys=70, values=70)
    with pytest.raises(UserError, match="at most 4,096 different pairs"):
        probed_pairs(me.LM(many.vocab_size, 8, mixer="mamba"), many.sample(500, "train"), many.sample(4, "test"))
