"""Computes what the explorer shows: answers, a map and a verdict for the tokens and patches that a page asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from mecheval.errors import UserError
from mecheval.figures.heatmap import in_depth
from mecheval.intervene import Depths, Intervention, Take, capture, default_sites, interchange, patch
from mecheval.intervene.explain import likeliest_of_each
from mecheval.intervene.gather import measured
from mecheval.intervene.judging import finding_in
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.tasks import Task
from mecheval.types import Batch, in_order

if TYPE_CHECKING:  # slow to import
    import pandas as pd

TOP = 5
"""Number of answers that are listed, besides the right one."""
DIRECTIONS = ("restore", "destroy")
MOST_PATCHES = 1000
MOST_LISTED = 5000
"""Symbols that the page suggests; of a larger vocabulary it takes any, and suggests none."""


class Asked(NamedTuple):
    """A request of the page."""

    clean: tuple[str, ...]  # symbols up to the prediction
    corrupted: tuple[str, ...]
    patches: tuple[tuple[str, str], ...]  # site and role
    direction: str

    @classmethod
    def read(cls, given: Any) -> Asked:
        """Parse JSON, or raise an error that says what is wrong."""
        names = ("clean", "corrupted", "patches")
        if not isinstance(given, dict) or not all(isinstance(given.get(name), list) for name in names):
            raise UserError("the explorer wants lists of clean and corrupted tokens, and of patches.")
        pairs = given["patches"]
        if len(pairs) > MOST_PATCHES or not all(isinstance(each, list) and len(each) == 2 for each in pairs):
            raise UserError(f"patches are pairs of a site and a role, {MOST_PATCHES} at most.")
        words = [tuple(str(word) for word in given[name]) for name in ("clean", "corrupted")]
        direction = str(given.get("direction", DIRECTIONS[0]))
        if direction not in DIRECTIONS:
            raise UserError(f"unknown direction {direction[:40]!r}. Choices: {', '.join(DIRECTIONS)}.")
        return cls(words[0], words[1], tuple((str(site), str(role)) for site, role in pairs), direction)


class Session:
    """A model and one document, clean and corrupted; roles stay where they are while tokens change.

    Of a module that is not an `LM`, say which `sites` the map has, and which ones decide on the mechanism (`depths`).
    """

    def __init__(
        self, model: nn.Module, task: Task, clean: Batch, corrupted: Batch, title: str,
        sites: Sequence[Site] | None = None, depths: Depths | None = None,
    ) -> None:  # fmt: skip
        self.model, self.task, self.title, self.depths = model.eval(), task, title, depths
        self.clean, self.corrupted = clean, corrupted
        self.length = int(clean.predict_at[0, 0]) + 1
        self.tokens = {task.symbol(token): token for token in range(task.vocab_size)}
        self.sites = sites or [site for site in default_sites(model) if site.kind != "inside"]
        self.roles = in_order(clean.roles)

    def start(self) -> dict[str, Any]:
        """The initial content of the page."""
        words = {
            name: [self.task.symbol(int(token)) for token in batch.tokens[0, : self.length]]
            for name, batch in (("clean", self.clean), ("corrupted", self.corrupted))
        }
        where = {role: at[0].flatten().tolist() for role, at in self.clean.roles.items()}
        symbols = list(self.tokens) if len(self.tokens) <= MOST_LISTED else []
        return {"title": self.title, "symbols": symbols, "roles": where, **words}

    def answer(self, asked: Asked) -> dict[str, Any]:
        """Answers to clean, corrupted and patched documents, the map of one patch at a time, and the verdict."""
        clean, corrupted = self._edited(self.clean, asked.clean), self._edited(self.corrupted, asked.corrupted)
        corrupted = replace(corrupted, answers=clean.answers, targets=clean.targets)
        source, base = (clean, corrupted) if asked.direction == "restore" else (corrupted, clean)
        cells = [(site, role) for site, role in asked.patches if role in self.roles]
        values = (
            capture(self.model, source, list(dict.fromkeys(site for site, _ in cells)), self.roles) if cells else {}
        )
        edits = [Intervention(site, role, Take(values[site][role])) for site, role in cells]
        named = {"clean": clean, "corrupted": corrupted}
        answers = dict(zip(named, self._likeliest(*named.values()), strict=True))
        if edits:
            with patch(self.model, edits, base):
                [answers["patched"]] = self._likeliest(base)
        else:
            answers["patched"] = answers["corrupted" if asked.direction == "restore" else "clean"]
        effects = interchange(self.model, clean, corrupted, self.sites, self.roles, direction=asked.direction)
        found = measured(self.model, clean, corrupted, depths=self.depths)
        judged = (
            "none: it is about documents that differ in their keys" if isinstance(found, str) else finding_in(found)
        )
        return {"answers": answers, "map": self._map(effects), "verdict": str(judged)}

    def _edited(self, batch: Batch, words: Sequence[str]) -> Batch:
        """The document with other tokens. If the answer is the token at the value, it changes with it."""
        if len(words) != self.length:
            raise UserError(f"the document has {self.length} tokens (got {len(words)}).")
        if unknown := [word for word in words if word not in self.tokens]:
            raise UserError(f"unknown token {unknown[0][:40]!r}.")
        tokens = batch.tokens.clone()
        tokens[0, : self.length] = torch.tensor([self.tokens[word] for word in words])
        value = self.clean.roles.get(self.clean.meaning.value or "")
        if value is None or value.ndim > 1 or int(self.clean.tokens[0, value[0]]) != int(self.clean.answers[0]):
            return replace(batch, tokens=tokens)
        targets = batch.targets.clone()
        targets[0, 0] = tokens[0, value[0]]
        return replace(batch, tokens=tokens, answers=targets[:, 0], targets=targets)

    def _likeliest(self, *batches: Batch) -> list[list[tuple[str, float, bool]]]:
        """The likeliest answers of the model to each document, with their probabilities."""
        tokens = torch.cat([batch.tokens[:, : self.length] for batch in batches])
        at = torch.cat([batch.predict_at[:, 0] for batch in batches])
        with torch.no_grad():
            lm, model = isinstance(self.model, LM), self.model
            logits = model(tokens, at=at) if lm else model(tokens)[range(len(at)), at]
        listed = likeliest_of_each(self.task, logits, [int(batch.answers[0]) for batch in batches], TOP)
        return [[(each.symbol, each.p, each.right) for each in answers] for answers in listed]

    def _map(self, effects: pd.DataFrame) -> dict[str, Any]:
        """Rows of the map by depth; a share that is undefined is null."""
        shares = {str(site): dict.fromkeys(self.roles) for site in in_depth(self.sites)}
        for site, role, share in zip(effects["site"], effects["role"], effects["share"], strict=True):
            shares[site][role] = None if math.isnan(share) else round(share, 4)
        return {"roles": self.roles, "rows": [{"site": site, "shares": row} for site, row in shares.items()]}
