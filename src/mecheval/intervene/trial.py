"""Runs the interventions on one model that the evidence for a verdict needs, document by document."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecheval.intervene.edits import Edit, Take
from mecheval.intervene.grid import run_edits
from mecheval.intervene.inside import Operation, operations, replaced, values_of
from mecheval.intervene.mechanism import ASKED, KEY_FIRST, Cell, Depths, Rule, stores_alone, value_first
from mecheval.intervene.names import distinct, meet, value_comes_first
from mecheval.intervene.others import other_queries, other_values
from mecheval.intervene.places import named_between, positions
from mecheval.intervene.reading import Observed, answer_likelihood, read
from mecheval.intervene.readings import Readings
from mecheval.mixers import Mixer
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.types import NOWHERE, RANDOM, Batch, has_role

Floats = NDArray[np.float64]
FEW, MOST_OPERATIONS = 64, 400
"""Number of documents with which the operations inside a custom mixer are searched, and most operations tried."""
WORTH_NAMING = 0.1
"""Smallest share of what is lost that must be lost in the documents of a name, for the name to count."""
WORTH_SAYING = 0.05
"""Smallest share of one position that is mentioned; where all between key and query restore less, none is asked."""
TOGETHER = "mixer.convs"
"""The part of a block that stands for all short convolutions of its layer, replaced at once."""
AHEAD = 1e-3
"""Smallest change of an activation, relative to the largest at its site, that is more than rounding."""


def ratio(effect: Floats | np.float64, lost: Floats | np.float64) -> Floats:
    """effect / lost, or NaN if nothing was lost."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(lost > 0, np.divide(effect, lost), np.nan)


