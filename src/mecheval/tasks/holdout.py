"""The hold-out: (key, value) combinations that only the test split may ask about."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mecheval import rng
from mecheval.kernels import kernel
from mecheval.types import Split

COUNTED = 1 << 20
"""Number of combinations up to which the held-out share is exact; above, it is exact to within about 0.1 %."""


class Holdout(NamedTuple):
    """The combinations that a split may ask about, decided by a fixed hash of (seed, key, value).

    Combinations whose hash is below `cut` are held out: only test asks about them.
    """

    hash_key: np.uint64
    cut: np.uint64
    held_out: bool  # whether this split asks about the held-out combinations, or about the others

    def allows(self, key: int, value: int) -> bool:
        """Whether this split may ask `key` when the answer is `value` (symbol numbers, not token ids)."""
        if self.cut == 0:
            return True
        return bool((rng.derived(rng.derived(self.hash_key, key), value) < self.cut) == self.held_out)


@kernel
def combination(hash_key: np.uint64, key: int, value: int) -> np.uint64:
    """The hash of one combination."""
    return rng.fold(rng.fold(hash_key, np.uint64(key)), np.uint64(value))


@kernel
def allowed(hash_key: np.uint64, cut: np.uint64, held_out: bool, key: int, value: int) -> bool:
    """`Holdout.allows` for kernels."""
    return bool(cut == 0 or (combination(hash_key, key, value) < cut) == held_out)


def _combinations(hash_key: np.uint64, keys: int, values: int) -> rng.U64:
    """The hashes of all combinations, (keys * values,)."""
    by_key = rng.folded(hash_key, np.arange(keys, dtype=np.uint64))
    return rng.folded(by_key[:, None], np.arange(values, dtype=np.uint64)).ravel()


@lru_cache
def _cut(hash_key: np.uint64, share: float, keys: int, values: int) -> np.uint64:
    total = keys * values
    if share == 0 or total > COUNTED:
        return np.uint64(int(share * (1 << 64)))
    held = min(max(round(share * total), 1), total - 1)  # so that neither side is empty
    return np.uint64(np.partition(_combinations(hash_key, keys, values), held)[held])


def holdout(share: float, seed: int, split: Split, keys: int, values: int) -> Holdout:
    """What `split` may ask about if `share` of all keys x values combinations is held out; with 0, everything."""
    hash_key = rng.key(seed, "holdout")
    return Holdout(hash_key, _cut(hash_key, share, keys, values), held_out=share > 0 and split == "test")
