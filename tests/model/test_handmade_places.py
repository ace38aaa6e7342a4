"""What each hand-set model keeps where at the boundary between its layers: alone, together, and when destroyed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

import mecheval as me
from mecheval.errors import UserError
from mecheval.intervene import Intervention, Take, capture, patch
from mecheval.intervene.places import Roles
from mecheval.intervene.reading import likelihood
from mecheval.model import LM
from mecheval.model.handmade import handmade
from mecheval.tasks import Task, build_task
from mecheval.types import Batch

LAST = 3 / 8
"""How often the last pair is asked, whose next_key is the divider."""
BOUNDARY = "blocks.1.input"
ROLES = ("key", "value", "next_key", "divider", "query")
SIZES = ((2, 16), (4, 64), (16, 24))
"""Pairs and keys; each size has a seed of its own."""
BUILT: list[tuple[str, dict[str, Any]]] = [
    ("pointer", {}), ("redundant", {}), ("joint", {}), ("two_stores", {}), ("divider_store", {}), ("token_shift", {}),
    ("foo", {}), *(("split_store", {"share": share}) for share in (0.68, 0.8)),
    *(("conv_direct", {"offset": offset}) for offset in range(4)),
    *(("conv_attention", {"offset": offset}) for offset in range(3)),
]  # fmt: skip
"""All models that recall, but for the older ones, with their options."""


class Case(NamedTuple):
    """A model with its clean and corrupted documents."""

    lm: LM
    task: Task
    clean: Batch
    corrupted: Batch

    def share(self, *roles: str | int, site: str = BOUNDARY) -> float:
        """What clean activations at all these roles together restore in the corrupted run."""
        return self._moved(self.corrupted, self.clean, roles, site)

    def lost(self, *roles: str | int, site: str = BOUNDARY) -> float:
        """What corrupted activations at all these roles together destroy in the clean run."""
        return self._moved(self.clean, self.corrupted, roles, site)

    def _moved(self, base: Batch, source: Batch, roles: Sequence[str | int], site: str) -> float:
        before, target = likelihood(self.lm, base).mean(), likelihood(self.lm, source).mean()
        taken = capture(self.lm, source, [site], list(roles))[site]
        edits = [Intervention(site, role, Take(taken[str(role)])) for role in roles]
        with patch(self.lm, edits, base):
            after = likelihood(self.lm, base).mean()
        return float((after - before) / (target - before))

    def shares(self, site: str = BOUNDARY, roles: Roles = ROLES) -> dict[str, float]:
        """What each role restores by itself, as an analysis measures it, but without evidence for a verdict."""
        each = me.interchange(self.lm, self.clean, self.corrupted, [site], roles, per_document=True)
        mean = each.groupby("role", sort=False)[["original", "corrupted", "attribution"]].mean()
        found: dict[str, float] = (mean["attribution"] / (mean["original"] - mean["corrupted"])).to_dict()
        return found


def cases(name: str, sizes: Sequence[tuple[int, int]] = SIZES, **options: Any) -> list[Case]:
    """The model for every size, with a seed each, and eight documents, of which three ask about the last pair."""
    found = []
    for seed, (pairs, keys) in enumerate(sizes):
        task = build_task("ar", pairs=pairs, keys=keys, values=keys)
        many = task.sample(99, "test", seed=seed)
        last = many.roles["next_key"] == many.roles["divider"]
        clean = many[torch.cat([last.nonzero()[:3, 0], (~last).nonzero()[:5, 0]])]
        found.append(Case(handmade(name, task, seed=seed, **options), task, clean, task.corrupt(clean, seed=seed)))
    return found


def recalls(case: Case) -> None:
    """As sure as promised, on every document."""
    assert likelihood(case.lm, case.clean).min() > 0.95
    assert likelihood(case.lm, case.corrupted).max() < 0.05


def restores(found: dict[str, float], within: float = 0.01, **expected: float) -> None:
    """The shares at roles, 0 where none is named."""
    assert found == pytest.approx({role: expected.get(role, 0.0) for role in ROLES}, abs=within)


def with_another_value(case: Case) -> Case:
    """The value is corrupted instead of the key: another one stands there that is not in the document."""
    tokens, values = case.clean.tokens.clone(), range(case.task.vocab_size - 1, 0, -1)
    for row, place in enumerate(case.clean.roles["value"].tolist()):
        tokens[row, place] = next(value for value in values if value not in tokens[row].tolist())
    return case._replace(corrupted=replace(case.clean, tokens=tokens))


def after_value(case: Case, offset: int) -> torch.Tensor:
    """The position `offset` tokens after the value, at most the query."""
    return (case.clean.roles["value"] + offset).minimum(case.clean.roles["query"])


def restored_after_value(case: Case, site: str) -> list[float]:
    """What is restored 0, 1, 2 and 3 tokens after the value."""
    return list(case.shares(site, {str(offset): after_value(case, offset) for offset in range(4)}).values())


@pytest.mark.parametrize(("name", "options"), BUILT)
def test_every_model_is_sure_with_the_key_and_only_with_it(name: str, options: dict[str, Any]) -> None:
    for case in cases(name, ((2, 64), (16, 24)), **options):
        recalls(case)
    [noisy] = cases(name, SIZES[1:2], noise=0.02, **options)
    recalls(noisy)


def test_the_pointer_says_where_and_not_what() -> None:
    for case in cases("pointer"):
        restores(case.shares(), query=1)
        of_value = with_another_value(case)
        recalls(of_value)
        restores(of_value.shares(), value=1)


def test_either_route_of_the_redundant_model_is_enough() -> None:
    for case in cases("redundant"):
        restores(case.shares(), value=1, query=1)
        assert case.share("value", "query") == pytest.approx(1)
        assert max(case.lost("value"), case.lost("query")) < 0.02
        assert case.lost("value", "query") == pytest.approx(1)


def test_the_joint_model_needs_both_places() -> None:
    for case in cases("joint"):
        restores(case.shares())
        assert case.share("value", "query") == pytest.approx(1)
        assert min(case.lost("value"), case.lost("query")) > 0.99


def test_the_divider_can_hold_all_pairs() -> None:
    for case in cases("divider_store"):
        restores(case.shares(), divider=1, next_key=LAST)
        assert case.lost("divider") > 0.99


@pytest.mark.parametrize("share", [0.68, 0.8])
def test_the_split_store_has_its_share_at_the_value(share: float) -> None:
    for case in cases("split_store", share=share):
        restores(case.shares(), within=0.02, value=share, divider=1 - share, next_key=(1 - share) * LAST)
        assert case.share("value", "divider") == pytest.approx(1)
        assert case.lost("value") == pytest.approx(share, abs=0.02)
        assert case.lost("divider") == pytest.approx(1 - share, abs=0.02)


def test_either_of_two_stores_is_enough() -> None:
    for case in cases("two_stores"):
        restores(case.shares(), value=1, next_key=1, divider=LAST)
        assert max(case.lost("value"), case.lost("next_key")) < 0.02
        assert case.lost("value", "next_key") > 0.99


@pytest.mark.parametrize("offset", range(4))
def test_convolutions_can_join_a_pair_some_tokens_after_the_value(offset: int) -> None:
    for case in cases("conv_direct", offset=offset, layer=0):
        restores(case.shares(), query=1)
        expected = [float(offset == other) for other in range(4)]
        asked_last = LAST if offset > 1 else 0.0  # for the last pair, two and three tokens later are the query
        if offset == 2:
            expected[3] = asked_last
        elif offset == 3:
            expected[2] = asked_last
        assert restored_after_value(case, "blocks.0.mixer.k_conv") == pytest.approx(expected, abs=0.01)
    [late] = cases("conv_direct", SIZES[1:2], offset=offset, layer=1)
    restores(late.shares(), key=1)


@pytest.mark.parametrize("offset", range(3))
def test_a_convolution_before_attention_can_store_after_the_value(offset: int) -> None:
    for case in cases("conv_attention", offset=offset):
        expected = [float(offset == other) for other in range(4)]
        expected[3] = LAST if offset == 2 else 0.0  # no later than the query
        assert restored_after_value(case, BOUNDARY) == pytest.approx(expected, abs=0.01)
        restores(
            case.shares(),
            value=float(offset == 0),
            next_key=float(offset == 1),
            divider=LAST * (offset == 1),
            query=LAST * (offset == 2),
        )


@pytest.mark.parametrize(("name", "role"), [("present_guesser", "query"), ("stored_guesser", "value")])
def test_guessers_that_need_the_key_recall_nothing(name: str, role: str) -> None:
    for case in cases(name):
        pairs = case.task.options.pairs  # type: ignore[attr-defined]
        with torch.no_grad():
            p = case.lm(case.clean.tokens, at=case.clean.predict_at[:, 0]).softmax(-1)
        of_values = p.gather(1, case.clean.tokens[:, 2 : 2 * pairs + 1 : 2])
        assert torch.allclose(of_values, torch.tensor(0.9933 / pairs), rtol=1e-3)
        assert likelihood(case.lm, case.corrupted).max() < 0.05
        restores(case.shares(), **{role: 1.0})


@pytest.mark.parametrize("name", ["token_shift", "foo"])
def test_a_shift_inside_a_custom_mixer_joins_key_and_value(name: str) -> None:
    for layer, role in ((0, "query"), (1, "key")):
        for case in cases(name, layer=layer):
            restores(case.shares(), **{role: 1.0})
            found = [site.part for site in case.lm.sites() if site.kind == "short_conv"]
            assert set(found) == ({"mixer.foo"} if name == "foo" else set())


def test_erasing_a_key_from_the_state_loses_its_pair_alone() -> None:
    [case] = cases("conv_direct", [(8, 64)])
    sites = [f"blocks.0.mixer.{part}" for part in ("state", "q", "heads", "k")]
    state, q, heads = (each["query"] for each in list(capture(case.lm, case.clean, sites, ["query"]).values())[:3])
    read = "nhkv,nhk->nhv"
    assert torch.allclose(torch.einsum(read, state, q), heads, atol=1e-6)
    keys = capture(case.lm, case.clean, sites[3:])[sites[3]][:, 2:17:2]  # at the eight values, (n, 8, 1, E)
    products = torch.einsum("nphe,nrhe->nhpr", keys, keys)
    assert torch.allclose(products, torch.eye(8).expand_as(products), atol=0.005)
    clean, asked = likelihood(case.lm, case.clean), case.clean.roles["value"] // 2 - 1
    for further in range(8):
        key = keys[torch.arange(len(keys)), (asked + further) % 8]  # (n, 1, E)
        left = state - torch.einsum("nhk,nhe,nhev->nhkv", key, key, state)
        with patch(case.lm, [Intervention(sites[2], "query", Take(torch.einsum(read, left, q)))], case.clean):
            found = likelihood(case.lm, case.clean)
        if further:
            assert (found - clean).abs().max() < 0.01
        else:  # the asked pair itself
            assert found.max() < 0.05


def test_noise_is_drawn_from_the_seed_relative_to_each_tensor() -> None:
    task = build_task("ar", pairs=4, keys=16, values=16)
    plain, *noisy = (handmade("joint", task, noise=noise) for noise in (0.0, 0.1, 0.1))
    for name, weight in plain.named_parameters():
        one, again = (lm.get_parameter(name) for lm in noisy)
        assert torch.equal(one, again)
        rms = float(weight.detach().square().mean().sqrt())
        assert float((one - weight).detach().square().mean().sqrt()) == pytest.approx(0.1 * rms, rel=0.4)
    other = handmade("joint", task, noise=0.1, seed=1).embed.weight - handmade("joint", task, seed=1).embed.weight
    assert not torch.allclose(other, noisy[0].embed.weight - plain.embed.weight)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("induction", {"offset": 0}, "offset is an option of conv_direct, conv_attention, not of induction"),
        ("conv_direct", {"offset": 4}, "offset of conv_direct must be from 0 to 3 .got 4"),
        ("conv_attention", {"offset": 3}, "offset of conv_attention must be from 0 to 2 .got 3"),
        ("conv_direct", {"offset": 1.5}, "offset of conv_direct must be from 0 to 3 .got 1.5"),
        ("joint", {"share": 0.5}, "share is an option of split_store, not of joint"),
        ("split_store", {"share": 1.0}, "share of split_store must be from 0.05 to 0.95 .got 1.0"),
        ("split_store", {"share": float("nan")}, "share of split_store must be from 0.05 to 0.95 .got nan"),
        ("guesser", {"noise": -0.1}, "noise must be from 0 to 10 .got -0.1"),
        ("guesser", {"noise": float("nan")}, "noise must be from 0 to 10 .got nan"),
        ("joint", {"d_model": 9}, "d_model=9 is too small for 5 codes; use at least 10"),
    ],
)
def test_options_that_do_not_fit_are_explained(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        handmade(name, build_task("ar", pairs=2, keys=8, values=8), **options)
