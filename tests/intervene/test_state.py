"""States of mixers: swept over positions, and edited in parts."""

from __future__ import annotations

import pytest
import torch

import mecheval as me
from intervene.models import ROUNDED, pairs, small_lm
from mecheval.errors import UserError
from mecheval.intervene import interchange
from mecheval.model.handmade import handmade

TASK = me.build_task("ar", pairs=4, keys=16, values=16)


@pytest.mark.parametrize("budget_mb", [0.05, 64])
@pytest.mark.parametrize("mixer", ["mamba", "attention"])
def test_a_sweep_is_the_interchange_of_every_state(mixer: str, budget_mb: float) -> None:
    lm = small_lm(mixer)
    clean, corrupted = pairs(9)
    found = me.state_sweep(lm, clean, corrupted, budget_mb=budget_mb)
    where = {}
    for role, offset in dict.fromkeys(zip(found["role"], found["offset"], strict=True)):
        at = clean.roles[role] + offset
        last = clean.predict_at[:, 0] - int(role == "key")  # the state after the prediction comes too late
        where[f"{role} {offset}"] = torch.where((at >= 0) & (at <= last), at, -1)
    plain = interchange(lm, clean, corrupted, [f"blocks.{i}.mixer.state" for i in range(2)], where)
    assert found["n"].tolist() == plain["n"].tolist()
    for column in ("original", "corrupted", "restored"):
        assert found[column].tolist() == pytest.approx(plain[column].tolist(), abs=ROUNDED)
    assert set(found["layer"]) == {0, 1}
    assert found["restored"].std() > 1e-4
    assert set(me.state_sweep(lm, clean, corrupted, [1])["layer"]) == {1}


@pytest.mark.parametrize("offset", [0, 2])
def test_the_association_enters_the_state_where_it_was_built_to(offset: int) -> None:
    """conv_direct joins key and value `offset` tokens after the value: before, its state lacks the pair."""
    clean = TASK.sample(40, "test")
    lm = handmade("conv_direct", TASK, layer=1, offset=offset)
    share = me.state_sweep(lm, clean, TASK.corrupt(clean)).set_index(["layer", "role", "offset"])["share"]
    own = share[1]["key"]
    assert (own[own.index < 0].abs() < 0.01).all()
    if offset == 0:  # the state includes the inputs that the convolution still reaches, the key among them
        assert own[0] > 0.98
    assert (own[(own.index >= 1 + offset)] > 0.98).all()
    assert share[1]["divider"][0] > 0.98
    assert share[1]["query"][0] == 0  # too late
    assert (share[0].abs() < 0.01).all()  # an idle layer


def test_erasing_the_direction_of_one_key_loses_that_pair_alone() -> None:
    clean = TASK.sample(64, "test")
    lm = handmade("conv_direct", TASK)
    for pair in range(3):
        value = 2 + 2 * pair
        found = me.erase_state(lm, clean, 0, "divider", direction=value, per_document=True)
        asked = (clean.roles["value"] == value).numpy()
        assert asked.sum() > 4
        assert (found["original"] > 0.9).all()
        assert (found["edited"][asked] < 0.2).all()  # no better than a guess
        assert (found["drop"][~asked].abs() < 0.01).all()
    row = me.erase_state(lm, clean, 0, "divider", direction="value").iloc[0]  # of each document the pair asked for
    assert (row["edited"] < 0.2, row["n"], row["site"]) == (True, 64, "blocks.0.mixer.state")
    assert me.erase_state(lm, clean, 0, "divider")["edited"].iloc[0] < 0.2


def test_the_direction_of_the_asked_key_brings_the_pair_back() -> None:
    clean = TASK.sample(64, "test")
    lm, corrupted = handmade("conv_direct", TASK), TASK.corrupt(clean, kind="value")
    share = {
        direction: me.replace_state(lm, clean, corrupted, 0, "divider", direction=direction)["share"].iloc[0]
        for direction in ("value", "bos")
    }
    assert share["value"] > 0.98
    assert abs(share["bos"]) < 0.02
    keys = me.capture(lm, clean, ["blocks.0.mixer.k"], ["value"])["blocks.0.mixer.k"]["value"]
    given = me.replace_state(lm, clean, corrupted, 0, "divider", direction=3 * keys)  # its length does not matter
    assert given["share"].iloc[0] == pytest.approx(share["value"], abs=1e-5)


@pytest.mark.parametrize("mixer", ["attention", "delta_net", "based"])
def test_heads_share_out_the_state(mixer: str) -> None:
    """What replacing the whole state changes in the mixer's output is the sum of what its heads change."""
    lm = me.LM(TASK.vocab_size, 16, 2, mixer, {"num_heads": 2}, seed=0).eval()
    clean = TASK.sample(4, "test")
    corrupted, said = TASK.corrupt(clean), list[torch.Tensor]()

    def keep(_: object, given: tuple[torch.Tensor]) -> None:
        said.append(given[0][torch.arange(4), clean.predict_at[:, 0]])  # the stream, with what the mixer adds to it

    lm.get_submodule("blocks.1.norm2").register_forward_pre_hook(keep)
    for head in (None, 0, 1):
        me.replace_state(lm, clean, corrupted, 1, "divider", head=head)
    passes = len(said) // 3  # of each call the last one is the edited run
    own, whole, first, second = said[1], said[passes - 1], said[2 * passes - 1], said[3 * passes - 1]
    torch.testing.assert_close(whole - own, (first - own) + (second - own), rtol=1e-4, atol=1e-6)
    assert (first - own).abs().max() > 1e-5
    assert (second - own).abs().max() > 1e-5


@pytest.mark.parametrize(
    ("mixer", "arguments", "message"),
    [
        ("mamba", {"layer": 2}, r"there is no layer 2; the model has layers 0 to 1\."),
        ("mamba", {"head": 0}, r"layer 0 \(Mamba\) has no heads; leave out head\."),
        ("delta_net", {"head": 7}, r"layer 0 has heads 0 to \d \(got 7\)\."),
        ("attention", {"direction": "value"}, r"has no matrix memory; delta_net, based and mamba have one\."),
        ("mamba", {"direction": torch.ones(3)}, r"direction: give a role, or a tensor \(16,\) or .* \(got \(3,\)\)\."),
        ("mamba", {"direction": "between"}, r"direction: give a role of one position, such as value\."),
        ("mamba", {"direction": torch.ones(16).long()}, r"direction: give a role, or a tensor of floats\."),
        ("mamba", {"after": "vlaue"}, r"unknown role 'vlaue'"),
    ],
)
def test_mistakes_name_the_choices(mixer: str, arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"layer": 0, "after": "divider", **arguments}
    with pytest.raises(UserError, match=message):
        me.replace_state(small_lm(mixer), *pairs(), **given)  # type: ignore[arg-type]


def test_only_models_of_ours_have_states() -> None:
    with pytest.raises(UserError, match="the state of a mixer can only be replaced in an LM"):
        me.state_sweep(torch.nn.Linear(2, 2), *pairs(), [0])  # type: ignore[arg-type]
