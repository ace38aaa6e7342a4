from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mecheval.errors import UserError
from mecheval.intervene import Depths, Evidence, Rule, Verdict, verdict
from mecheval.intervene.finding import Finding
from mecheval.intervene.mechanism import Cell, depths_of, judge
from mecheval.intervene.packed import packed, unpacked
from mecheval.sites import Kind, Site
from mecheval.types import FRAMED

ROLES = ("value", "next_key", "divider")
INNER = "blocks.{}.mixer.conv"


def lm_depths(layers: int, convolution: bool = False) -> Depths:
    parts: dict[str, Kind] = {"input": "stream", "output": "stream"}
    if convolution:
        parts["mixer.conv"] = "short_conv"
    return depths_of(Site(i, part, kind) for i in range(layers) for part, kind in parts.items())


def shares(depths: Depths, inner: str | None = None, **given: float) -> dict[Cell, float]:
    """Shares of all cells: 0 unless given as `r1_between` (restored), `d1_between` (destroyed; by default as much as is
    restored) or `v1` and `b1` (the value's identity at the question and before it); of the inner site `ri_between`.
    """
    found = {}
    sites = {f"{i}": site for i, site in enumerate(depths.boundaries, start=1)} | ({"i": inner} if inner else {})
    for name, site in sites.items():
        for role in (*FRAMED.kinds, *ROLES):
            found[Cell(site, role)] = given.get(f"r{name}_{role}", 0.0)
            found[Cell(site, role, direction="destroy")] = given.get(f"d{name}_{role}", found[Cell(site, role)])
        value = given.get(f"v{name}", found[Cell(site, "question")])
        body = given.get(f"b{name}", 1 - value)
        found[Cell(site, "question", "value")], found[Cell(site, "body", "value")] = value, body
    return found


