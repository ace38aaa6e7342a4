"""The paper's claims, in a file for each study: a claim is a sentence, and a few lines of Python over the study's runs.

The docstring of a claim's function says how it is tested; {number}, {near_zero} and the names of limits stand for the
same words everywhere. Where runs of another scale cannot answer it, a claim has a second form, `smaller`, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from mecheval.paper import limits
from mecheval.paper.limits import USUAL
from mecheval.paper.selection import Answer, Runs
from mecheval.studies import PAPER

WORDS = vars(limits) | {
    "number": f"within {100 * USUAL.tolerance:g} points",
    "near_zero": f"at most {100 * USUAL.tolerance:g} points above guessing among the document's values",
    "lost": f"the corruption loses more than {100 * USUAL.lost:g} point{'s' * (USUAL.lost != 0.01)} of likelihood",
}
"""Replacements for the names in braces in the description of a test."""
Form = Callable[[Runs], Answer | Sequence[Answer]]
"""The answers that must all hold."""


@dataclass
class Claim:
    """A claim of the paper: our sentence for it, its section and figure, what the paper says there, and its tests."""

    name: str
    study: str
    says: str
    where: str
    paper: str
    also: tuple[str, ...]  # other studies that it is about
    test: Form
    small: Form | None

    def smaller(self, test: Form) -> Claim:
        """Add the form for other scales."""
        self.small = test
        return self

    def at(self, scale: str) -> Form | None:
        """The form for a scale."""
        return self.test if scale == "paper" else self.small


_FOUND: dict[str, Claim] = {}


def claim(
    says: str, where: str, paper: str, *, any_scale: bool = False, also: tuple[str, ...] = ()
) -> Callable[[Form], Claim]:
    """Register the test of a claim under its name, for the study that the file is named after."""

    def register(test: Form) -> Claim:
        study = test.__module__.rpartition(".")[2]
        made = Claim(test.__name__, study, says, where, paper, also, test, test if any_scale else None)
        return _FOUND.setdefault(made.name, made)

    return register


def described(test: Form) -> str:
    """How a claim is tested, in words."""
    return " ".join((test.__doc__ or "").format(**WORDS).split())


@cache
def all_claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the paper's figures; a study without claims has no file here."""
    for study in PAPER:
        if find_spec(name := f"{__name__}.{study}"):
            import_module(name)
    return tuple(_FOUND.values())
