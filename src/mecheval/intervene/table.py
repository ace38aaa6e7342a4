"""A table of effects that can draw itself."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mecheval.lazy import later


class Effects(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A row for each site and role: a pandas DataFrame in everything but `plot`.

    Selecting and adding rows or columns gives `Effects` again, with the evidence that `verdict` needs.
    """

    @property
    def _constructor(self) -> type[Effects]:
        return Effects

    def plot(self, title: str = "What each site restores, by role") -> Any:
        """The `mecheval.figures.Chart` that `mecheval.heatmap` draws of the effects; notebooks show it.

        `effects.plot().save("map.svg")` writes a file. Plots of pandas' own are those of a plain table:
        `pd.DataFrame(effects).plot()`.
        """
        return later("figures.heatmap.heatmap")(self, title)
