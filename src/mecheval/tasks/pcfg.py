"""Probabilistic grammars in (right-)Greibach normal form, which can be drawn at random, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mecheval import rng
from mecheval.errors import UnknownName, UserError, shown
from mecheval.files import write_atomic
from mecheval.plain import load_file

Head = Literal["left", "right"]

MAX_NONTERMINALS, MAX_RULES, MAX_CHILDREN, MAX_HEADS = 2000, 10_000, 200_000, 1 << 20
"""Largest numbers of nonterminals, rules, children of all rules together, and head probabilities (nonterminals times
terminals). The paper's grammars have up to 40, 200, 800 and 327,680; the largest ones take a few seconds."""
LARGE = 1e300
"""Value above which weights are scaled before they are summed."""
MAX_WRITTEN_HEADS = 400_000
"""Largest number of head probabilities of a grammar in a config, so that the config's file can be read back."""
MAX_NAME = 100
"""Largest number of characters in a symbol's name."""


def check_size(nonterminals: int, rules: int, children: int, heads: int) -> None:
    """Raise an error if a grammar is, or could become, too large."""
    for what, size, limit in (
        ("nonterminals", nonterminals, MAX_NONTERMINALS),
        ("rules", rules, MAX_RULES),
        ("children in its rules", children, MAX_CHILDREN),
        ("probabilities of heads (nonterminals times terminals)", heads, MAX_HEADS),
    ):
        if size > limit:
            raise UserError(f"grammar: it can have at most {limit:,} {what} (got {size:,}).")


@dataclass(frozen=True)
class Rule:
    """One right-hand side: its children in order; the head terminal is to the left or right of them."""

    children: tuple[str, ...]
    probability: float


