"""A verdict from the rows of a table of effects, for tables whose documents are not at hand.

The rule needs more than a map shows. A table has it, for example, if it comes from two grids:

    kinds = ["key", "between", "question"]
    keys = me.interchange(lm, clean, task.corrupt(clean), roles=kinds, direction="both")
    values = me.interchange(lm, clean, task.corrupt(clean, kind="value"), roles=["question", "body"])
    me.verdict(pd.concat([keys, values]))

At the input of the first layer and at the output of the last one the rows show that no layer is missing. Means have no
intervals, and the likelihood of a guess is not among them, so `me.verdict(lm, clean, corrupted)` knows more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.intervene.finding import Finding
from mecheval.intervene.mechanism import ASKED, KEY_FIRST, Cell, Depths, Rule, depths_of, judge, retrieving, route
from mecheval.intervene.sentences import Verdict
from mecheval.sites import Site, sites_in
from mecheval.types import FRAMED

if TYPE_CHECKING:
    import pandas as pd

MORE = "me.verdict(lm, clean, corrupted) makes the interventions that decide"


def judged_from_rows(effects: pd.DataFrame, rule: Rule) -> Verdict:
    """The rule's verdict on mean effects, or an error that names the first row that is missing."""
    import numpy as np

    names = [*Cell._fields, "share", "original", "corrupted"]
    if lacking := [name for name in names if name not in effects]:
        raise UserError(f"verdict: this table lacks the columns {', '.join(lacking)}; {MORE}.")
    kept = effects[names].drop_duplicates(list(Cell._fields))
    share = {Cell(*cell): value for *cell, value in kept[names[:5]].itertuples(index=False)}
    keys = kept[kept["corruption"] == "key"]
    original, corrupted = float(keys["original"].max()), float(keys["corrupted"].min())
    shares = kept[names[:5]].assign(low=np.nan, high=np.nan).reset_index(drop=True)
    said = (f"The answer has likelihood {original:.2f}, and {corrupted:.2f} with the key corrupted.",
            "Judged from the rows of a table: without intervals, and without comparison with a guess.")  # fmt: skip
    n = 0 if "n" not in effects or effects["n"].isna().all() else int(effects["n"].max())
    found = _finding(share, sites_in(effects), original - corrupted, rule)
    return Verdict(found, None, shares, said, n=n, original=original, corrupted=corrupted)


def _finding(share: dict[Cell, float], sites: list[Site], gap: float, rule: Rule) -> Finding:
    own = depths_of(sites)
    last = len(own.layers) - 1
    depths = Depths(own.boundaries, own.inside, own.layers, (str(Site(0, "input")), str(Site(last, "output"))))
    wanted = [Cell(site, kind) for site in (*depths.ends, *depths.boundaries) for kind in FRAMED.kinds]
    wanted += [Cell(site, kind, direction="destroy") for site in depths.boundaries for kind in FRAMED.kinds]
    wanted += [Cell(site, role, "value") for site in depths.boundaries for role in ("question", "body")]
    if missing := [cell for cell in wanted if cell not in share]:
        role, site = missing[0].role, missing[0].site
        which = f"{missing[0].direction}, {missing[0].corruption} corrupted"
        raise UserError(f"verdict: this table lacks role {role} at {site} ({which}), which the rule needs; {MORE}.")
    if not gap >= rule.learnt:
        return Finding("not_learnt", reason=f"the key makes a difference of {gap:.2f}")
    path = route(share, depths, rule)
    if isinstance(path, Finding) or "between" in path:
        return judge(share, depths, rule)
    layer = retrieving(path)
    inside = {site: share[cell] for site in depths.inside[layer] if (cell := Cell(site, *KEY_FIRST)) in share}
    if not inside:
        raise UserError(f"verdict: this table lacks role between inside layer {layer}; {MORE}.")
    there = {site: part for site, part in inside.items() if part >= rule.trace}
    enough = next((site for site, part in there.items() if part >= rule.enough), None)
    inner = enough or max(there, key=there.__getitem__, default=None)
    found = judge(share, depths, rule, inner)
    asked = [site for site in depths.boundaries[layer:] if Cell(site, *ASKED) not in share]
    if found.label in ("direct_retrieval", "conv_association") and asked:
        reason = f"the table does not say what layers before {asked[0]} bring to the question for another query"
        return Finding("undetermined", reason=reason)
    return found
