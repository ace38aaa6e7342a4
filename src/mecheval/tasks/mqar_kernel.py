"""The fast sampler of multi-query associative recall."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mecheval import rng
from mecheval.kernels import copy_row, kernel
from mecheval.tasks.ar import draw_distinct
from mecheval.tasks.corpus import I32, Ints
from mecheval.types import NOWHERE

I64 = NDArray[np.int64]


class Shape(NamedTuple):
    """The sizes of a document, as numbers for the kernel."""

    pairs: int
    reassign: int  # number of keys that are written twice
    key_tokens: int  # 1 or 2, or 0 if key and value are one token
    grid: int  # number of tokens from which a document's two-token keys are made; otherwise 0
    n_keys: int
    n_values: int
    first_value: int
    vocab: int
    fillers: int  # number in FILLERS


def slot_weights(slots: int, power: float) -> I64:
    """Weights of the slots, (slots,), as integers with a sum below 2**32, proportional to (s + 1)^(power - 1)."""
    weights = np.arange(1, slots + 1) ** (power - 1.0)
    whole: I64 = np.maximum(1, np.floor(weights / weights.sum() * (1 << 31))).astype(np.int64)
    return whole


@kernel
def draw_slots(state: rng.U64, weights: I64, left: I64, sums: I64, out: I64) -> None:
    """Draw slots without replacement; `left` and `sums` are scratch arrays of the weights' length.

    The remaining weights are summed in blocks, so that first a block is found and then the slot in it.
    """
    block = int(np.sqrt(len(weights))) + 1
    total = 0
    sums[:] = 0
    for slot in range(len(weights)):
        left[slot] = weights[slot]
        sums[slot // block] += weights[slot]
        total += weights[slot]
    for i in range(len(out)):
        draw, at = rng.below(state, total), 0
        while draw >= sums[at]:
            draw -= sums[at]
            at += 1
        slot = at * block
        while draw >= left[slot]:
            draw -= left[slot]
            slot += 1
        out[i] = slot
        total -= left[slot]
        sums[at] -= left[slot]
        left[slot] = 0


@kernel
def fill(
    stream: np.uint64, start: int, shape: Shape, weights: I64,
    tokens: Ints, roles: I32, predict_at: I32, targets: I32, facts: I32,
) -> None:  # fmt: skip
    """`MQAR.document` for many documents. Columns of roles: key, value, next_key, old_value, query (first tokens)."""
    pairs, total, merged = shape.pairs, shape.pairs + shape.reassign, shape.key_tokens == 0
    size = shape.key_tokens + 1
    key_pool, value_pool = np.arange(shape.n_keys), np.arange(shape.n_values)
    cell_pool = np.arange(shape.grid * shape.grid)
    cells, parts = np.empty(pairs, np.int64), np.empty(shape.grid or pairs, np.int64)
    values, order, last = np.empty(total, np.int64), np.arange(total), np.empty(pairs, np.int64)
    old, slots, by_slot = np.empty(pairs, np.int64), np.empty(pairs, np.int64), np.empty(len(weights), np.int64)
    swaps, again = np.empty(total, np.int64), np.empty(shape.reassign, np.int64)
    who, pair_pool = np.empty(total, np.int64), np.arange(pairs)
    used = np.full(shape.vocab, -1, np.int64)
    left, sums = np.empty(len(weights), np.int64), np.empty(len(weights), np.int64)
    state = np.empty(1, np.uint64)
    for row in range(len(tokens)):
        state[0] = rng.fold(stream, np.uint64(start + row))
        text = tokens[row]
        text[:] = 0
        draw_distinct(state, key_pool, swaps, parts)
        if shape.grid:
            draw_distinct(state, cell_pool, swaps, cells)
        for part in parts:
            used[1 + part] = row
        draw_distinct(state, value_pool, swaps, values)
        # Which pair is written in which place: each once, and some of them twice, shuffled.
        draw_distinct(state, pair_pool, swaps, again)
        for place in range(total):
            order[place] = place if place < pairs else again[place - pairs]
        for place in range(total - 1, 0 if shape.reassign else total, -1):
            other = rng.below(state, place + 1)
            order[place], order[other] = order[other], order[place]
        last[:], old[:] = -1, -1
        for place in range(total):
            i, at = order[place], place * size
            if last[i] >= 0:
                old[i] = last[i]
            last[i] = at
            value = values[place]
            if merged:
                text[at] = shape.first_value + shape.n_values + parts[i] * shape.n_values + value
            elif shape.grid:
                text[at] = 1 + parts[cells[i] // shape.grid]
                text[at + 1] = 1 + parts[cells[i] % shape.grid]
                text[at + 2] = shape.first_value + value
            else:
                text[at], text[at + 1] = 1 + parts[i], shape.first_value + value
        # The pairs in the order in which their last assignments stand get their slots one after the other.
        count = 0
        for place in range(total):
            if last[order[place]] == place * size:
                who[count] = order[place]
                count += 1
        draw_slots(state, weights, left, sums, slots)
        by_slot[:] = -1
        for i in range(pairs):
            by_slot[slots[i]] = who[i]
        question, first = 0, total * size
        for slot in range(len(weights)):
            i, at = by_slot[slot], first + slot * size
            if i < 0:
                continue
            key, value = last[i], last[i] + size - 1
            if merged:
                text[at] = 1 + parts[i]
                targets[row, question] = shape.first_value + (text[key] - shape.first_value) % shape.n_values
            else:
                copy_row(text[key:value], text[at:])
                targets[row, question] = text[value]
            at_last = at + max(size - 2, 0)
            predict_at[row, question] = at_last
            place = roles[row, question]
            place[0], place[1], place[2], place[4] = key, value, value + 1, at
            place[3] = NOWHERE if old[i] < 0 else old[i] + size - 1
            if question == 0:
                facts[row, 0], facts[row, 1] = pairs, at_last - value
            question += 1
        if shape.fillers:
            for at in range(first, len(text)):
                slot = (at - first) // size
                inside = slot < len(weights) and by_slot[slot] >= 0 and (at - first) % size < max(size - 1, 1)
                if inside:
                    continue
                token = rng.below(state, shape.vocab)
                while shape.fillers == 2 and used[token] == row:
                    token = rng.below(state, shape.vocab)
                text[at] = token
