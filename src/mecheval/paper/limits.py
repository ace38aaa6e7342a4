"""Every limit that a claim of the paper rests on (docs/studies.md says what was known when they were fixed)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The two limits that are varied, to see which outcomes depend on them."""

    tolerance: float = 0.1
    """A number of ours agrees with the paper's if the two differ by less than this, and an accuracy is near zero if it
    is at most as far above guessing.

    The paper has one seed and 320 documents. Near 0.9 the standard error of the difference of two such runs is about 4
    points, of which 2.4 come from the documents: a smaller difference would mean nothing. The paper's "near zero"
    includes guessing among the values of the document, which is right in 1 of 16 cases there.
    """
    lost: float = 0.01
    """Where a run stores and retrieves can be measured if the corruption loses it more likelihood than this.

    It is the paper's own filter, and says nothing about success: a run near zero may lose more. Whether a run can do
    the task, or fails, is told by its accuracy alone.
    """

    def __str__(self) -> str:
        """In what they differ from the usual ones."""
        tolerance, lost = f"a tolerance of {100 * self.tolerance:g} points", f"a loss above {100 * self.lost:g} points"
        return " and ".join([tolerance] * (self.tolerance != USUAL.tolerance) + [lost] * (self.lost != USUAL.lost))


USUAL = Limits()
OTHERS = (Limits(lost=0.05), Limits(lost=0.1), Limits(tolerance=0.05))
"""The limits with which every claim is judged again."""
TIE = 0.02
"""A mixer is unbeaten if no other is better by more than this."""
RESTORED = 0.5
"""Share of (original - corrupted) from which a place counts as the one that restores a run."""
BENEFITS = 0.2
"""Restored share below which an intervention does not help: stricter than RESTORED, for claims that say "none"."""
SUCCEEDS = 0.5
"""Share of the way from guessing to 1 from which a model counts as one that can do the task."""
FULLY = 0.95
"""Accuracy from which a model solves the task fully: Based's lowest in the paper is above it, Mamba's highest below."""
PERFORMS = 0.1
"""Loss of likelihood by the corruption from which a model performs: 10 of figure 5's do, as the paper counts."""
STEP = 0.5
"""Share of what the whole convolution gains over guessing that a step change must gain at once."""
ABOVE_80 = 0.8 - USUAL.tolerance
"""Accuracy that agrees with the paper's "above 80 %"."""
WELL_ABOVE_ZERO = 0.1
"""Corrupted likelihood on trees that counts as high: twice what guessing among 20 terminals gives."""
MOST = 0.5
"""Share of runs that "most" exceeds."""
DOCUMENTS = 320
"""Test documents of the paper."""
