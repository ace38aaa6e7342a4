"""Associative treecall: recall over trees drawn from a grammar; the answer is, for example, the query's parent."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mecheval import rng
from mecheval.errors import UserError
from mecheval.tasks import atr_kernel
from mecheval.tasks.atr_kernel import KINDS
from mecheval.tasks.atr_options import ATROptions
from mecheval.tasks.base import MAX_ATTEMPTS, MAX_WORK, MAX_WORK_EACH, TASKS, Task
from mecheval.tasks.corpus import Corpus, Document, Query, empty_columns, framed, small_ints
from mecheval.tasks.holdout import Holdout, holdout
from mecheval.tasks.lengths import length_range
from mecheval.tasks.pcfg import Grammar
from mecheval.types import FIRST_SYMBOL, ROLES, Batch, Split

if TYPE_CHECKING:  # slow to import
    from torch import Tensor

CHUNK_TOKENS = 1 << 20
"""Size in tokens of the buffer into which documents are drawn before they are packed; it bounds the extra memory."""
GUESSED = 2048
"""Number of documents from which the chance level is estimated."""


@lru_cache(maxsize=16)
def _drawn(seed: int, shape: tuple[tuple[str, Any], ...]) -> tuple[Grammar, tuple[float, float]]:
    """A grammar and its length range, cached because all configs of a sweep build the same task."""
    grammar = Grammar.draw(seed, **dict(shape))
    return grammar, length_range(grammar)


@dataclass(eq=False)
class Node:
    """A symbol of a sentential form, and the head terminal above it; `rule` is set on heads."""

    symbol: str
    parent: Node | None
    rule: int = -1


@TASKS.register("atr")
class ATR(Task):
    """Associative treecall: `BOS sentence EOS child parent EOS`; a query means its symbol's rightmost occurrence."""

    name = "atr"
    Options = ATROptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "paper_long": {"max_rhs": 10},
        "paper_vocab": {"terminals": 8192, "terminal_weight": 8192.0},  # published without the factor r_Σ
        "laptop": {"max_length": 64},
    }
    options: ATROptions

    def __init__(self, options: ATROptions) -> None:
        super().__init__(options)
        shape = ("terminals", "nonterminals", "max_depth", "max_rhs", "max_rules", "head", "terminal_weight")
        if options.grammar is not None:
            self.grammar = Grammar.from_dict(options.grammar)
            shortest, self._longest = length_range(self.grammar)
        else:
            drawn = _drawn(options.grammar_seed, tuple((name, getattr(options, name)) for name in shape))
            self.grammar, (shortest, self._longest) = drawn
        if shortest == math.inf:
            raise UserError("atr: no derivation of this grammar ends; give its nonterminals a rule without recursion.")
        only = "atr: this grammar only generates documents of"
        if shortest > options.max_length:
            raise UserError(f"{only} {shortest:.0f} or more terminals, but max_length={options.max_length}.")
        if self._longest < options.min_length:
            raise UserError(f"{only} at most {self._longest:.0f} terminals, but min_length={options.min_length}.")

    @property
    def vocab_size(self) -> int:
        """The number of token ids: the frame, the terminals and, if there are several query types, a token for each."""
        several = len(self.options.query) > 1
        return FIRST_SYMBOL + len(self.grammar.terminals) + (len(KINDS) if several else 0)

    @property
    def max_tokens(self) -> int:
        o = self.options
        return self._limit + 3 + o.queries * (3 if len(o.query) > 1 else 2)

    @property
    def bytes_each(self) -> int:
        return super().bytes_each + 6 * self.options.min_length + 14 * self.options.queries

    def symbol(self, token: int) -> str:
        """The terminal's name in the grammar; query types are ?parent and so on."""
        number = token - FIRST_SYMBOL
        if number < 0:
            return super().symbol(token)
        names = self.grammar.terminals
        return names[number] if number < len(names) else f"?{KINDS[number - len(names)]}"

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        terminals = np.arange(FIRST_SYMBOL, FIRST_SYMBOL + len(self.grammar.terminals))
        others: NDArray[np.int64] = terminals[terminals != tokens[key]]
        return others

    def chance(self, batch: Batch) -> Tensor:
        """The accuracy of the best guess that does not look for the query's place in the tree."""
        import torch

        return torch.full(batch.targets.shape, self._best_guess, dtype=torch.float64)

    @cached_property
    def _best_guess(self) -> float:
        """The accuracy of the best of several guesses on documents of the training split.

        The guesses are the symbols 1 to 8 places before the divider, the body's most frequent symbol and the query's
        most frequent answer.
        """
        right, usual = Counter[str](), defaultdict[int, Counter[int]](Counter)
        n = tokens = 0
        while n < GUESSED and tokens < CHUNK_TOKENS // 4:
            corpus = self.corpus(64, "train", 0, start=n)
            for i in range(len(corpus)):
                text = corpus.tokens[corpus.starts[i] : corpus.starts[i + 1]].tolist()
                divider, answer = int(corpus.roles[i, 0, ROLES.index("divider")]), int(corpus.targets[i, 0])
                body, asked = text[1:divider], text[divider + 1]
                for back in range(1, min(len(body), 8) + 1):
                    right[f"{back} back"] += body[-back] == answer
                right["frequent"] += Counter(body).most_common(1)[0][0] == answer
                if usual[asked]:  # it occurred in earlier documents
                    right["usual"] += usual[asked].most_common(1)[0][0] == answer
                usual[asked][answer] += 1
            n, tokens = n + len(corpus), tokens + len(corpus.tokens)
        return max(right.values()) / n

    def document(self, random: random.Random, split: Split) -> Document:
        """One document: derive sentences until one has an allowed length and enough eligible queries."""
        o = self.options
        asked_kinds = [random.choice(o.query) for _ in range(o.queries)]
        rejected = {"short": 0, "long": 0, "mute": 0}
        for _ in range(MAX_ATTEMPTS):
            sentence = self.derive(random)
            if sentence is None or len(sentence) < o.min_length:
                rejected["long" if sentence is None else "short"] += 1
                continue
            position = {id(node): i for i, node in enumerate(sentence)}
            symbols = [self._number[node.symbol] for node in sentence]
            parents = [-1 if node.parent is None else position[id(node.parent)] for node in sentence]
            asked: list[tuple[str, int]] = []
            queries: list[Query] = []
            for kind in asked_kinds:
                possible = eligible_queries(kind, symbols, parents, self._side(split), o.root_sibling, o.any_child)
                fresh = [(g, i, a) for g, i, a in possible if (kind, i) not in asked]
                if not fresh:
                    break
                chosen = random.choice(sorted({g for g, _, _ in fresh}))
                i, a = random.choice([(i, a) for g, i, a in fresh if g == chosen])
                asked.append((kind, i))
                token = self._kind_token(kind) if len(o.query) > 1 else None
                word, answer = FIRST_SYMBOL + symbols[i], FIRST_SYMBOL + symbols[a]
                queries.append(Query(word, answer, i, a, a + 1, token, len({i for _, i, _ in possible})))
            if len(queries) < o.queries:
                rejected["mute"] += 1
                continue
            depth, node = 0, parents[queries[0].key]
            while node >= 0:
                depth, node = depth + 1, parents[node]
            body = [FIRST_SYMBOL + symbol for symbol in symbols]
            rules = [node.rule for node in sentence]
            return framed(body, queries, pairs=len(body) - 1, depth=depth, parents=parents, rules=rules)
        raise UserError(self._gave_up(list(rejected.values())))

    def derive(self, random: random.Random) -> list[Node] | None:
        """Derive a sentence, rewriting the leftmost nonterminal; return its terminals, or None if it is too long."""
        grammar = self.grammar
        form = [Node(random.choice(grammar.start), None)]
        i = 0
        while i < len(form):
            name, above = form[i].symbol, form[i].parent
            if name not in grammar.rules:
                i += 1
                continue
            rules = grammar.rules[name]
            [j] = random.choices(range(len(rules)), [rule.probability for rule in rules])
            head = Node(random.choices(grammar.terminals, grammar.heads[name])[0], above, self._first_rule[name] + j)
            children = [Node(child, head) for child in rules[j].children]
            form[i : i + 1] = [*children, head] if grammar.head == "right" else [head, *children]
            if len(form) > self.options.max_length:
                return None  # every symbol becomes at least one terminal
        return form

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        o, stream = self.options, rng.key(seed, split)
        room = max(CHUNK_TOKENS, 2 * self.max_tokens)
        tokens, tree, heads = (np.empty(room, np.int32) for _ in range(3))
        starts, rejected = np.zeros(n + 1, np.int64), np.zeros(3, np.int64)
        roles, predict_at, targets, facts = empty_columns(n, o.queries)
        kinds = np.array([KINDS.index(kind) for kind in o.query])
        packed: list[tuple[NDArray[np.integer], ...]] = []
        done, work = 0, np.array([MAX_WORK + n * MAX_WORK_EACH])
        while done < n:
            wrote = atr_kernel.fill(
                stream, start + done, *self._tables, *self._side(split),
                o.min_length, self._limit, kinds, FIRST_SYMBOL + len(self.grammar.terminals), o.root_sibling,
                o.any_child, MAX_ATTEMPTS, work,
                tokens, tree, heads, starts[done:],
                roles[done:], predict_at[done:], targets[done:], facts[done:], rejected,
            )  # fmt: skip
            if rejected.sum() >= MAX_ATTEMPTS or work[0] < 0:
                raise UserError(self._gave_up(rejected.tolist()))
            used = starts[done + wrote] - starts[done]
            small = map(small_ints, (self.vocab_size, self.max_tokens, len(self._tables.rule_cuts)))
            packed.append(tuple(a[:used].astype(t) for a, t in zip((tokens, tree, heads), small, strict=True)))
            done += wrote
        flat, parents, rules = (np.concatenate(parts) for parts in zip(*packed, strict=True))
        return Corpus(flat, starts, roles, predict_at, targets, facts, start, parents, rules)

    @cached_property
    def _tables(self) -> atr_kernel.Tables:
        return atr_kernel.tables(self.grammar)

    @cached_property
    def _first_rule(self) -> dict[str, int]:
        """The number of each nonterminal's first rule; rules are numbered consecutively over all nonterminals."""
        return dict(zip(self.grammar.nonterminals, self._tables.first_rule.tolist()[:-1], strict=True))

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.grammar.terminals)}

    @property
    def _limit(self) -> int:
        return int(min(self._longest, self.options.max_length))

    def _kind_token(self, kind: str) -> int:
        return FIRST_SYMBOL + len(self.grammar.terminals) + KINDS.index(kind)

    def _side(self, split: Split) -> Holdout:
        o, size = self.options, len(self.grammar.terminals)
        return holdout(o.holdout, o.holdout_seed, split, size, size)

    def _gave_up(self, rejected: Sequence[int]) -> str:
        o = self.options
        short, long, mute = rejected
        return (
            f"atr: gave up after {sum(rejected)} drafts of one document: {short} were shorter than "
            f"min_length={o.min_length}, {long} longer than max_length={o.max_length}, and {mute} did not allow "
            f"{o.queries} {' or '.join(o.query)} question(s). Change these limits or the grammar."
        )


