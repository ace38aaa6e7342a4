"""Judges evidence by a rule: the name of the mechanism, and how sure it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from mecheval.errors import UserError
from mecheval.intervene.finding import Finding, words
from mecheval.intervene.from_rows import judged_from_rows
from mecheval.intervene.gather import Evidence, evidence
from mecheval.intervene.mechanism import Cell, Depths, Rule, Shares, judge
from mecheval.intervene.sentences import Numbers, Verdict, ratios
from mecheval.types import Batch, Meaning

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


def verdict(
    given: nn.Module | Evidence | Sequence[Evidence] | pd.DataFrame,
    clean: Batch | Rule | None = None,
    corrupted: Batch | None = None,
    rule: Rule = Rule(),  # noqa: B008 (frozen)
    *,
    depths: Depths | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Verdict:
    """The mechanism by which a model recalls: `verdict(lm, clean, corrupted)`.

    Also of evidence that was measured before (`verdict(evidence)`), or of a list of evidences, one for each run (seed)
    of one setting. The agreement comes from resampling documents or, with several runs, the runs and then their
    documents. With evidence, the rule may be the second argument. `depths` is as in `evidence`.

    A table of effects is judged from its rows, without intervals, if it has all that the rule needs; see
    `mecheval.intervene.from_rows`.
    """
    if isinstance(clean, Rule):
        rule = clean
    if isinstance(given, nn.Module):
        if not isinstance(clean, Batch) or corrupted is None:
            raise UserError(
                "verdict: give a model with clean and corrupted documents: me.verdict(lm, clean, corrupted)."
            )
        return judged([evidence(given, clean, corrupted, depths=depths, seed=seed)], rule, resamples, seed)
    if isinstance(clean, Batch) or corrupted is not None:
        raise UserError("verdict: documents go with a model; evidence and effects have been measured on theirs.")
    if isinstance(given, Evidence):
        return judged([given], rule, resamples, seed)
    if not isinstance(given, Sequence):
        return judged_from_rows(given, rule)
    if not given or not all(isinstance(each, Evidence) for each in given):
        raise UserError("verdict: give at least one evidence, and nothing else: me.verdict([me.evidence(...), ...]).")
    return judged(list(given), rule, resamples, seed)


def judged(runs: Sequence[Evidence], rule: Rule, resamples: int, seed: int) -> Verdict:
    """The verdict on evidence about runs of one setting."""
    shared = [cell for cell in runs[0].cells if all(cell in run.cells for run in runs)]
    depths, meaning = runs[0].depths, runs[0].meaning
    inner = runs[0].inner if all(run.inner == runs[0].inner for run in runs) else None
    sums = [Sums(run, shared) for run in runs]
    n, random = min(run.n for run in runs), np.random.default_rng(seed)
    point = np.mean([each.means(np.ones((1, each.n))) for each in sums], axis=0)[0]
    drawn = _resampled(sums, resamples, random)

    searched = runs[0].searched if all(run.searched == runs[0].searched for run in runs) else None

    def find(cells: Sequence[Cell], share: Floats, row: Floats) -> Finding:
        return _find(dict(zip(cells, share.tolist(), strict=True)), row, depths, rule, inner, searched, meaning)

    numbers = Numbers(shared, point, runs)
    if meaning.value is None:
        return numbers.verdict(Finding("undetermined", reason="this task asks for no recall that could be named"), None)
    given, least = min(run.given for run in runs), rule.documents // 4
    if given < rule.documents or n < least:
        reason = f"a verdict needs {rule.documents} documents (got {given})"
        if given >= rule.documents:
            roles = f"{numbers.key}, {words(meaning.value)} and {numbers.query}"
            reason = f"a verdict needs {least} documents in which {roles} stand apart (got {n})"
        return numbers.verdict(Finding("undetermined", reason=reason), None)
    not_learnt = numbers.not_learnt(rule)
    found = not_learnt or find(shared, ratios(point, len(shared)), point)
    findings: Counter[Any] = Counter()
    if not not_learnt:  # single roles say where something is stored, which resamples need not agree on
        decide = [i for i, cell in enumerate(shared) if cell.role in (*meaning.kinds, meaning.query, "body")]
        cells, every = [shared[i] for i in decide], ratios(drawn, len(shared))[:, decide]
        findings.update(find(cells, share, row).name for share, row in zip(every, drawn, strict=True))
    agreement = 1.0 if not_learnt else findings[found.name] / len(drawn)
    report = numbers.verdict(found, agreement)
    if len(runs) > 1:
        labels = Counter(str(judged([run], rule, resamples, seed).finding) for run in runs)
        report = _also(report, "Run by run: " + "; ".join(f"{k} x {finding}" for finding, k in labels.most_common()))
    if agreement >= rule.agreement:
        return report
    rivals = "; ".join(f"{100 * k / len(drawn):.0f} % {name[0]}" for name, k in findings.most_common(3))
    disagree = f"resamples of the {'runs and their documents' if len(runs) > 1 else 'documents'} disagree"
    return _also(
        replace(report, finding=Finding("undetermined", reason=disagree)), f"{disagree.capitalize()}: {rivals}"
    )


def finding_in(evidence: Evidence) -> Finding:
    """The rule's finding for these documents alone, however few, without a statement of how certain it is."""
    if evidence.meaning.value is None or not evidence.n or not evidence.cells:
        return Finding("undetermined", reason="there is no recall here in which key, value and query stand apart")
    row = Sums(evidence, evidence.cells).means(np.ones((1, evidence.n)))[0]
    share = dict(zip(evidence.cells, ratios(row, len(evidence.cells)).tolist(), strict=True))
    return _find(share, row, evidence.depths, Rule(), evidence.inner, evidence.searched, evidence.meaning)


