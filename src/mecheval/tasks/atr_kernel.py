"""The fast sampler of associative treecall: one loop grows a tree, another asks about it.

Symbols of rules are integers here: terminal i is i, nonterminal X is -1 - X.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mecheval import rng
from mecheval.kernels import kernel
from mecheval.tasks.holdout import allowed
from mecheval.tasks.pcfg import Grammar
from mecheval.types import BOS, EOS, FIRST_SYMBOL

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

PARENT, SIBLING, CHILD, GRANDPARENT = range(4)
KINDS = ("parent", "sibling", "child", "grandparent")
"""Query types by number."""

TOO_LONG = -1
"""What `grow` returns for a draft that would be too long, minus the number of terminals that it had."""


class Tables(NamedTuple):
    """A grammar as flat arrays; N nonterminals, T terminals, R rules."""

    start: I64  # (starts,) nonterminals that a document may start from
    first_rule: I64  # (N + 1,) rules of X are first_rule[X] .. first_rule[X + 1]
    rule_cuts: rng.U64  # (R,) cumulative probabilities within each nonterminal
    first_child: I64  # (R + 1,)
    children: I64  # (total,) symbols
    head_cuts: rng.U64  # (N * T,) cumulative head probabilities
    right: bool  # whether the head stands to the right of its children


def tables(grammar: Grammar) -> Tables:
    """Number the grammar's symbols and lay its rules out flat."""
    code = {name: i for i, name in enumerate(grammar.terminals)}
    code |= {name: -1 - i for i, name in enumerate(grammar.nonterminals)}
    rules = [rule for name in grammar.nonterminals for rule in grammar.rules[name]]
    counts = [len(grammar.rules[name]) for name in grammar.nonterminals]
    probabilities = [np.array([rule.probability for rule in grammar.rules[name]]) for name in grammar.nonterminals]
    return Tables(
        start=np.array([-1 - code[name] for name in grammar.start]),
        first_rule=np.cumsum([0, *counts]),
        rule_cuts=np.concatenate([rng.cut_points(p) for p in probabilities]),
        first_child=np.cumsum([0, *(len(rule.children) for rule in rules)]),
        children=np.array([code[child] for rule in rules for child in rule.children], dtype=np.int64),
        head_cuts=rng.cut_points(np.array([grammar.heads[name] for name in grammar.nonterminals])).ravel(),
        right=grammar.head == "right",
    )