def eligible_queries(
    kind: str,
    symbols: list[int],
    parents: list[int],
    side: Holdout,
    root_sibling: bool = False,
    any_child: bool = False,
) -> list[tuple[int, int, int]]:
    """All (group, query position, answer position) that may be asked about a tree.

    A query means the rightmost occurrence of its symbol. A group is drawn first, then a query in it; the group is the
    answer (parent, grandparent), the common parent (sibling; the root has none) or the query itself (child).
    """
    n = len(symbols)
    rightmost = [i for i in range(n) if symbols[i] not in symbols[i + 1 :]]
    children: dict[int, list[int]] = {i: [j for j in range(n) if parents[j] == i] for i in range(n)}
    found = []
    for i in rightmost:
        above = parents[i]
        if kind == "parent" and above >= 0:
            found.append((above, i, above))
        elif kind == "grandparent" and above >= 0 and parents[above] >= 0:
            found.append((parents[above], i, parents[above]))
        elif kind == "sibling" and above >= 0 and children[above][-1] in rightmost:
            found.append((above, i, children[above][-1]))
        elif kind == "sibling" and above < 0 and root_sibling:
            found.append((n, i, i))
        elif kind == "child" and children[i]:
            found += [(i, i, child) for child in (children[i] if any_child else children[i][-1:])]
    return [(group, i, a) for group, i, a in found if side.allows(symbols[i], symbols[a])]
