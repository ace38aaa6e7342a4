from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mecheval.errors import UnknownName, UserError
from mecheval.model import LM
from mecheval.model.handmade import NAMES, handmade
from mecheval.tasks import Task, build_task
from mecheval.types import Batch

SIZES = pytest.mark.parametrize(
    ("pairs", "keys", "seed"),
    [(2, 16, 0), (2, 64, 1), (4, 16, 2), (4, 64, 0), (8, 16, 1), (8, 64, 2), (16, 16, 0), (16, 64, 1)],
)
"""Pairs, keys and the seed of the codes, which differs between neighbours in size; that behaviour is the same for all
seeds is a test of its own."""
ROLES = ("key", "value", "next_key", "query")


def recall(pairs: int, keys: int, values: int | None = None, **options: Any) -> Task:
    return build_task("ar", pairs=pairs, keys=keys, values=values or keys, **options)


def likelihoods(lm: LM, batch: Batch) -> Tensor:
    """Of the answer at the query, (n,)."""
    with torch.no_grad():
        p = lm(batch.tokens, at=batch.predict_at[:, 0]).softmax(-1)
    return torch.take_along_dim(p, batch.answers[:, None], dim=1)[:, 0]


def heard(lm: LM, batch: Batch, site: str, listener: Callable[[Tensor], Tensor]) -> Tensor:
    """Likelihoods while someone listens at a site."""
    tap = lm.taps()[site]
    tap.listener = listener
    try:
        return likelihoods(lm, batch)
    finally:
        tap.listener = None


def activation(lm: LM, batch: Batch, site: str) -> Tensor:
    seen: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    heard(lm, batch, site, keep)
    return seen[0]


def shares(lm: LM, task: Task, *sites: str, n: int = 4) -> dict[tuple[str, str], float]:
    """(Site, role) -> restored share, by the definition: patch, run again, compare means."""
    original = task.sample(n, "test", seed=1)
    corrupted = task.corrupt(original)
    high, low = likelihoods(lm, original).mean(), likelihoods(lm, corrupted).mean()
    found = {}
    for site in sites:
        source = activation(lm, original, site)
        for role in ROLES:
            rows, at = torch.arange(n), original.roles[role]

            def patch(x: Tensor, source: Tensor = source, at: Tensor = at, rows: Tensor = rows) -> Tensor:
                return x.index_put((rows, at), source[rows, at])

            restored = heard(lm, corrupted, site, patch).mean()
            found[site, role] = float((restored - low) / (high - low))
    return found


def at_one_role(site: str, role: str) -> dict[tuple[str, str], float]:
    return {(site, other): float(other == role) for other in ROLES}


def is_near(found: dict[tuple[str, str], float], *expected: dict[tuple[str, str], float]) -> None:
    assert found == pytest.approx({k: v for part in expected for k, v in part.items()}, abs=0.02)


def recalls(lm: LM, task: Task, n: int = 8) -> None:
    """As sure of the answer as built; without the key, all tokens are alike."""
    batch = task.sample(n, "test", seed=1)
    assert likelihoods(lm, batch).tolist() == pytest.approx([0.9933] * n, abs=0.001)
    assert likelihoods(lm, task.corrupt(batch)).tolist() == pytest.approx([1 / task.vocab_size] * n, rel=0.1)


@SIZES
def test_induction_stores_the_key_at_the_value(pairs: int, keys: int, seed: int) -> None:
    task = recall(pairs, keys)
    lm = handmade("induction", task, seed=seed)
    recalls(lm, task)
    is_near(shares(lm, task, "blocks.1.input"), at_one_role("blocks.1.input", "value"))


@pytest.mark.parametrize(("layer", "restored_at"), [(0, "query"), (1, "key")])
@SIZES
def test_direct_retrieval_joins_key_and_value_in_one_layer(
    pairs: int, keys: int, layer: int, restored_at: str, seed: int
) -> None:
    task, conv = recall(pairs, keys), f"blocks.{layer}.mixer.k_conv"
    lm = handmade("conv_direct", task, layer=layer, n_layers=2, seed=seed)
    recalls(lm, task)
    is_near(
        shares(lm, task, "blocks.1.input", conv), at_one_role("blocks.1.input", restored_at), at_one_role(conv, "value")
    )


@SIZES
def test_the_guesser_spreads_evenly_over_the_values_of_the_document(pairs: int, keys: int, seed: int) -> None:
    task = recall(pairs, keys)
    lm = handmade("guesser", task, seed=seed)
    batch = task.sample(8, "test", seed=1)
    for documents in (batch, task.corrupt(batch)):
        with torch.no_grad():
            p = lm(documents.tokens, at=documents.predict_at[:, 0]).softmax(-1)
        of_values = p.gather(1, documents.tokens[:, 2 : 2 * pairs + 1 : 2])
        assert torch.allclose(of_values, torch.tensor(0.9933 / pairs), rtol=1e-3)