@dataclass(frozen=True)
class Grammar:
    """A grammar: every expansion of a nonterminal draws a rule and a head terminal, independently.

    The head terminal is the parent of everything that the expansion creates. It is drawn from a distribution of the
    nonterminal, whichever rule was drawn.
    """

    head: Head
    terminals: tuple[str, ...]
    rules: dict[str, tuple[Rule, ...]]  # nonterminal -> its rules, probabilities summing to 1
    heads: dict[str, tuple[float, ...]]  # nonterminal -> probability of each terminal, summing to 1
    start: tuple[str, ...]  # a document starts from one of these, uniformly

    def __post_init__(self) -> None:
        rules = [rule for rules in self.rules.values() for rule in rules]
        children = sum(len(rule.children) for rule in rules)
        check_size(len(self.rules), len(rules), children, len(self.rules) * len(self.terminals))
        problem = next(self._problems(), None)
        if problem:
            raise UserError(f"grammar: {problem}.")

    def _problems(self) -> Iterator[str]:
        if not self.terminals or not self.rules or not self.start:
            yield "it is empty; it needs terminals and at least one nonterminal with a rule"
        if len(self.start) > MAX_RULES:
            yield f"start can have at most {MAX_RULES:,} names"
        for name in (*self.terminals, *self.rules):
            if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
                yield f"the name of a symbol is 1 to {MAX_NAME} printable characters (got {shown(name)})"
        clash = set(self.terminals) & set(self.rules)
        if clash:
            yield f"{sorted(clash)[0]!r} is both a terminal and a nonterminal"
        if len(set(self.terminals)) < len(self.terminals):
            yield "a terminal is listed twice"
        if self.head not in ("left", "right"):
            yield f"head is {shown(self.head)}; choices: left, right"
        symbols = {*self.terminals, *self.rules}
        for name in self.start:
            if name not in self.rules:
                yield f"start symbol {shown(name)} has no rules"
        for name, rules in self.rules.items():
            if not rules:
                yield f"nonterminal {name!r} has no rules"
            for rule in rules:
                for child in rule.children:
                    if child not in symbols:
                        yield str(UnknownName(f"symbol in a rule of {name!r}", child, symbols)).rstrip(".")

    @property
    def nonterminals(self) -> tuple[str, ...]:
        """The names in the order in which the kernels number them."""
        return tuple(self.rules)

    @classmethod
    def draw(
        cls, seed: int, *, terminals: int = 20, nonterminals: int = 40, max_depth: int = 10, max_rhs: int = 5,
        max_rules: int = 5, head: Head = "right", terminal_weight: float = 20,
    ) -> Grammar:  # fmt: skip
        """A random grammar without recursion: the nonterminal children of a nonterminal are on deeper levels."""
        draws = rng.Draws(int(rng.key(seed, "grammar")))
        words = tuple(f"t{i}" for i in range(terminals))
        names = [f"N{i}" for i in range(nonterminals)]
        depth = {name: 1 + draws.below(max_depth) for name in names}
        rules = {}
        for name in names:
            deeper = [other for other in names if depth[other] > depth[name]]
            terminal_share = terminal_weight / (len(deeper) + terminal_weight) if deeper else 1.0
            drawn = []
            for _ in range(1 + draws.below(max_rules)):
                children = []
                for _ in range(1 + draws.below(max_rhs - 1)):
                    pool = words if draws.bits(53) < terminal_share * rng.ONE else deeper
                    children.append(pool[draws.below(len(pool))])
                drawn.append(tuple(children))
            shares = draws.dirichlet(len(drawn))
            rules[name] = tuple(Rule(c, float(p)) for c, p in zip(drawn, shares, strict=True))
        heads = {name: tuple(draws.dirichlet(terminals).tolist()) for name in names}
        return cls(head, words, rules, heads, start=tuple(names))

    def to_dict(self) -> dict[str, Any]:
        """The grammar as plain data, as in a grammar file."""
        nonterminals = {
            name: {
                "heads": {t: p for t, p in zip(self.terminals, self.heads[name], strict=True) if p > 0},
                "rules": [{"weight": r.probability, "children": list(r.children)} for r in rules],
            }
            for name, rules in self.rules.items()
        }
        return {
            "head": self.head, "terminals": list(self.terminals), "start": list(self.start),
            "nonterminals": nonterminals,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Any) -> Grammar:
        """The grammar that plain data describes.

        `nonterminals` maps each name to its `rules` (each a list of children, or `{children, weight}`; weights
        are normalised, default 1) and optionally its `heads` (terminal -> weight, default uniform).
        `terminals` is a list of names or a number. `start` (default: every nonterminal) and `head` (default
        right) are optional.
        """
        top = _mapping(data, "the file", {"head", "terminals", "start", "nonterminals"})
        listed, nonterminals = top.get("terminals", []), _mapping(top.get("nonterminals", {}), "nonterminals")
        if type(listed) is int:
            check_size(len(nonterminals), 0, 0, listed * max(1, len(nonterminals)))
            words = [f"t{i}" for i in range(listed)]
        else:
            words = _names(listed, "terminals")
        terminals = tuple(words)
        check_size(len(nonterminals), 0, 0, len(nonterminals) * len(terminals))
        rules, heads, known = {}, {}, set(terminals)
        for name, entry in nonterminals.items():
            parts = _mapping(entry, f"nonterminal {shown(name)}", {"heads", "rules"})
            rules[name] = _rules(shown(name), parts.get("rules", []))
            given = _mapping(parts.get("heads", dict.fromkeys(terminals, 1)), f"heads of {shown(name)}")
            for terminal in given:
                if terminal not in known:
                    raise UserError(f"grammar: {UnknownName(f'head terminal of {shown(name)}', terminal, terminals)}")
            heads[name] = tuple(_shares([given.get(t, 0) for t in terminals], f"heads of {shown(name)}"))
        start = tuple(_names(top.get("start") or list(rules), "start"))
        return cls(top.get("head", "right"), terminals, rules, heads, start)

    def save(self, path: str | Path) -> None:
        """Write the grammar as JSON to a file whose name ends in .json; loading it gives the same grammar exactly."""
        if Path(path).suffix.lower() != ".json":
            raise UserError(f"cannot write a grammar as {str(path)!r}; choose .json at the end.")
        write_atomic(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Grammar:
        """Read a grammar file: YAML if its name ends in .yaml or .yml, otherwise JSON."""
        try:
            data = load_file(path, "YAML" if Path(path).suffix in (".yaml", ".yml") else "JSON")
        except UserError as error:
            raise UserError(f"grammar: {error}") from None
        return cls.from_dict(data)


def _mapping(data: Any, what: str, allowed: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise UserError(f"grammar: {what} must map names to values (got {type(data).__name__}).")
    for name in data:
        if allowed and name not in allowed:
            raise UserError(f"grammar: {UnknownName(f'field of {what}', str(name), allowed)}")
    return {str(name): value for name, value in data.items()}


def _names(data: Any, what: str) -> list[str]:
    if not isinstance(data, list | tuple):
        raise UserError(f"grammar: {what} must be a list (got {shown(data)}).")
    for item in data:
        if isinstance(item, list | tuple | Mapping):
            raise UserError(f"grammar: {what} must be names (got {shown(item)}).")
    return [str(item) for item in data]


def _rules(name: str, listed: Any) -> tuple[Rule, ...]:
    if not isinstance(listed, list | tuple):
        raise UserError(f"grammar: the rules of {name} must be a list (got {shown(listed)}).")
    entries = [entry if isinstance(entry, Mapping) else {"children": entry} for entry in listed]
    for entry in entries:
        _mapping(entry, f"a rule of {name}", {"children", "weight"})
    shares = _shares([entry.get("weight", 1) for entry in entries], f"rules of {name}") if entries else []
    children = [_names(entry.get("children", []), f"the children of a rule of {name}") for entry in entries]
    return tuple(Rule(tuple(names), p) for names, p in zip(children, shares, strict=True))


def _shares(weights: list[Any], what: str) -> list[float]:
    wrong = [weight for weight in weights if isinstance(weight, bool) or not isinstance(weight, Real)]
    if wrong:
        raise UserError(f"grammar: the weights of {what} must be numbers (got {shown(wrong[0])}).")
    try:
        array = np.array(weights, dtype=np.float64)
    except OverflowError:
        array = np.array([np.inf])
    if not np.isfinite(array).all() or (array < 0).any() or array.max() <= 0:
        raise UserError(f"grammar: the weights of {what} must be finite, not negative and not all 0.")
    if array.max() > LARGE:  # otherwise their sum could be infinite
        array = array / array.max()
    shares: list[float] = (array / array.sum()).tolist()
    return shares