def change(cell: Cell, edited: Floats, original: Floats, corrupted: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """What an intervention restores or destroys, and what the corruption loses, (n,) each; NaN where `edited` is."""
    spoilt = corrupted[cell.corruption]
    effect = original - edited if cell.direction == "destroy" else edited - spoilt
    return effect, np.where(np.isnan(effect), np.nan, original - spoilt)


class Ask(NamedTuple):
    """Interventions at all combinations of some sites and roles."""

    sites: tuple[str, ...]
    roles: tuple[str, ...]
    corruption: str = "key"
    direction: str = "restore"


class Trial:
    """One model and its documents, with the interventions made so far.

    `original` and `lost` (n,) are the likelihoods of the answer in the clean documents and in corrupted ones, `right`
    (n,) says in which clean documents the answer is the likeliest token.
    """

    def __init__(
        self, model: nn.Module, clean: Batch, corrupted: Batch, depths: Depths, budget: int, at_once: int, seed: int
    ) -> None:
        self.model, self.clean, self.depths, self.budget, self.at_once = model, clean, depths, budget, at_once
        self.slices = [slice(first, first + at_once) for first in range(0, len(clean), at_once)]
        self.kinds, self.query = clean.meaning.kinds, clean.meaning.query
        self.where = positions(clean, [*self.kinds, "body"])
        self.named = distinct(named_between(clean))
        others = positions(clean, ["others", RANDOM], seed)
        self.where |= self.named | {role: at for role, at in others.items() if (at != NOWHERE).any()}
        self.roles = [role for role in self.where if role not in (*self.kinds, "body")]
        self.batches = {"": clean, "key": corrupted}
        if (other := other_values(clean)) is not None:
            self.batches["value"] = other
        self.meetings = [KEY_FIRST]
        if other is not None and value_comes_first(clean):
            self.meetings.insert(0, value_first(clean.meaning))
        self.ahead: int | None = None  # the first layer whose input depends on later tokens
        self.readings = Readings(model, self.batches, self.slices, at_once, budget)
        answered = self.readings.answered(list(self.batches))
        self.original, self.right = answered.pop("")
        self.lost = {name: likelihoods for name, (likelihoods, _) in answered.items()}
        self.found: dict[Cell, Floats] = {}
        self.sites: dict[str, Site] = {}
        self.together: dict[str, tuple[Site, ...]] = {}  # the sites that are replaced at once under one name

    def boundaries(self, rule: Rule) -> None:
        """Replace every kind of positions, and named positions that may matter, at the input of every later layer."""
        sites = self.depths.boundaries
        asks = [Ask(sites, self.kinds), Ask(sites, self.kinds, "key", "destroy"), Ask(self.depths.ends, self.kinds)]
        if "value" in self.batches:
            asks.append(Ask(sites, ("question", "body"), "value"))
        asks += [Ask(sites, (role,), corruption) for role, corruption in self.meetings[:-1]]
        self._run(*asks)
        self._names(sites, rule)
        if self.where["question"].shape[1] == 1:  # question and query coincide, so one number serves both
            for site, direction in itertools.product(sites, ("restore", "destroy")):
                found = self.found[Cell(str(site), "question", "key", direction)]
                self.found[Cell(str(site), self.query, "key", direction)] = found

    def asked(self, layer: int) -> None:
        """Replace what the layers from `layer` on add to the question by what they add for another query.

        If that changes nothing, they bring the same to the question whatever the query.
        """
        sites, other = self.depths.boundaries[layer:], other_queries(self.clean)
        first = Site(0, "input", "stream") if isinstance(self.model, LM) else next(iter(self.depths.ends), None)
        begins = self.depths.boundaries[layer - 1] if layer else first
        if not sites or other is None or begins is None:
            return
        self.batches["query"] = other
        found, lost = [], []
        for number, rows in enumerate(self.slices):
            where = {"question": self.where["question"][rows]}
            own, theirs = self.readings.of(["", "query"], number, [begins, *sites], where).values()
            before = own.values[begins]["question"] - theirs.values[begins]["question"]
            values = {site: {"question": theirs.values[site]["question"] + before} for site in sites}
            cells = [(site, "question") for site in sites]
            found.append(self._answered(self.clean[rows], own, values, where, cells))
            lost.append(theirs.likelihood)
        same = (self.clean.tokens == other.tokens).all(1).cpu().numpy()
        self.lost["query"] = torch.cat(lost).numpy()
        for site, likelihoods in zip(sites, torch.cat(found, dim=1).numpy(), strict=True):
            self.found[Cell(str(site), *ASKED)] = np.where(same, np.nan, likelihoods)

    def inside(self, sites: Sequence[str], rule: Rule) -> str | None:
        """The first site inside a layer at which key and value have met, or the one at which most has.

        Sites are tried in order until one is enough. If no site alone is nearly enough, the layer's short convolutions
        are tried together.
        """
        met: dict[str, float] = {}
        first = None
        for site in sites:
            self._run(*(Ask((site,), (role,), corruption) for role, corruption in self.meetings))
            met[site] = self._met(site)
            if met[site] >= rule.enough:
                first = site
                break
        there = {site: part for site, part in met.items() if part >= rule.trace}
        if not there:
            return None
        if first is None or there[first] < rule.alone:
            first = self._convolutions(sites, rule) or first or max(there, key=there.__getitem__)
        self._run(Ask((first,), self.kinds), Ask((first,), self.kinds, "key", "destroy"))
        self._names([first], rule)
        return first

    def _met(self, site: str) -> float:
        """The largest share that is restored by what meets at a site inside a layer."""
        return float(np.fmax.reduce([self._share(Cell(str(site), *meeting)) for meeting in self.meetings]))

    def _convolutions(self, sites: Sequence[str], rule: Rule) -> Site | None:
        """A layer's short convolutions together, if they are enough; those of keys and values may share the work."""
        several = tuple(site for site in sites if isinstance(site, Site) and site.kind == "short_conv")
        if len(several) < 2:
            return None
        whole = Site(several[0].block, TOGETHER, "short_conv")
        self.together[whole] = several
        self._run(*(Ask((whole,), (role,), corruption) for role, corruption in self.meetings))
        return whole if self._met(whole) >= rule.enough else None

    def _names(self, sites: Sequence[str], rule: Rule) -> None:
        """Replace the named positions between key and query where these restore something together.

        What is destroyed by a single one is only asked where no single one restores enough (see `mechanism.stores`).
        """
        worth = [site for site in sites if self._share(Cell(str(site), "between")) >= WORTH_SAYING]
        self._run(Ask(tuple(worth), tuple(self.roles)))
        self._name_once(*worth)
        share = self.shares()
        for site in worth:
            if stores_alone(share, site, rule, self.clean.meaning) is None:
                there = [role for role in self.roles if role != RANDOM and Cell(str(site), role) in self.found]
                self._run(Ask((site,), tuple(there), "key", "destroy"))
                for role in there:  # in the documents in which the name counts
                    own = self.found[Cell(str(site), role)]
                    destroyed = Cell(str(site), role, "key", "destroy")
                    self.found[destroyed] = np.where(np.isnan(own), np.nan, self.found[destroyed])

    def operation_inside(self, layer: int, rule: Rule) -> str | None:
        """The same among all operations of a layer whose sites are not declared."""
        path, module = self._undeclared(layer)
        if module is None:
            return None
        few, most, chosen = slice(0, FEW), -np.inf, None
        for role, corruption in self.meetings:
            clean, corrupted, where = self.clean[few], self.batches[corruption][few], self.where[role][few]
            both, changed = self._from(layer, clean, corrupted), (clean.tokens != corrupted.tokens).int().argmax(1)
            some = operations(module, path, layer, both, changed, clean.tokens.shape[1])[:MOST_OPERATIONS]
            values = values_of(module, self._from(layer, clean), len(clean), some, {role: where})
            spoilt, before = self._from(layer, corrupted), self.lost[corruption][few]
            for each in some:
                found = replaced(module, spoilt, each, where, values[each.number][role])
                share = float(ratio(np.sum(found.numpy() - before), np.sum(self.original[few] - before)))
                if share > most:
                    most, chosen = share, each
                if most >= rule.enough:
                    break
            if most >= rule.enough:
                break
        if chosen is None:
            return None
        self._run_operation(module, layer, chosen)
        return str(chosen.site) if most >= rule.trace else None

    def _undeclared(self, layer: int) -> tuple[str, nn.Module | None]:
        """The name and module of a layer (in an `LM`, of its mixer); the module is None if its sites are declared."""
        if layer >= len(self.depths.layers):
            return "", None
        path = self.depths.layers[layer] + ".mixer" * isinstance(self.model, LM)
        module = dict(self.model.named_modules())[path]
        return path, None if isinstance(module, Mixer) else module

    def _from(self, layer: int, *batches: Batch) -> Callable[[], Tensor]:
        """A function that runs the documents of all batches from a layer on and returns p(answer) of each."""
        model = self.model
        at, answers = (torch.cat([getattr(batch, x) for batch in batches]) for x in ("predict_at", "answers"))
        if isinstance(model, LM):
            h = torch.cat([read(model, batch, [], {}).inputs[layer] for batch in batches])
            return lambda: answer_likelihood(model.resume(layer, h, at[:, 0]), answers)
        tokens, rows = torch.cat([batch.tokens for batch in batches]), torch.arange(len(at), device=at.device)
        return lambda: answer_likelihood(model(tokens)[rows, at[:, 0]], answers)

    def _run_operation(self, module: nn.Module, layer: int, operation: Operation) -> None:
        """Replace the results of one operation at all kinds of positions and all names, in both directions."""
        self.sites[str(operation.site)] = operation.site
        every = (*self.kinds, *self.roles)
        asked = [("key", "restore", every), ("key", "destroy", every)]
        asked += [(corruption, "restore", (role,)) for role, corruption in self.meetings[:-1]]
        for corruption, direction, roles in asked:
            parts = []
            for rows in self.slices:
                where = {role: self.where[role][rows] for role in roles}
                base, source = self.batches[corruption][rows], self.clean[rows]
                if direction == "destroy":
                    base, source = source, base
                run, others = self._from(layer, base), self._from(layer, source)
                values = values_of(module, others, len(source), [operation], where)[operation.number]
                found = [replaced(module, run, operation, at, values[role]) for role, at in where.items()]
                there = torch.stack([has_role(at) for at in where.values()]).cpu()
                parts.append(torch.where(there, torch.stack(found), torch.nan))
            for role, likelihoods in zip(roles, torch.cat(parts, dim=1), strict=True):
                self.found[Cell(str(operation.site), role, corruption, direction)] = likelihoods.numpy()
        self._name_once(operation.site)

    def _name_once(self, *sites: str) -> None:
        """At each site, let a position with several names count for one: the one that restores most over all documents.

        On trees, the value is often the first position after the key. What is stored there then restores with either
        name, but over all documents only with the right one. A name for which little is lost in the documents that
        remain is left out.
        """
        lost = self.original - self.lost["key"]
        whole = lost.sum()
        if not whole > 0:
            return
        for site in map(str, sites):
            restored = {role: np.nansum(self.found[Cell(site, role)] - self.lost["key"]) for role in self.named}
            taken: list[Tensor] = []
            for role in sorted(self.named, key=lambda role: -round(restored[role] / whole, 2)):  # ties in their order
                at = self.named[role]
                free = has_role(at)
                for other in taken:
                    free = free & ~meet(at, other)
                taken.append(at)
                counts = free.cpu().numpy()
                for cell in (Cell(site, role), Cell(site, role, "key", "destroy")):
                    found = self.found.pop(cell, None)
                    if found is not None and lost[counts].sum() >= WORTH_NAMING * whole:
                        self.found[cell] = np.where(counts, found, np.nan)

    def shares(self) -> dict[Cell, float]:
        """The shares of all cells measured so far."""
        return {cell: self._share(cell) for cell in self.found}

    def _share(self, cell: Cell) -> float:
        effect, lost = change(cell, self.found[cell], self.original, self.lost)
        return float(ratio(np.nansum(effect), np.nansum(lost)))

    def _run(self, *asks: Ask) -> None:
        """Run the interventions that are asked for and not known yet, and keep the likelihoods in `found`."""
        todo = {ask: cells for ask in asks if (cells := self._unknown(ask))}
        if not todo:
            return
        sites = list(dict.fromkeys(part for cells in todo.values() for site, _ in cells for part in self._parts(site)))
        roles = list(dict.fromkeys(role for cells in todo.values() for _, role in cells))
        parts = [self._slice(number, todo, sites, roles) for number in range(len(self.slices))]
        for (ask, cells), *found in zip(todo.items(), *parts, strict=True):
            for (site, role), likelihoods in zip(cells, torch.cat(found, dim=1), strict=True):
                self.found[Cell(str(site), role, ask.corruption, ask.direction)] = likelihoods.numpy()
                self.sites[str(site)] = site if isinstance(site, Site) else Site(None, site)

    def _unknown(self, ask: Ask) -> list[tuple[str, str]]:
        """The sites and roles that have not been asked before."""
        every = itertools.product(ask.sites, ask.roles)
        return [(site, role) for site, role in every
                if Cell(str(site), role, ask.corruption, ask.direction) not in self.found]  # fmt: skip

    def _parts(self, site: str) -> tuple[str, ...]:
        """The sites that are replaced under this name."""
        return self.together.get(site, (site,))

    def _slice(
        self, number: int, todo: Mapping[Ask, Sequence[tuple[str, str]]], sites: Sequence[str], roles: Sequence[str]
    ) -> list[Tensor]:
        """(cells, n) likelihoods of some documents for each `Ask`."""
        rows = self.slices[number]
        where = {role: self.where[role][rows] for role in roles}
        known = self.readings.of(["", *dict.fromkeys(ask.corruption for ask in todo)], number, sites, where)
        if "body" in where:
            self._look_ahead({name: self.batches[name][rows] for name in known}, known, where["body"])
        answered = []
        for ask, cells in todo.items():
            base, source = ("", ask.corruption) if ask.direction == "destroy" else (ask.corruption, "")
            some = self.batches[base][rows]
            answered.append(self._answered(some, known[base], known[source].values, where, cells))
        return answered

    def _look_ahead(self, batches: Mapping[str, Batch], known: Mapping[str, Observed], body: Tensor) -> None:
        """Record the first layer at which a changed token changes earlier ones; `body` (n, m) are all positions."""
        for name in known:
            changed = (batches[name].tokens != batches[""].tokens).int().argmax(1)
            before = (body != NOWHERE) & (body < changed[:, None])
            for layer, site in enumerate(self.depths.boundaries, start=1):
                one, other = (known[each].values[site]["body"] for each in ("", name))
                moved = (one - other).abs()[before].amax() if before.any() else 0
                if moved > AHEAD * one.abs().amax() and layer <= (self.ahead or layer):
                    self.ahead = layer

    def _answered(
        self, base: Batch, known: Observed, values: Mapping[str, Mapping[str, Tensor]], where: Mapping[str, Tensor],
        cells: Sequence[tuple[str, str]],
    ) -> Tensor:  # fmt: skip
        """(cells, n) likelihoods with these values at sites and roles; `known` is the reading of `base`."""

        def edits(site: str, role: str) -> Edit:
            return Take(values[site][role])

        together = [[(part, role) for part in self._parts(site)] for site, role in cells]
        return run_edits(self.model, base, edits, together, where, self.budget, known=known)[1]
