"""A finding with its evidence: restored shares, intervals, and how sure one can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mecheval.errors import UserError
from mecheval.intervene.effects import KEY, Documents
from mecheval.intervene.mechanism import STORES, Cell, Depths, Finding, Label, Rule, depths_of, judge, words
from mecheval.sites import sites_in
from mecheval.types import CARRIERS

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
INTERVAL = (0.025, 0.975)
WORTH_TELLING = 0.05


@dataclass(frozen=True, eq=False)
class Verdict:
    """The mechanism, in words and as a label, and what speaks for it."""

    finding: Finding
    agreement: float | None  # share of resamples with the same finding; None without documents to resample
    shares: pd.DataFrame  # site, role, share, low, high: 95 % intervals
    evidence: tuple[str, ...]  # sentence by sentence

    @property
    def label(self) -> Label:
        """induction, direct_retrieval, conv_association, mixed, not_learnt or undetermined."""
        return self.finding.label

    @property
    def layer(self) -> int | None:
        """The layer that retrieves, where the label has one."""
        return self.finding.layer

    def __str__(self) -> str:
        return "\n".join((str(self.finding), *(f"- {sentence}" for sentence in self.evidence)))


def verdict(
    effects: pd.DataFrame | Sequence[pd.DataFrame],
    rule: Rule = Rule(),  # noqa: B008 (frozen)
    *,
    depths: Depths | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Verdict:
    """The mechanism behind the effects of one model, or of several runs (seeds) of one setting together.

    Intervals and agreement come from resampling the documents; with several runs, the runs and then their documents.
    A table that was read from a file has no documents, so its verdict has no intervals. For a module that is not an
    `LM`, `depths` names the sites between its layers and the short convolutions inside them.
    """
    tables = list(effects) if isinstance(effects, Sequence) else [effects]
    if not tables:
        raise UserError("verdict: give at least one table of effects.")
    depths = depths or depths_of(sites_in(tables[0]))
    point = np.stack([_measured(table, depths.cells) for table in tables])  # (runs, cells + 2)
    drawn = _resampled(tables, depths.cells, resamples, seed)  # (resamples, cells + 2)

    def find(row: Floats) -> Finding:
        return judge(_shares(row), row[-2] - row[-1], depths, rule)

    mean = point.mean(axis=0)
    found = find(mean)
    report = _report(found, mean, drawn, depths)
    if len(tables) > 1:
        each = Counter(find(row) for row in point)
        report = _also(report, "Run by run: " + "; ".join(f"{n} x {finding}" for finding, n in each.most_common()))
    if drawn is None:
        return report
    findings = Counter(find(row) for row in drawn)
    agreement = findings[found] / len(drawn)
    report = replace(report, agreement=agreement)
    if agreement >= rule.agreement:
        return report
    rivals = "; ".join(f"{100 * n / len(drawn):.0f} % {finding}" for finding, n in findings.most_common(3))
    return _also(replace(report, finding=Finding("undetermined")), f"Resamples of the documents disagree: {rivals}")


def _measured(table: pd.DataFrame, cells: Sequence[Cell]) -> Floats:
    """Attribution of every cell, then original and corrupted, (cells + 2,)."""
    rows = table.set_index(["site", "role"])
    for cell in cells:
        if cell not in rows.index:
            raise UserError(f"verdict: the effects have no row for site {cell[0]} at role {cell[1]}.")
    attribution = [float(rows.at[cell, "attribution"]) for cell in cells]
    return np.array([*attribution, float(table["original"].iloc[0]), float(table["corrupted"].iloc[0])])


def _shares(row: Floats) -> Floats:
    """Attributions as shares of what was lost; nothing where nothing was."""
    gap = row[-2] - row[-1]
    return row[:-2] / gap if gap > 0 else np.full(len(row) - 2, np.nan)


def _resampled(tables: Sequence[pd.DataFrame], cells: Sequence[Cell], resamples: int, seed: int) -> Floats | None:
    """What `_measured`, averaged over runs, could have been for other documents and runs of the same kind."""
    random = np.random.default_rng(seed)
    runs = []
    for table in tables:
        documents = table.attrs.get(KEY)
        if not isinstance(documents, Documents):
            return None
        values = _per_document(documents, cells)
        n = len(values)
        runs.append(random.multinomial(n, np.full(n, 1 / n), size=resamples) / n @ values)
    stacked = np.stack(runs)  # (runs, resamples, cells + 2)
    chosen = random.integers(len(runs), size=(len(runs), resamples))
    drawn: Floats = stacked[chosen, np.arange(resamples)].mean(axis=0)
    return drawn


def _per_document(documents: Documents, cells: Sequence[Cell]) -> Floats:
    """(n, cells + 2), in the order of `_measured`."""
    corrupted = documents.corrupted.numpy()
    columns = [documents.at(site, role).numpy() - corrupted for site, role in cells]
    values = np.stack([*columns, documents.original.numpy(), corrupted], axis=1)
    if np.isnan(values).any():
        raise UserError("verdict: every document must have the roles key, value, next_key and query.")
    return values


def _report(found: Finding, mean: Floats, drawn: Floats | None, depths: Depths) -> Verdict:
    """Put numbers and words to a finding."""
    import pandas as pd

    value = np.append(_shares(mean), mean[-2:])
    low, high = np.full((2, len(mean)), np.nan)
    if drawn is not None:
        low[-2:], high[-2:] = np.quantile(drawn[:, -2:], INTERVAL, axis=0)
        if found.label != "not_learnt" and depths.cells:  # else there is nothing to have a share of
            low[:-2], high[:-2] = np.nanquantile(np.stack([_shares(row) for row in drawn]), INTERVAL, axis=0)
    said = [_number(*each) for each in zip(value, low, high, strict=True)]
    said_of = dict(zip(depths.cells, said, strict=False))
    evidence = [f"The answer has likelihood {said[-2]}, and {said[-1]} with the key corrupted."]
    if found.label != "not_learnt":
        for layer, site in enumerate(depths.boundaries, start=1):
            evidence.append(_sentence(f"At the input of layer {layer}", site, CARRIERS, said_of))
        if found.label != "induction":
            for layer, sites in enumerate(depths.convolutions):
                if found.layer in (None, layer):
                    evidence += _inside(layer, sites, said_of, dict(zip(depths.cells, value, strict=False)))
    shares = pd.DataFrame([
        {"site": site, "role": role, "share": value[i], "low": low[i], "high": high[i]}
        for i, (site, role) in enumerate(depths.cells)
    ], columns=["site", "role", "share", "low", "high"])  # fmt: skip
    return Verdict(found, None, shares, tuple(evidence))


def _inside(layer: int, sites: Sequence[str], said: dict[Cell, str], share: dict[Cell, float]) -> list[str]:
    """About the short convolutions of a layer; those that restore nothing share a sentence."""
    at_most = {site: max(abs(share[site, role]) for role in STORES) for site in sites}
    telling = [site for site in sites if at_most[site] >= WORTH_TELLING]
    lines = [_sentence(f"Inside layer {layer}, after {site}", site, STORES, said) for site in telling]
    silent = [site for site in sites if site not in telling]
    if silent:
        most = max(at_most[site] for site in silent)
        lines.append(f"After {', '.join(silent)} it restores at most {most:.2f} at the value or after it.")
    return lines


def _sentence(opening: str, site: str, roles: Sequence[str], said: dict[Cell, str]) -> str:
    parts = [f"{said[site, role]} at the {words(role)}" for role in roles]
    return f"{opening}, the clean activation restores, of what was lost, {', '.join(parts)}."


def _number(value: float, low: float, high: float) -> str:
    value, low, high = (round(float(x), 2) + 0.0 for x in (value, low, high))  # + 0.0: no -0.00
    return f"{value:.2f}" if np.isnan(low) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _also(report: Verdict, sentence: str) -> Verdict:
    return replace(report, evidence=(*report.evidence, f"{sentence}."))