def _find(
    share: Shares, row: Floats, depths: Depths, rule: Rule, inner: str | None, searched: int | None, meaning: Meaning
) -> Finding:
    if not row[-2] - row[-1] > 0 or (depths.boundaries and Cell(depths.boundaries[0], meaning.key) not in share):
        return Finding("not_learnt")
    known = {Cell(site, role, "value"): float("nan") for site in depths.boundaries for role in ("question", "body")}
    return judge({**known, **share}, depths, rule, inner, meaning, searched=searched)


class Sums:
    """Effects and losses of every document of a run, arranged so that weighted means are matrix products."""

    def __init__(self, run: Evidence, cells: Sequence[Cell]) -> None:
        effect, lost = run.parts() if run.cells else (np.empty((0, run.n)), np.empty((0, run.n)))
        order = [run.cells.index(cell) for cell in cells]
        self.effect, self.lost = np.nan_to_num(effect[order]), np.nan_to_num(lost[order])
        self.there = (~np.isnan(effect[order])).astype(float)
        self.chance, self.original, self.corrupted = run.chance, run.original, run.corrupted["key"]
        self.n = run.n

    def means(self, weight: Floats) -> Floats:
        """(draws, 2 cells + 3): mean effects, mean losses, and the mean chance, original and corrupted likelihood."""
        count = np.maximum(weight @ self.there.T, 1e-12)
        total = weight.sum(1, keepdims=True)
        ends = weight @ np.stack([self.chance, self.original, self.corrupted]).T / total
        return np.concatenate([weight @ self.effect.T / count, weight @ self.lost.T / count, ends], axis=1)


def _resampled(runs: Sequence[Sums], resamples: int, random: np.random.Generator) -> Floats:
    """Bootstrap resamples of the means over documents, averaged over runs; runs are resampled, too."""
    drawn = [
        run.means(random.multinomial(run.n, np.full(run.n, 1 / run.n), size=resamples).astype(float))
        if run.n else np.full((resamples, 2 * len(run.effect) + 3), np.nan)
        for run in runs
    ]  # fmt: skip
    stacked = np.stack(drawn)  # (runs, resamples, ...)
    chosen = random.integers(len(runs), size=(len(runs), resamples))
    mean: Floats = stacked[chosen, np.arange(resamples)].mean(axis=0)
    return mean


def _also(report: Verdict, sentence: str) -> Verdict:
    return replace(report, evidence=(*report.evidence, f"{sentence}."))