@SIZES
def test_either_half_of_the_mixture_restores_about_half(pairs: int, keys: int, seed: int) -> None:
    task = recall(pairs, keys)
    lm = handmade("mixture", task, seed=seed)
    assert likelihoods(lm, task.sample(8, "test", seed=1)).min() > 0.95
    found = shares(lm, task, "blocks.1.input", "blocks.0.mixer.delta_net.k_conv")
    for halved in (
        ("blocks.1.input", "value"),
        ("blocks.1.input", "query"),
        ("blocks.0.mixer.delta_net.k_conv", "value"),
    ):
        assert 0.45 < found.pop(halved) < 0.55
    assert max(map(abs, found.values())) < 0.01


def test_the_heads_of_induction_look_where_they_should() -> None:
    task = recall(8, 16)
    lm, batch = handmade("induction", task), task.sample(8, "test")
    previous = activation(lm, batch, "blocks.0.mixer.pattern")[:, 0]
    places = torch.arange(1, previous.shape[1])
    assert previous[:, places, places - 1].min() > 0.9999
    match = activation(lm, batch, "blocks.1.mixer.pattern")[:, 0]
    assert match[torch.arange(8), batch.roles["query"], batch.roles["value"]].min() > 0.9999


@pytest.mark.parametrize(
    ("name", "layer", "site", "role"),
    [
        ("induction", (0, 1), "blocks.1.input", "value"),
        ("induction", (0, 2), "blocks.2.input", "value"),
        ("induction", (1, 2), "blocks.1.input", "key"),
        ("conv_direct", 0, "blocks.1.input", "query"),
        ("conv_direct", 1, "blocks.1.input", "key"),
        ("conv_direct", 1, "blocks.2.input", "query"),
        ("conv_direct", [2], "blocks.2.input", "key"),
    ],
)
def test_layers_that_are_not_named_are_idle(name: str, layer: int | tuple[int, ...], site: str, role: str) -> None:
    task = recall(4, 16)
    lm = handmade(name, task, layer=layer, n_layers=3)
    recalls(lm, task)
    is_near(shares(lm, task, site), at_one_role(site, role))
    batch = task.sample(4)
    working = {layer} if isinstance(layer, int) else set(layer)
    for i in range(3):
        assert bool(activation(lm, batch, f"blocks.{i}.mixer.output").any()) == (i in working)
        assert not activation(lm, batch, f"blocks.{i}.mlp.output").any()


@pytest.mark.parametrize("name", ["induction", "conv_direct"])
def test_every_query_of_a_document_is_answered(name: str) -> None:
    task = recall(6, 24, values=40, queries=3)
    batch = task.sample(8)
    with torch.no_grad():
        p = handmade(name, task)(batch.tokens, at=batch.predict_at).softmax(-1)
    assert p.gather(2, batch.targets[:, :, None]).min() > 0.98


@pytest.mark.parametrize(
    ("name", "site", "role"),
    [("induction", "blocks.1.input", "value"), ("conv_direct", "blocks.0.mixer.k_conv", "value")],
)
def test_more_symbols_than_dimensions_get_nearly_orthogonal_codes(name: str, site: str, role: str) -> None:
    task = recall(8, 1024)
    lm = handmade(name, task, d_model=4 * 100)
    batch = task.sample(16, "test", seed=1)
    assert likelihoods(lm, batch).mean() > 0.95
    assert likelihoods(lm, task.corrupt(batch)).mean() < 0.01
    is_near(shares(lm, task, site), at_one_role(site, role))


@pytest.mark.parametrize("name", NAMES)
def test_seeds_give_other_weights_and_the_same_behaviour(name: str) -> None:
    task = recall(4, 16)
    batch = task.sample(8)
    a, b, again = (handmade(name, task, seed=seed) for seed in (0, 1, 0))
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), again.parameters(), strict=True))
    assert not torch.allclose(a.embed.weight, b.embed.weight, atol=0.1)
    assert torch.allclose(likelihoods(a, batch), likelihoods(b, batch), atol=0.01)


def test_building_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    handmade("mixture", recall(2, 8))
    assert torch.equal(torch.get_rng_state(), before)


def test_mistakes_are_explained() -> None:
    task = recall(4, 16)
    with pytest.raises(UnknownName, match=r"'inducton'. Did you mean 'induction'\? Choices: conv_attention, c"):
        handmade("inducton", task)
    for wrong in (recall(4, 16, query="value"), build_task("atr")):
        with pytest.raises(UserError, match="must be associative recall"):
            handmade("induction", wrong)
    for layer in (0, (1, 0), (0, 0), (0, 2), (-1, 0)):
        with pytest.raises(UserError, match="induction works in 2 of n_layers=2 layers; layer must name 2, ascending"):
            handmade("induction", task, layer=layer)
    with pytest.raises(UserError, match="d_model=7 is too small for 4 codes; use at least 8"):
        handmade("guesser", task, d_model=7)
