"""Random numbers that are the same on every machine and for every worker count.

A document's random numbers depend only on (seed, stream, document number), not on earlier draws: each
document gets its own SplitMix64 generator, whose start is a hash of those three. Everything is integer
arithmetic; probabilities are compared as 53-bit integers, so no rounding differs between machines.

The generator's state is an array of one uint64, which numba kernels and plain Python share; `Draws` needs no kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mecheval.errors import UserError
from mecheval.kernels import kernel

U64 = NDArray[np.uint64]

STREAMS = {
    "train": 1, "dev": 2, "test": 3, "corrupt": 4, "grammar": 5, "holdout": 6, "shuffle": 7, "dropout": 8, "control": 9,
    "corrupt value": 10, "corrupt query": 11, "corrupt swap": 12,
}  # fmt: skip
"""A number for each use of a seed, so that one seed can serve all uses independently."""

ONE = 1 << 53
"""Probability 1 as the integer that cut points are compared with."""

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31, _S32 = (np.uint64(s) for s in (11, 27, 30, 31, 32))
_LOW32 = np.uint64(0xFFFFFFFF)
_TWO32 = np.uint64(1 << 32)
_MASK = (1 << 64) - 1


@kernel
def mix(z: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a bijection of 64-bit integers that scatters neighbours."""
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


@kernel
def fold(key: np.uint64, number: np.uint64) -> np.uint64:
    """A new key from a key and a number; keys of different numbers are unrelated."""
    return mix(key ^ mix(number + _WEYL))


def folded(keys: np.uint64 | U64, numbers: U64) -> U64:
    """`fold` of whole arrays without a kernel, which would take half a second to load."""
    scatter: Any = getattr(mix, "py_func", mix)
    result: U64 = scatter(keys ^ scatter(numbers + _WEYL))
    return result


@kernel
def next64(state: U64) -> np.uint64:
    """The next 64 random bits."""
    state[0] += _WEYL
    return mix(state[0])


@kernel
def below(state: U64, n: int) -> int:
    """A uniform integer in [0, n), exactly uniform; 1 <= n < 2**32. (Lemire's multiply-and-reject.)"""
    size = np.uint64(n)
    product = (next64(state) >> _S32) * size
    if (product & _LOW32) < size:
        floor = (_TWO32 - size) % size
        while (product & _LOW32) < floor:
            product = (next64(state) >> _S32) * size
    return int(product >> _S32)


@kernel
def bits53(state: U64) -> np.uint64:
    """A uniform integer in [0, 2**53): a probability times ONE."""
    return next64(state) >> _S11


@kernel
def pick(state: U64, cuts: U64, low: int, high: int) -> int:
    """Draw an index by the cumulative probabilities cuts[low:high] (times ONE); returned relative to low."""
    draw = bits53(state)
    first, last = low, high - 1
    while first < last:
        middle = (first + last) >> 1
        if draw < cuts[middle]:
            last = middle
        else:
            first = middle + 1
    return first - low


class Draws:
    """The generator that starts from a key, in plain Python; it draws the same numbers as the kernels.

    It is used for the few draws of a grammar, because kernels take half a second to load.
    """

    def __init__(self, key: int) -> None:
        self._state = int(key)

    def bits(self, n: int) -> int:
        """The next n random bits; with 53 of them, a probability times ONE."""
        self._state = self._state + int(_WEYL) & _MASK
        return _mixed(self._state) >> 64 - n

    def below(self, n: int) -> int:
        """A uniform integer in [0, n), exactly uniform; 1 <= n < 2**32."""
        product = self.bits(32) * n
        while product % (1 << 32) < (1 << 32) % n:
            product = self.bits(32) * n
        return product >> 32

    def dirichlet(self, n: int) -> NDArray[np.float64]:
        """A uniform draw from the n-simplex, (n,), summing to 1 exactly.

        The gaps between n-1 sorted uniform numbers have this distribution; no logarithm makes digits machine-dependent.
        """
        inner = np.sort(np.array([self.bits(53) for _ in range(n - 1)], dtype=np.int64))
        return np.diff(inner, prepend=0, append=ONE) / ONE


def _mixed(z: int) -> int:
    """`mix` in plain Python."""
    z = (z ^ z >> 30) * int(_MIX1) & _MASK
    z = (z ^ z >> 27) * int(_MIX2) & _MASK
    return z ^ z >> 31


def derived(key: int | np.uint64, number: int) -> np.uint64:
    """`fold` in plain Python."""
    return np.uint64(_mixed(int(key) ^ _mixed(int(number) + int(_WEYL) & _MASK)))


def key(seed: int, stream: str) -> np.uint64:
    """The key of one stream of a seed."""
    if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise UserError(f"a seed is a whole number from 0 to 2**64 - 1 (got {seed!r}).")
    return derived(seed, STREAMS[stream])


@kernel
def _folds(key: np.uint64, n: int) -> U64:
    draws = np.empty(n, dtype=np.uint64)
    for i in range(n):
        draws[i] = fold(key, np.uint64(i))
    return draws


def permutation(key: np.uint64, n: int) -> NDArray[np.int64]:
    """A random order of 0 .. n-1, (n,): the numbers sorted by the hash of each with the key."""
    return np.argsort(_folds(key, n), kind="stable")


def generator(key: np.uint64) -> U64:
    """A fresh generator that starts from a key."""
    return np.array([key], dtype=np.uint64)


def cut_points(probabilities: NDArray[np.float64]) -> U64:
    """Cumulative probabilities times ONE along the last axis, the last one exactly ONE; what `pick` takes."""
    cuts = np.rint(np.cumsum(probabilities, axis=-1) * ONE).astype(np.uint64)
    cuts[..., -1] = ONE
    return cuts