@pytest.mark.parametrize(
    ("layers", "given", "finding"),
    [
        (2, {"r1_between": 1.0, "r1_value": 1.0}, Finding("induction", 1, 0, "value")),
        (2, {"r1_between": 0.9, "r1_next_key": 0.9}, Finding("induction", 1, 0, "next_key")),
        (2, {"r1_between": 1.0, "r1_divider": 1.0}, Finding("induction", 1, 0, "divider")),
        (2, {"r1_between": 1.0, "r1_value": 0.68, "r1_divider": 0.32}, Finding("induction", 1, 0, "value")),
        (2, {"r1_between": 1.0, "r1_value": 1.0, "r1_next_key": 0.95}, Finding("induction", 1, 0, "value")),
        (2, {"r1_question": 1.0}, Finding("direct_retrieval", 0)),
        (2, {"r1_key": 1.0}, Finding("direct_retrieval", 1)),
        (2, {"r1_question": 1.0, "ri_between": 0.9}, Finding("conv_association", 0)),
        (2, {"r1_key": 1.0, "ri_between": 0.9}, Finding("conv_association", 1)),
        (2, {"r1_question": 1.0, "ri_between": 0.1}, Finding("direct_retrieval", 0)),
        (2, {"r1_question": 1.0, "ri_between": 0.7}, Finding("undetermined")),
        (2, {"r1_question": 1.0, "v1": 0.0}, Finding("pointer", 1, found_by=0)),
        (2, {"r1_question": 1.0, "v1": 0.9}, Finding("direct_retrieval", 0)),
        (2, {"r1_question": 1.0, "v1": 0.4}, Finding("mixed")),
        (2, {"r1_question": 1.0, "v1": 0.1, "b1": 0.1}, Finding("joint")),
        (2, {"r1_key": 1.0, "v1": 1.0}, Finding("undetermined")),  # the value is there before the key
        (2, {"r1_between": 0.5, "r1_question": 0.5}, Finding("mixed")),
        (2, {"r1_between": 0.9, "r1_question": 0.25}, Finding("mixed")),
        (2, {"r1_between": 1.0, "d1_between": 0.05, "r1_question": 1.0, "d1_question": 0.02, "v1": 1.0},
         Finding("redundant")),
        (2, {"r1_between": 0.02, "d1_between": 0.99, "r1_question": 0.03, "d1_question": 1.0}, Finding("joint")),
        (2, {"r1_between": 0.95, "d1_between": 0.05}, Finding("redundant")),  # by the others together
        (2, {"r1_between": 0.7, "d1_between": 0.05}, Finding("mixed")),
        (2, {"r1_question": 1.0, "ri_between": 0.9, "di_between": 0.1}, Finding("redundant")),
        (2, {"r1_between": 0.9, "r1_question": 0.15, "r1_value": 0.9}, Finding("induction", 1, 0, "value")),
        (2, {"r1_between": 0.4}, Finding("undetermined")),
        (2, {}, Finding("undetermined")),
        (1, {}, Finding("direct_retrieval", 0)),
        (1, {"ri_between": 1.0}, Finding("conv_association", 0)),
        (3, {"r1_between": 1.0, "r1_value": 1.0, "r2_question": 1.0}, Finding("induction", 1, 0, "value")),
        (3, {"r1_between": 1, "r1_value": 1, "r2_between": 1, "r2_value": 1}, Finding("induction", 2, 0, "value")),
        (3, {"r1_key": 1.0, "r2_between": 1.0, "r2_value": 1.0}, Finding("induction", 2, 1, "value")),
        (3, {"r1_key": 1.0, "r2_question": 1.0}, Finding("direct_retrieval", 1)),
        (3, {"r1_key": 1.0, "r2_key": 1.0}, Finding("direct_retrieval", 2)),
        (3, {"r1_question": 1.0, "r2_question": 1.0}, Finding("direct_retrieval", 0)),
        (3, {"r1_question": 1.0, "v1": 0.0, "r2_question": 1.0, "v2": 0.0}, Finding("pointer", 2, found_by=0)),
        (3, {"r1_question": 1.0, "r2_between": 1.0}, Finding("undetermined")),  # backwards
        (3, {"r1_key": 1.0, "r2_between": 0.6, "r2_question": 0.4}, Finding("mixed")),
        (5, {"r1_key": 1, "r2_key": 1, "r3_between": 1, "r3_value": 1, "r4_question": 1},
         Finding("induction", 3, 2, "value")),
    ],
)  # fmt: skip
def test_the_rule(layers: int, given: dict[str, float], finding: Finding) -> None:
    depths = lm_depths(layers, convolution=True)
    inner = "blocks.0.mixer.conv" if any(name.startswith("ri") for name in given) else None
    assert judge(shares(depths, inner, **given), depths, Rule(), inner) == finding


def test_how_several_stores_share_the_work_is_said() -> None:
    depths = lm_depths(2)

    def said(**given: float) -> str:
        return str(judge(shares(depths, None, r1_between=1.0, **given), depths, Rule()))

    assert said(r1_value=0.68, r1_divider=0.32) == (
        "induction: layer 0 stores the key partly at the value and partly at the divider, layer 1 retrieves"
    )
    assert "at the value and again at the position after the value (redundant: either is enough)" in said(
        r1_value=1.0, r1_next_key=0.9
    )
    assert "at the divider and at the value (jointly necessary)" in said(
        r1_value=0.1, d1_value=0.9, r1_divider=0.0, d1_divider=1.0
    )


def test_thresholds_are_arguments() -> None:
    depths = lm_depths(2)
    weak = shares(depths, r1_between=0.4, r1_value=0.4, r1_question=0.15)
    assert judge(weak, depths, Rule(carries=0.3)).label == "induction"
    assert judge(weak, depths, Rule(carries=0.3, trace=0.1)).label == "mixed"


