"""A table of effects that can draw itself."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mecheval.lazy import later


class Effects(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A pandas DataFrame with a row for each site and role, except that `plot` draws a map.

    Selecting and adding rows or columns gives `Effects` again, with the evidence that `verdict` needs.
    """

    @property
    def _constructor(self) -> type[Effects]:
        return Effects

    def plot(self, title: str = "What each site restores, by role") -> Any:
        """The `mecheval.figures.Chart` of the effects that `mecheval.heatmap` draws; notebooks show it.

        `effects.plot().save("map.svg")` writes a file. For the plots of pandas itself, use
        `pd.DataFrame(effects).plot()`.
        """
        return later("figures.heatmap.heatmap")(self, title)