@kernel
def grow(
    state: rng.U64, start: I64, first_rule: I64, rule_cuts: rng.U64, first_child: I64, children: I64,
    head_cuts: rng.U64, right: bool, max_length: int,
    symbols: I64, parents: I64, rules: I64, waiting: I64, waiting_parent: I64,
) -> int:  # fmt: skip
    """Draw a derivation; returns the number of terminals, or TOO_LONG minus that of all symbols so far.

    Fills symbols, parents (position of each terminal's parent, -1 at the root) and rules (number of the rule that
    a terminal heads, -1 at leaves). Terminals are written head first, so that a parent's position is known when
    its children are written; when heads stand to the right, that order is the document's reversed.
    """
    n_terminals = len(head_cuts) // (len(first_rule) - 1)
    waiting[0], waiting_parent[0] = -1 - start[rng.below(state, len(start))], -1
    depth, n = 1, 0
    while depth:
        depth -= 1
        symbol, parent, rule = waiting[depth], waiting_parent[depth], -1
        if symbol < 0:
            X = -1 - symbol
            rule = first_rule[X] + rng.pick(state, rule_cuts, first_rule[X], first_rule[X + 1])
            symbol = rng.pick(state, head_cuts, X * n_terminals, (X + 1) * n_terminals)
            low, high = first_child[rule], first_child[rule + 1]
            if n + 1 + depth + high - low > max_length:  # every waiting symbol becomes at least one terminal
                return TOO_LONG - n - depth
            for i in range(high - low):
                waiting[depth] = children[low + i] if right else children[high - 1 - i]
                waiting_parent[depth] = n
                depth += 1
        symbols[n], parents[n], rules[n] = symbol, parent, rule
        n += 1
    if right:
        for i in range((n + 1) // 2):
            j = n - 1 - i
            symbols[i], symbols[j] = symbols[j], symbols[i]
            rules[i], rules[j] = rules[j], rules[i]
            parents[i], parents[j] = n - 1 - parents[j], n - 1 - parents[i]
        parents[n - 1] = -1
    return n


@kernel
def find_queries(
    kind: int, n: int, symbols: I64, parents: I64, hash_key: np.uint64, cut: np.uint64, held_out: bool,
    seen: I64, stamp: int, rightmost: I64, last_child: I64, answer: I64, group: I64,
) -> int:  # fmt: skip
    """Find what can be asked about a tree: answer[i] = position of the answer if terminal i is the query, or -1.

    group[i] is the node that the draw balances by. `seen` is scratch by symbol, marked with a fresh `stamp`.
    Returns the number of queries.
    """
    last_child[:n] = -1
    for i in range(n):
        if parents[i] >= 0:
            last_child[parents[i]] = i
    for i in range(n - 1, -1, -1):
        rightmost[i] = seen[symbols[i]] != stamp
        seen[symbols[i]] = stamp
    count = 0
    for i in range(n):
        parent, found = parents[i], -1
        if kind == CHILD:
            found, group[i] = last_child[i], i
        elif parent >= 0:
            if kind == PARENT:
                found, group[i] = parent, parent
            elif kind == GRANDPARENT:
                found, group[i] = parents[parent], parents[parent]
            elif rightmost[last_child[parent]]:
                found, group[i] = last_child[parent], parent
        if found >= 0 and not (rightmost[i] and allowed(hash_key, cut, held_out, symbols[i], symbols[found])):
            found = -1
        answer[i] = found
        count += found >= 0
    return count


@kernel
def draw_query(state: rng.U64, n: int, answer: I64, group: I64, members: I64) -> int:
    """Draw a group uniformly among those with a query, then one of its queries uniformly."""
    members[:n] = 0
    groups = 0
    for i in range(n):
        if answer[i] >= 0:
            groups += members[group[i]] == 0
            members[group[i]] += 1
    skip = rng.below(state, groups)
    chosen = 0
    while members[chosen] == 0 or skip > 0:
        skip -= members[chosen] > 0
        chosen += 1
    skip = rng.below(state, members[chosen])
    i = 0
    while answer[i] < 0 or group[i] != chosen or skip > 0:
        skip -= answer[i] >= 0 and group[i] == chosen
        i += 1
    return i


@kernel
def fill(
    stream: np.uint64, number: int,
    start: I64, first_rule: I64, rule_cuts: rng.U64, first_child: I64, children: I64, head_cuts: rng.U64, right: bool,
    hash_key: np.uint64, cut: np.uint64, held_out: bool,
    min_length: int, max_length: int, kinds: I64, first_kind_token: int, max_attempts: int, work: I64,
    tokens: I32, tree: I32, heads: I32, starts: I64,
    roles: I32, predict_at: I32, targets: I32, facts: I32, rejected: I64,
) -> int:  # fmt: skip
    """`ATR.document` for document `number` and those after it; returns how many were written.

    Stops when the rows or the flat buffers (tokens, tree = parents, heads = rules) are full, or when a document
    was given up after `max_attempts`, which `rejected` (too short, too long, nothing to ask) then adds up to. `work`
    (1,) counts down with every symbol of a rejected draft; below 0, the document at hand is given up, too.
    """
    n_terminals = len(head_cuts) // (len(first_rule) - 1)
    queries, several = predict_at.shape[1], len(kinds) > 1
    symbols, parents, rules, waiting, waiting_parent = np.empty((5, max_length), np.int64)
    rightmost, last_child, answer, group, members = np.empty((5, max_length), np.int64)
    asked, asked_kind, asked_value = np.empty((3, queries), np.int64)
    seen, stamp = np.zeros(n_terminals, np.int64), 0
    state = np.empty(1, np.uint64)
    place = 0
    for row in range(len(roles)):
        if place + max_length + 3 + 3 * queries > len(tokens):
            return row
        state[0] = rng.fold(stream, np.uint64(number + row))
        for j in range(queries):
            asked_kind[j] = kinds[rng.below(state, len(kinds))]
        n, eligible, done = 0, 0, False
        rejected[:] = 0
        while not done and rejected.sum() < max_attempts and work[0] >= 0:
            n = grow(
                state, start, first_rule, rule_cuts, first_child, children, head_cuts, right, max_length,
                symbols, parents, rules, waiting, waiting_parent,
            )  # fmt: skip
            if n < min_length:
                work[0] -= 1 + (n if n >= 0 else TOO_LONG - n)
                rejected[int(n < 0)] += 1
                continue
            done = True
            for j in range(queries):
                stamp += 1
                count = find_queries(
                    asked_kind[j], n, symbols, parents, hash_key, cut, held_out,
                    seen, stamp, rightmost, last_child, answer, group,
                )  # fmt: skip
                if j == 0:
                    eligible = count
                for other in range(j):  # a query is asked once
                    if asked_kind[other] == asked_kind[j]:
                        answer[asked[other]] = -1
                        count -= 1
                if count == 0:
                    done = False
                    work[0] -= (j + 2) * n
                    rejected[2] += 1
                    break
                asked[j] = draw_query(state, n, answer, group, members)
                asked_value[j] = answer[asked[j]]
        if not done:
            return row

        text, divider = tokens[place:], n + 1
        length = n + 3 + queries * (3 if several else 2)
        tree[place : place + length], heads[place : place + length] = -1, -1
        text[0], text[divider], text[length - 1] = BOS, EOS, EOS
        for i in range(n):
            text[1 + i], heads[place + 1 + i] = FIRST_SYMBOL + symbols[i], rules[i]
            tree[place + 1 + i] = parents[i] + 1 if parents[i] >= 0 else -1
        at = divider + 1
        for j in range(queries):
            where, value = roles[row, j], asked_value[j]
            where[0], where[1], where[2] = 0, 1 + asked[j], 1 + value
            where[3], where[4], where[5] = 2 + value, divider, at
            text[at] = FIRST_SYMBOL + symbols[asked[j]]
            at += 1
            if several:
                text[at] = first_kind_token + asked_kind[j]
                at += 1
            text[at] = FIRST_SYMBOL + symbols[value]
            predict_at[row, j], targets[row, j] = at - 1, text[at]
            at += 1
        key, value, depth = asked[0], asked_value[0], 0
        node = parents[key]
        while node >= 0:
            node, depth = parents[node], depth + 1
        facts[row, 0], facts[row, 1], facts[row, 2], facts[row, 3] = n - 1, value - key, depth, eligible
        place += length
        starts[row + 1] = starts[row] + length
    return len(roles)
