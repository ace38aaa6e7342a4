"""The rule that names a mechanism, with its argument; tests/intervene/test_ground_truth.py has its ground truth.

**Where is the key?** A corrupted key makes the answer unlikely. At the input of a layer, everything that later layers
know about the key is at positions from the key on. They are of three kinds: the key itself, the positions *between* key
and query, and the *question* (from the query to the prediction). Each kind is replaced as a whole, so no position is
left out: *restoring* (a clean activation in the corrupted run) shows what is sufficient, and *destroying* (a corrupted
one in the clean run) what is necessary. Before the first layer, the key's identity is at the key; after the last, it
has become the answer, at the question. If it is found in between, some layer has stored it there.

**Where is the value?** The same with the value corrupted distinguishes *what* from *where*. The value is exchanged with
another one of the document, so that a particular other answer becomes right, and both symbols still occur. (Many
trained models retrieve a value and then check that the document has it; nothing changes for that check.) At the input
of a layer, everything is either at the question or before it, and one of the two is taken from the clean document. If
the question alone restores the clean answer, the value has been retrieved. If only what comes before it does, the
question holds a pointer to the pair, and a later layer fetches the value. If neither does, the answer needs both. What
a layer brings to the question whatever is asked has not been retrieved: all pairs are stored there for a later layer.

**How do they meet inside one layer?** If no layer stores the key, one layer takes it from the key to the question.
Inside it, some activation may hold the key's identity *between* key and query: something has moved it there before the
layer retrieves, by a short convolution or a shift, whatever it is called.

**What if the value comes first?** In reverse recall, or for a node's children, the value comes before the key. Then
the value may be moved to the key, rather than the key to the value, in a layer before the one that retrieves or inside
that one.

All this is about causal models: a model in which a changed token changes earlier positions is *undetermined*.

| key at the inputs of layers | value | name |
|---|---|---|
| key .., between .., question .. | reaches the question with the key | induction |
| key .., question .. | stands before the key, is at the key first | induction |
| key .., question .. | with the key, the same for any query | induction, stored at the query |
| key .., question .. | with the key; inside the layer, the key is between first | association by short convolution |
| key .., question .. | with the key; inside the layer, the key is nowhere between | direct retrieval |
| key .., question .. | with the key; inside the layer, the key is between first, and not needed there | redundant |
| .., question .. | later than the key | pointer |
| .., question .. | neither at the question nor before it by itself | jointly necessary |
| .., question .. | in part at the question, in part before it | mixed |
| elsewhere than at the key before the first layer, or at the question after the last | | undetermined |
| two kinds, each sufficient, neither necessary; or one, which is not necessary | | redundant |
| two kinds, both necessary, neither sufficient | | jointly necessary |
| two kinds, each in part | | mixed |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mecheval.errors import UserError
from mecheval.intervene.finding import SEVERAL, Finding, words
from mecheval.sites import Site
from mecheval.types import FRAMED, RANDOM, Meaning

KEY_FIRST = ("between", "key")
"""The role at which key and value meet inside a layer if the key comes first, and the corruption that shows it."""

ASKED = ("question", "query", "destroy")
"""Role, corruption and direction of the intervention that replaces the question by that for another query."""


def value_first(meaning: Meaning) -> tuple[str, str]:
    """Role and corruption, as in KEY_FIRST, if the value comes first and is moved to the key."""
    return meaning.key, "value"


class Cell(NamedTuple):
    """One intervention of the evidence."""

    site: str
    role: str
    corruption: str = "key"
    direction: str = "restore"


@dataclass(frozen=True)
class Rule:
    """The thresholds of the verdict."""

    learnt: float = 0.05  # smallest original minus corrupted likelihood at which there is something to explain
    carries: float = 0.5  # smallest share at which a place carries an identity, or is necessary
    trace: float = 0.2  # smallest share at which a place takes part in carrying it
    enough: float = 0.8  # smallest share at which a place alone is sufficient
    agreement: float = 0.95  # share of resamples that must give the same finding
    alone: float = 0.9  # share, of what all positions between key and query restore, that one alone must restore
    documents: int = 16  # smallest number of documents for a verdict; a quarter as many must count


@dataclass(frozen=True)
class Depths:
    """The sites that decide: the inputs of layers 1, 2, ..., and the sites that can be replaced inside every layer."""

    boundaries: tuple[str, ...]
    inside: tuple[tuple[str, ...], ...]
    layers: tuple[str, ...] = ()  # the layers' submodules, whose operations are searched if no site decides
    ends: tuple[str, ...] = ()  # input of the first and output of the last layer, if the model may have more

    @property
    def sites(self) -> list[str]:
        """All of these sites."""
        return [*self.boundaries, *(site for layer in self.inside for site in layer)] or [Site(0, "input", "stream")]


def depths_of(sites: Iterable[Site]) -> Depths:
    """The sites that decide among all sites of a model."""
    there = list(dict.fromkeys(sites))
    layers = 1 + max((site.block for site in there if site.block is not None), default=-1)
    if not layers:
        raise UserError("verdict: name the boundaries between layers; these sites are in no layer.")
    inputs = {site.block: site for site in there if site.kind == "stream" and site.part == "input"}
    inside = [
        tuple(site for site in there if site.block == i and site.kind in ("short_conv", "inside"))
        for i in range(layers)
    ]
    starts = [inputs.get(layer, Site(layer, "input", "stream")) for layer in range(layers)]
    return Depths(tuple(starts[1:]), tuple(inside), tuple(site.removesuffix(".input") for site in starts))


Shares = Mapping[Cell, float]
"""What each intervention restores or destroys, as a share of what the corruption loses; NaN if not measured."""


def held_at(share: Shares, site: str, rule: Rule, kinds: Sequence[str]) -> str:
    """The kind of positions that holds the key's identity at a site, or redundant, joint, mixed or undetermined."""
    restored = {kind: share[Cell(site, kind)] for kind in kinds}
    destroyed = {kind: share[Cell(site, kind, direction="destroy")] for kind in kinds}
    enough = [kind for kind in kinds if restored[kind] >= rule.enough]
    part = [kind for kind in kinds if restored[kind] >= rule.trace]
    if len(enough) > 1 and all(destroyed[kind] < rule.carries for kind in enough):
        return "redundant"
    needed = [kind for kind in kinds if destroyed[kind] >= rule.enough]
    if len(needed) > 1 and all(restored[kind] < rule.carries for kind in kinds):
        return "joint"
    if len(part) > 1:
        return "mixed"
    if not part or restored[part[0]] < rule.carries:
        return "undetermined"
    if destroyed[part[0]] >= rule.trace:
        return part[0]
    return "redundant" if enough else "mixed"  # it is not necessary: the others together can replace it


