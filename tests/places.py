"""Sites by their usual names, and made-up tables of effects with the columns that a stored table has."""

from __future__ import annotations

import re

import pandas as pd

from mecheval.sites import Kind, Site
from mecheval.types import SHORT_CONVOLUTIONS


def site(name: str) -> Site:
    """The site of an LM that has this name, or one outside of all layers."""
    found = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    if found is None:
        return Site(None, name)
    short = found[2].rpartition(".")[2] in SHORT_CONVOLUTIONS
    kind: Kind = "short_conv" if short else "stream" if found[2] in ("input", "output") else "inside"
    return Site(int(found[1]), found[2], kind)


def located(effects: pd.DataFrame) -> pd.DataFrame:
    """The same table with columns block, part and kind."""
    sites = [site(name) for name in effects["site"]]
    return effects.assign(**{name: [getattr(each, name) for each in sites] for name in ("block", "part", "kind")})
