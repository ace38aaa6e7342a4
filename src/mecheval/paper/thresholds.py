"""Every limit that a comparison with the paper rests on, in one place: fixed before any result was seen."""

from __future__ import annotations

TOLERANCE = 0.05
"""A number of ours agrees with the paper's within this.

The paper has one seed and 320 documents: the standard error of a likelihood near 0.9 is 1.7 points, of the difference
of two such numbers 2.4 points, and 5 points are about two of those. How far seeds lie apart the paper does not say.
"""
TIE = 0.02
"""Two numbers of ours that differ by less are level: about one standard error of 320 documents near 0.9."""
LEARNT = 0.1
"""A run learnt to recall where original - corrupted is above this; where it is not, there is nothing to restore."""
RESTORED = 0.5
"""Share of (original - corrupted) from which a place counts as the one that restores a run."""
BENEFITS = 0.2
"""Share below which an intervention does not help: stricter than RESTORED, for claims that say "none"."""
NEAR_FLOOR = 0.05
"""How far above guessing an accuracy may be and still count as a failure.

The paper's "near zero" holds guessing among the values of the document, 1 in 16 there.
"""
SUCCEEDS = 0.5
"""Share of the way from guessing to 1 from which a model counts as one that can do the task."""
STEP = 0.5
"""Share of what the whole convolution gains over guessing that a step change gains at once."""
WELL_ABOVE_ZERO = 0.1
"""Corrupted likelihood on trees: twice what guessing among 20 terminals gives."""
MOST = 0.9
"""The paper's "9 of 10"; at a smaller scale there are too few runs for that, and most is more than half."""
