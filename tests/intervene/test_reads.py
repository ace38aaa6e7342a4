"""What layers read from where, of models whose weights were set by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mecheval as me
from mecheval.errors import UserError
from mecheval.model.handmade import handmade

TASK = me.build_task("ar", pairs=4, keys=16, values=16)


def test_an_induction_reads_the_key_at_the_value_and_the_value_at_the_query() -> None:
    batch = TASK.sample(32, "test")
    found = me.reads(handmade("induction", TASK), batch)
    at_value = found.table(["key", "value"], at="value").set_index(["layer", "role"])["share"]
    at_query = found.table(["key", "value"], at="query").set_index(["layer", "role"])["share"]
    assert at_value[0, "key"] > 0.95
    assert at_query[1, "value"] > 0.95
    assert abs(at_query[1, "key"]) < 0.05


@pytest.mark.parametrize("mixer", ["attention", "mamba", "delta_net", "h3", "hyena", "base_conv", "based"])
def test_shares_sum_to_one_and_states_change(mixer: str) -> None:
    batch = TASK.sample(4, "test")
    lm = me.LM(TASK.vocab_size, 16, mixer=mixer, mixer_options={"d_state": 32} if mixer == "h3" else None, seed=0)
    found = me.reads(lm, batch)
    n, length = batch.tokens.shape
    assert found.shares.shape == (2, n, length, length)
    torch.testing.assert_close(found.shares.sum(-1), torch.ones(2, n, length), rtol=0, atol=1e-4)
    assert found.norms.isnan().all() == (mixer not in ("mamba", "delta_net", "based"))
    if mixer in ("mamba", "delta_net"):
        torch.testing.assert_close(found.changes[:, :, 0], found.norms[:, :, 0])  # the state before is zero


def test_what_cannot_be_read_is_one_line() -> None:
    batch = TASK.sample(2, "test")
    with pytest.raises(UserError, match="give an LM"):
        me.reads(nn.Linear(2, 2), batch)
    custom = me.LM(TASK.vocab_size, 8, mixer=lambda d_model: nn.Linear(d_model, d_model))
    with pytest.raises(UserError, match="mixer of layer 0 does not say"):
        me.reads(custom, batch)