def route(share: Shares, depths: Depths, rule: Rule, meaning: Meaning = FRAMED) -> Finding | list[str]:
    """The kind of positions that holds the key at each boundary, or a finding if there is not exactly one."""
    outside = (
        (meaning.key, "before the first layer or passes around its input"),
        ("question", "after the last layer or passes around its output"),
    )
    for site, (kind, when) in zip(depths.ends, outside, strict=False):
        others = [share[Cell(site, other)] for other in meaning.kinds if other != kind]
        if not (share[Cell(site, kind)] >= rule.carries and max(others) < rule.trace):
            reason = f"the {words(meaning.key)} moves {when}, where the verdict does not look: name all layers"
            return Finding("undetermined", reason=reason)
    path = []
    for layer, site in enumerate(depths.boundaries, start=1):
        kind = held_at(share, site, rule, meaning.kinds)
        if kind == "undetermined":
            reason = f"at the input of layer {layer} no kind of positions holds the {words(meaning.key)}"
            return Finding("undetermined", reason=reason)
        if kind not in meaning.kinds:
            reason = f"at the input of layer {layer}, {SEVERAL[kind]}"
            enough = [each for each in meaning.kinds if share[Cell(site, each)] >= rule.enough]
            if kind == "redundant" and len(enough) == 1:
                key, query = words(meaning.key), words(meaning.query)
                held = f"the {key}", f"what lies between {key} and {query}", f"the {query}"
                alone = held[meaning.kinds.index(enough[0])]
                reason = f"at the input of layer {layer}, {alone} is enough, and so is the rest together"
            return Finding(kind, reason=reason)  # type: ignore[arg-type]
        path.append(kind)
    if path != sorted(path, key=meaning.kinds.index):
        return Finding("undetermined", reason=f"the {words(meaning.key)} seems to move back from layer to layer")
    return path


def value_at(share: Shares, site: str, rule: Rule) -> Literal["question", "body", "joint", "mixed"]:
    """Where the value's identity is at a site; "question" also if it could not be measured."""
    question, body = (share[Cell(site, role, "value")] for role in ("question", "body"))
    if question < rule.trace and body >= rule.carries:
        return "body"
    if body < rule.carries and question < rule.carries and question + body < rule.enough:
        return "joint"
    return "mixed" if body >= rule.trace else "question"


def retrieving(path: Sequence[str]) -> int:
    """The layer after which the key's identity is at the question."""
    return path.index("question") if "question" in path else len(path)