def evidence(
    restored: dict[str, float],
    n: int = 200,
    original: float = 0.9,
    corrupted: float = 0.1,
    chance: float = 0.25,
    noise: float = 0.05,
    seed: int = 0,
    hits: Any = None,
) -> Evidence:
    """Evidence about a two-layer model whose boundary restores these shares, with documents that differ."""
    random = np.random.default_rng(seed)

    def around(p: float) -> Any:
        return (p + noise * random.standard_normal(n)).clip(0, 1)

    clean, broken = around(original), around(corrupted)
    site = Site(1, "input", "stream")
    cells, edited = [], []
    for role in (*FRAMED.kinds, "value"):
        share = restored.get(role, 0.0)
        for direction in ("restore", "destroy"):
            cells.append(Cell(str(site), role, "key", direction))
            step = share * (clean - broken)
            edited.append(broken + step if direction == "restore" else clean - step)
    for role, share in (("question", restored.get("question", 0.0)), ("body", restored.get("between", 0.0))):
        cells.append(Cell(str(site), role, "value"))
        edited.append(broken + share * (clean - broken))
    guess = np.full(n, chance)
    return Evidence(
        tuple(cells), {str(site): site}, clean, {"key": broken, "value": broken}, np.stack(edited), guess,
        np.arange(n), n, lm_depths(2), None, np.stack([clean, clean if hits is None else hits, guess, broken]),
    )  # fmt: skip


INDUCTION = {"between": 0.8, "value": 0.8}


def test_a_clear_case_has_narrow_intervals_that_hold_the_truth() -> None:
    found = verdict(evidence(INDUCTION))
    assert (found.label, found.layer, found.agreement, found.n) == ("induction", 1, 1.0, 200)
    row = found.shares.set_index(["site", "role", "direction"]).loc[("blocks.1.input", "value", "restore")]
    assert row["low"] < 0.8 < row["high"]
    assert row["high"] - row["low"] < 0.02
    assert "value 0.80" in str(found)
    assert str(found).startswith("induction: layer 0 stores the key at the value, layer 1 retrieves")


def test_learnt_means_better_than_guessing() -> None:
    """Also where the answer depends on the key: naming any value if the key is present is no recall."""
    guesser = verdict(evidence(INDUCTION, original=0.25, corrupted=0.0, noise=0.02))
    assert guesser.label == "not_learnt"
    assert "a likelihood of 0.25 is not above the 0.25 of guessing without recall" in str(guesser)
    assert verdict(evidence(INDUCTION, original=0.4, corrupted=0.02)).label == "induction"
    blind = verdict(evidence(INDUCTION, original=0.6, corrupted=0.6, noise=0.1))
    assert blind.label == "not_learnt"
    few = evidence(INDUCTION, n=16, original=0.9, corrupted=0.8, noise=0.02)
    few.corrupted["key"][:] = np.where(np.arange(16) == 0, 0.0, few.original)  # one document of sixteen
    few.apart[3] = few.corrupted["key"]
    unsure = verdict(few)
    assert (unsure.label, unsure.finding.reason) == (
        "undetermined", "the key makes a difference of 0.06, but in too few documents to be sure",
    )  # fmt: skip
    weak = verdict(evidence(INDUCTION, original=0.34, corrupted=0.31, noise=0.02))
    assert (weak.label, weak.finding.reason) == (
        "undetermined", "recall is too weak to be explained: the key makes a difference of 0.03",
    )  # fmt: skip


def test_that_the_key_matters_is_asked_of_all_documents_in_which_roles_stand_apart() -> None:
    """Of 16 documents, perhaps four have the query out of a convolution's reach; the others know if the key matters."""
    every = evidence(INDUCTION, n=16, original=0.99, corrupted=0.03, noise=0)
    few = replace(
        every, original=every.original[:4], corrupted={name: x[:4] for name, x in every.corrupted.items()},
        edited=every.edited[:, :4], chance=every.chance[:4], index=every.index[:4],
    )  # fmt: skip
    assert verdict(few).label == "induction"
    assert verdict(replace(few, apart=few.apart[:, :4])).label != "induction"


def test_a_model_that_is_right_but_unsure_has_learnt() -> None:
    """Its likelihood can be below that of an even guess among few values."""
    soft = evidence(INDUCTION, original=0.4, corrupted=0.1, chance=0.5, hits=np.ones(200))
    assert verdict(soft).label == "induction"
    wrong = evidence(INDUCTION, original=0.4, corrupted=0.1, chance=0.5, hits=np.arange(200) % 2.0)
    assert verdict(wrong).label == "not_learnt"


