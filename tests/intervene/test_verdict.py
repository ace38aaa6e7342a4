from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mecheval.errors import UserError
from mecheval.intervene import Depths, Rule, verdict
from mecheval.intervene.effects import Documents, summarise
from mecheval.intervene.grid import Likelihoods
from mecheval.intervene.mechanism import Finding, depths_of, judge
from mecheval.sites import Kind, Site
from mecheval.types import CARRIERS


def shares(depths: Depths, **given: float) -> Any:
    """Shares of all cells: 0 unless given as `b1_value=...` (boundary 1) or `c0_value=...` (convolution of layer 0)."""
    names = {site: f"b{i}" for i, site in enumerate(depths.boundaries, start=1)}
    names |= {site: f"c{i}" for i, layer in enumerate(depths.convolutions) for site in layer}
    return np.array([given.get(f"{names[site]}_{role}", 0.0) for site, role in depths.cells])


def lm_depths(layers: int, convolution: bool = False) -> Depths:
    parts: dict[str, Kind] = {"input": "stream", "output": "stream"}
    if convolution:
        parts["mixer.conv"] = "short_conv"
    return depths_of(Site(i, part, kind) for i in range(layers) for part, kind in parts.items())


@pytest.mark.parametrize(
    ("layers", "given", "finding"),
    [
        (2, {"b1_value": 1.0}, Finding("induction", 1, 0, "value")),
        (2, {"b1_next_key": 0.9}, Finding("induction", 1, 0, "next_key")),
        (2, {"b1_query": 1.0}, Finding("direct_retrieval", 0)),
        (2, {"b1_key": 1.0}, Finding("direct_retrieval", 1)),
        (2, {"b1_query": 1.0, "c0_next_key": 0.9}, Finding("conv_association", 0)),
        (2, {"b1_key": 1.0, "c1_value": 0.9}, Finding("conv_association", 1)),
        (2, {"b1_key": 1.0, "c0_value": 0.9}, Finding("direct_retrieval", 1)),  # another layer's convolution
        (2, {"b1_query": 1.0, "c0_value": 0.3, "c0_next_key": 0.3}, Finding("conv_association", 0)),
        (2, {"b1_query": 1.0, "c0_value": 0.3}, Finding("direct_retrieval", 0)),
        (2, {"b1_value": 1.0, "c0_value": 0.9}, Finding("induction", 1, 0, "value")),
        (2, {"b1_value": 0.5, "b1_query": 0.5}, Finding("mixed")),
        (2, {"b1_value": 0.9, "b1_query": 0.25}, Finding("mixed")),
        (2, {"b1_value": 0.9, "b1_query": 0.15}, Finding("induction", 1, 0, "value")),
        (2, {"b1_value": 0.4}, Finding("undetermined")),
        (2, {}, Finding("undetermined")),
        (1, {}, Finding("direct_retrieval", 0)),
        (1, {"c0_value": 1.0}, Finding("conv_association", 0)),
        (3, {"b1_value": 1.0, "b2_query": 1.0}, Finding("induction", 1, 0, "value")),
        (3, {"b1_value": 1.0, "b2_value": 1.0}, Finding("induction", 2, 0, "value")),
        (3, {"b1_key": 1.0, "b2_value": 1.0}, Finding("induction", 2, 1, "value")),
        (3, {"b1_key": 1.0, "b2_query": 1.0}, Finding("direct_retrieval", 1)),
        (3, {"b1_key": 1.0, "b2_key": 1.0}, Finding("direct_retrieval", 2)),
        (3, {"b1_query": 1.0, "b2_query": 1.0}, Finding("direct_retrieval", 0)),
        (3, {"b1_key": 1.0, "b2_value": 0.6, "b2_query": 0.4}, Finding("mixed")),
        (5, {"b1_key": 1, "b2_key": 1, "b3_value": 1, "b4_query": 1}, Finding("induction", 3, 2, "value")),
    ],
)
def test_the_rule(layers: int, given: dict[str, float], finding: Finding) -> None:
    depths = lm_depths(layers, convolution=True)
    assert judge(shares(depths, **given), 0.9, depths, Rule()) == finding
    assert judge(shares(depths, **given), 0.09, depths, Rule()) == Finding("not_learnt")


def test_thresholds_are_arguments() -> None:
    depths = lm_depths(2)
    weak = shares(depths, b1_value=0.4, b1_query=0.15)
    assert judge(weak, 0.9, depths, Rule(carries=0.3)).label == "induction"
    assert judge(weak, 0.9, depths, Rule(trace=0.1)).label == "mixed"
    assert judge(weak, 0.05, depths, Rule(carries=0.3, learnt=0.01)).label == "induction"