def judge(
    share: Shares, depths: Depths, rule: Rule, inner: str | None = None, meaning: Meaning = FRAMED, *,
    searched: int | None = None,
) -> Finding:  # fmt: skip
    """The mechanism behind these shares; `inner` is the site inside the retrieving layer that holds the key first.

    `searched` is the layer inside which such a site was looked for, if that is known: another rule than the one by
    which the evidence was measured may find another layer to retrieve.
    """
    path = route(share, depths, rule, meaning)
    if isinstance(path, Finding):
        return path
    layer = retrieving(path)
    for before, site in enumerate(depths.boundaries[:layer], start=1):
        if share[Cell(site, "question", "value")] >= rule.carries:
            key, value = words(meaning.key), words(meaning.value)
            reason = f"the {value} reaches the question in layer {before - 1}, before the {key} does in layer {layer}"
            return Finding("undetermined", reason=reason)
    fetches = layer
    for site in depths.boundaries[layer:]:  # where the question knows which pair is meant
        place = value_at(share, site, rule)
        if place == "question":
            break
        fetches += 1
        if place != "body":
            value, query = words(meaning.value), words(meaning.query)
            how = f"a part of the {value} is at the {query}, and a part is still before it"
            if place == "joint":
                how = f"the answer takes the {value} both at the {query} and before it"
            return Finding(place, reason=f"at the input of layer {fetches}, {how}", meaning=meaning)
    if fetches > layer:
        return Finding("pointer", layer=fetches, found_by=layer, meaning=meaning)
    rest = depths.boundaries[layer:]
    asked = (i for i, site in enumerate(rest) if not share.get(Cell(site, *ASKED), 1.0) < rule.trace)
    carried, layer = layer, layer + next(asked, len(rest))  # before that, the question gets the same for any query
    if "between" in path:
        stored_by = path.index("between")
        places, how = stores(share, depths.boundaries[stored_by], rule, meaning)
        first = places[0] if places else "others"
        return Finding("induction", layer, stored_by, first, places=places, how=how, meaning=meaning)
    if layer > carried:
        return Finding("induction", layer, carried, meaning.query, meaning=meaning)
    at_key = value_first(meaning)
    for stored_by, site in enumerate(depths.boundaries[:layer]):
        there = share.get(Cell(site, *at_key), 0.0)
        if there >= rule.enough:
            return Finding("induction", layer, stored_by, meaning.key, meaning=meaning)
        if there >= rule.trace:
            part = f"a part of the {words(meaning.value)} is at the {words(meaning.key)}, and a part is not"
            return Finding("mixed", reason=f"at the input of layer {stored_by + 1}, {part}", meaning=meaning)
    if searched not in (None, layer):
        reason = f"layer {layer} retrieves, but the evidence was measured inside layer {searched}: measure it again"
        return Finding("undetermined", reason=reason)
    if inner is None:
        return Finding("direct_retrieval", layer)
    ways = [cell for cell in (Cell(inner, *KEY_FIRST), Cell(inner, *at_key)) if share.get(cell, 0.0) >= rule.trace]
    if not ways:
        return Finding("direct_retrieval", layer)
    meets = max(ways, key=share.__getitem__)
    from_value = (meets.role, meets.corruption) == at_key
    key, value, query = (words(role) for role in (meaning.key, meaning.value, meaning.query))
    where = f"the {value} at the {key}" if from_value else f"the {key} between {key} and {query}"
    if share[meets] >= rule.enough and share.get(meets._replace(direction="destroy"), 1.0) < rule.trace:
        reason = f"inside layer {layer}, {where} is enough, yet it is not needed: the layer also retrieves without it"
        return Finding("redundant", reason=reason)
    if share[meets] >= rule.enough:
        places, how = ((meaning.key,), "") if from_value else stores(share, inner, rule, meaning)
        return Finding("conv_association", layer, places=places, how=how, meaning=meaning)
    return Finding("undetermined", reason=f"inside layer {layer}, {where} is only a part of what it retrieves by")


def stores(
    share: Shares, site: str, rule: Rule, meaning: Meaning
) -> tuple[tuple[str, ...], Literal["", "either", "split", "joint"]]:
    """The roles between key and query that hold the key at a site, and how they share the work."""
    if (alone := stores_alone(share, site, rule, meaning)) is not None:
        return alone
    needed = {cell.role: value for cell, value in share.items()
              if cell.site == site and (cell.corruption, cell.direction) == ("key", "destroy")
              and cell.role not in _no_store(meaning) and value >= rule.carries}  # fmt: skip
    return tuple(sorted(needed, key=lambda role: -needed[role])), "joint"


def stores_alone(
    share: Shares, site: str, rule: Rule, meaning: Meaning
) -> tuple[tuple[str, ...], Literal["", "either", "split"]] | None:
    """The same if single roles restore enough; None if only destroying each of them can tell."""
    whole = share[Cell(site, "between")]
    alone = {cell.role: value / whole for cell, value in share.items()
             if cell.site == site and (cell.corruption, cell.direction) == ("key", "restore")
             and cell.role not in _no_store(meaning) and value == value}  # fmt: skip
    ranked = sorted(alone, key=lambda role: -alone[role])
    enough = [role for role in ranked if alone[role] >= rule.alone]
    if enough:
        return tuple(enough), "either" if len(enough) > 1 else ""
    part = [role for role in ranked if alone[role] >= rule.trace / 2]
    return (tuple(part), "split") if sum(alone[role] for role in part) >= rule.enough else None


def _no_store(meaning: Meaning) -> tuple[str, ...]:
    """Roles that are no places between key and query."""
    return (*meaning.kinds, meaning.query, RANDOM)
