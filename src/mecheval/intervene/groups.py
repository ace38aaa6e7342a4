"""Groups of documents by a number that each has, such as the distance from key to value."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def groups(values: Sequence[int] | NDArray[np.int64], least: int) -> dict[str, NDArray[np.int64]]:
    """The rows of each group of at least `least` equal or neighbouring values, by what the group is called.

    With fewer rows than that there is one group.
    """
    every = np.asarray(values)
    rows = every.argsort(kind="stable")
    ends = (np.diff(every[rows]) != 0).nonzero()[0] + 1
    bounds = [0]
    for end in ends.tolist():
        if end - bounds[-1] >= least <= len(rows) - end:  # what is left is a group, too
            bounds.append(end)
    found = {}
    for start, end in itertools.pairwise([*bounds, len(rows)]):
        low, high = int(every[rows[start]]), int(every[rows[end - 1]])
        found[str(low) if low == high else f"{low} to {high}"] = np.sort(rows[start:end])
    return found