def effects(
    share: dict[str, float],
    n: int = 200,
    original: float = 0.9,
    corrupted: float = 0.1,
    noise: float = 0.05,
    seed: int = 0,
) -> pd.DataFrame:
    """A table for a two-layer model whose boundary restores these shares, with documents that differ."""
    random = torch.Generator().manual_seed(seed)

    def around(p: float) -> torch.Tensor:
        return (p + noise * torch.randn(n, generator=random, dtype=torch.float64)).clamp(0, 1)

    clean, broken = around(original), around(corrupted)
    rows = [[broken + share.get(role, 0.0) * (clean - broken) for role in CARRIERS]]
    restored = torch.stack([torch.stack(row) for row in [rows[0], rows[0]]])
    sites = [Site(i, "input", "stream") for i in range(2)]
    documents = Documents(sites, CARRIERS, clean, Likelihoods(broken, restored))
    return summarise(documents)


def test_a_clear_case_has_narrow_intervals_that_hold_the_truth() -> None:
    found = verdict(effects({"value": 0.8}))
    assert found.label == "induction"
    assert found.layer == 1
    assert found.agreement == 1.0
    row = found.shares.set_index(["site", "role"]).loc[("blocks.1.input", "value")]
    assert row["low"] <= 0.8 <= row["high"]
    assert row["high"] - row["low"] < 0.01
    assert "0.80" in str(found)
    assert str(found).startswith("induction: layer 0 stores the key at the value, layer 1 retrieves")


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """The mean likelihood of new documents lies in a 95 % interval about 95 times in 100."""
    hits = 0
    for seed in range(200):
        table = effects({"value": 1.0}, n=60, original=0.5, corrupted=0.2, noise=0.1, seed=seed)
        sentence = verdict(table, resamples=400, seed=seed).evidence[0]
        low, high = (float(x) for x in sentence.split("[")[1].split("]")[0].split(", "))
        hits += low - 0.005 <= 0.5 <= high + 0.005  # printed with two digits
    assert 180 <= hits <= 199


def test_documents_that_disagree_leave_it_undetermined() -> None:
    table = effects({"value": 0.5}, n=10, noise=0.3)
    documents = table.attrs["documents"]
    spread = torch.linspace(-0.6, 0.6, 10, dtype=torch.float64) * (documents.original - documents.corrupted)
    documents.restored[:, CARRIERS.index("value")] += spread
    found = verdict(summarise(documents))
    assert found.label == "undetermined"
    assert found.agreement is not None
    assert found.agreement < 0.95
    assert "Resamples of the documents disagree: " in found.evidence[-1]


def test_a_table_from_a_file_has_a_verdict_without_intervals() -> None:
    table = effects({"query": 1.0})
    read = pd.DataFrame(table.to_dict("records"))
    found = verdict(read)
    assert (found.label, found.agreement) == ("direct_retrieval", None)
    assert found.shares["low"].isna().all()
    assert "[" not in str(found)


def test_several_runs_are_judged_together() -> None:
    same = [effects({"value": 1.0}, seed=seed) for seed in range(3)]
    found = verdict(same)
    assert found.label == "induction"
    assert found.evidence[-1].startswith("Run by run: 3 x induction")
    split = verdict([effects({"value": 1.0}), effects({"query": 1.0}, seed=1)])
    assert split.label == "undetermined"  # a third seed could tip it either way
    assert "1 x induction" in " ".join(split.evidence)


def test_a_high_floor_is_no_obstacle() -> None:
    """In treecall the corrupted likelihood is far above 0."""
    assert verdict(effects({"value": 1.0}, original=0.8, corrupted=0.55)).label == "induction"
    assert verdict(effects({"value": 1.0}, original=0.6, corrupted=0.58)).label == "not_learnt"


def test_mistakes_are_named() -> None:
    table = effects({"value": 1.0})
    with pytest.raises(UserError, match=r"no row for site blocks.1.input at role next_key"):
        verdict(table[table["role"] != "next_key"])
    with pytest.raises(UserError, match="name the boundaries between layers"):
        verdict(table.assign(block=None))
    with pytest.raises(UserError, match="at least one table"):
        verdict([])
    named = pd.DataFrame(table.replace("blocks.1.input", "layers.1").to_dict("records"))
    assert verdict(named, depths=Depths(("layers.1",), ((), ()))).label == "induction"


def test_one_layer_without_a_convolution_can_only_retrieve_directly() -> None:
    clean, broken = torch.full((16,), 0.9), torch.full((16,), 0.2)
    found = Likelihoods(broken, torch.zeros(1, len(CARRIERS), 16))
    documents = Documents([Site(0, "input", "stream")], CARRIERS, clean, found)
    judged = verdict(summarise(documents))
    assert judged.finding == Finding("direct_retrieval", 0)
    assert judged.agreement == 1.0
    assert len(judged.shares) == 0