def test_few_documents_have_no_verdict() -> None:
    few = verdict(evidence(INDUCTION, n=15))
    assert (few.label, few.agreement) == ("undetermined", None)
    assert "a verdict needs 16 documents (got 15)" in str(few)
    assert verdict(evidence(INDUCTION, n=16)).label == "induction"


def test_documents_that_disagree_leave_it_undetermined() -> None:
    table = evidence({"between": 0.5, "value": 0.5}, n=20, noise=0.3)
    found = verdict(table)
    assert found.label == "undetermined"
    assert found.agreement is not None
    assert found.agreement < 0.95
    assert "Resamples of the documents disagree: " in found.evidence[-1]


def test_what_is_no_evidence_is_refused() -> None:
    """A verdict from whatever rows a table happens to have would depend on where one looked."""
    with pytest.raises(UserError, match=r"lacks role key at blocks.0.input .*me.verdict\(lm, clean, corrupted\)"):
        verdict(evidence(INDUCTION).table())
    with pytest.raises(UserError, match="lacks the columns site, role"):
        verdict(pd.DataFrame({"share": [1.0]}))
    with pytest.raises(UserError, match="at least one evidence"):
        verdict([])


def test_a_changed_rule_judges_the_same_evidence_again() -> None:
    """A quarter of the key at the question is too much for the rule, but not for one that overlooks less than 0.3."""
    found = evidence({"between": 0.75, "value": 0.75, "question": 0.25}, noise=0.01)
    assert found.verdict().label == "mixed"
    assert found.verdict(Rule(trace=0.3)).label == "induction"
    assert verdict(found, Rule(trace=0.3)).finding == found.verdict(Rule(trace=0.3)).finding
    assert found.verdict(Rule(trace=0.3, carries=0.8)).label == "undetermined"
    assert found.verdict(Rule(documents=201)).label == "undetermined"


def test_evidence_packs_into_the_same_evidence() -> None:
    own = evidence({"between": 0.75, "value": 0.75}, n=320)
    first, others = (np.log(x.clip(1e-9)).astype(np.float32) for x in (own.original, own.edited))  # as models give them
    own = replace(own, original=np.exp(first.astype(float)), edited=np.exp(others.astype(float)), searched=1)
    own.edited[0, :3] = np.nan
    content = packed(own)
    again = unpacked(content)
    assert len(content) < 150_000
    assert packed(again) == content
    assert str(again.verdict()) == str(own.verdict())
    np.testing.assert_array_equal(again.edited, own.edited)
    assert (again.cells, again.sites, again.depths, again.searched) == (own.cells, own.sites, own.depths, 1)
    with pytest.raises(ValueError, match="zip"):
        unpacked(b"no zip file")
    with pytest.raises(ValueError, match="do not fit"):
        unpacked(packed(replace(own, original=own.original[:5])))


def test_several_runs_are_judged_together() -> None:
    same = [evidence(INDUCTION, seed=seed) for seed in range(3)]
    found = verdict(same)
    assert found.label == "induction"
    assert found.evidence[-1].startswith("Run by run: 3 x induction")
    split = verdict([evidence(INDUCTION), evidence({"question": 1.0}, seed=1)])
    assert split.label in ("undetermined", "mixed")  # a third seed could tip it either way
    assert "1 x induction" in " ".join(split.evidence)


def test_a_high_floor_is_no_obstacle() -> None:
    """In treecall the corrupted likelihood is far above 0, and so is chance."""
    assert verdict(evidence(INDUCTION, original=0.8, corrupted=0.55, chance=0.5)).label == "induction"
    assert verdict(evidence(INDUCTION, original=0.5, corrupted=0.45, chance=0.5)).label == "not_learnt"


def test_a_verdict_prints_its_evidence() -> None:
    found = verdict(evidence(INDUCTION))
    assert isinstance(found, Verdict)
    assert "guessing without recall has 0.25; measured on 200 documents." in str(found)
