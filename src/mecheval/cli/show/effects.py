"""Effects of interventions, sweeps over states, verdicts and explained documents in a terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mecheval.cli.show import plain_table, records
from mecheval.figures.heatmap import arranged, direction_of, in_depth, label, quantity
from mecheval.figures.states import HALF, aligned, entered, named, reached, spelt
from mecheval.figures.vegalite import RAMP, WHITE_FROM
from mecheval.intervene import Verdict
from mecheval.intervene.explain import Answers, Explanation
from mecheval.intervene.finding import words
from mecheval.sites import Site, sites_in
from mecheval.types import FRAMED, MISSING, Meaning, spoken

if TYPE_CHECKING:  # slow to import
    import pandas as pd

ENDS = ("input", "output")
"""Sites at the ends of a block."""
PARTS = (*ENDS, "mixer.input", "mixer.output", "mlp.input", "mlp.output")
"""Sites at the ends of a block and of its parts."""
WIDEST, NARROWEST = 9, 6
"""Largest and smallest width of a cell of the map in characters, including the space after it."""
FAINT, STRONG = 0.05, 0.5
"""Smallest numbers that are coloured, and that are also bold."""
BRIGHTEST = 3
"""Step of the colour ramp for 1 on a dark background; paler steps look white."""
RIGHT = "✓"
BARS = "▁▂▃▄▅▆▇█"
"""Shares from 0 to 1 as bars."""
MARGIN = 10
"""Characters before the bars."""


def among(sites: Iterable[Site], names: Sequence[str]) -> list[Site]:
    """The sites with one of these names inside their layer, and the outputs of short convolutions."""
    return [site for site in sites if site.part in names or site.kind == "short_conv"]


def run_text(run: str, title: str, about: str, evaluation: Mapping[str, Any] | None) -> Text:
    """The run's id and title, and its scores if they were measured."""
    text = Text.assemble((title, "bold"), f"\nrun {run}, {about}")
    if evaluation is None:
        return text
    return text.append(f": accuracy {evaluation['accuracy']:.3f}, likelihood {evaluation['likelihood']:.3f}")


def effects_text(effects: pd.DataFrame, meaning: Meaning = FRAMED) -> Text:
    """What the numbers of the map mean, in the words of the task."""
    whole = effects.sort_values("n").iloc[-1]  # not every document has every role
    before = f"{whole['original']:.3f}"
    if quantity(effects) == "drop":
        return Text(f"The likelihood of the answer is {before}. Drop: how much of it is lost by one edit.")
    after = f"{whole['corrupted']:.3f}"
    corruption = str(effects["corruption"].iloc[0]) if "corruption" in effects else "key"
    done, destroys = meaning.done(corruption), direction_of(effects) == "destroy"
    shown = quantity(effects)
    lost = f"With {done}, the likelihood of the answer falls from {before} to {after}. "
    if shown == "hits":
        return Text(
            f"{lost}Interchange accuracy: in what share of the clean documents patching in one activation of the "
            "swapped document makes the model give the swapped document's answer."
        )
    if shown == "share":
        said = (
            "Destroyed share: how much of this loss patching one corrupted activation into the clean document causes."
            if destroys
            else "Restored share: how much of this loss patching in one clean activation undoes."
        )
        return Text(lost + said)
    return Text(
        f"The task is not learnt: the likelihood of the answer is {before}, and {after} with {done}, so "
        f"there is nothing to {'destroy' if destroys else 'restore'}. The map shows the likelihood after patching in "
        f"one {'corrupted' if destroys else 'clean'} activation."
    )


def effects_table(effects: pd.DataFrame, width: int = 80) -> Table:
    """The map: sites by depth, roles across; the restored share, or the likelihood where nothing is learnt."""
    frame = arranged(effects)
    sites, roles = in_depth(sites_in(effects)), frame["role"].unique()
    value = dict(zip(zip(frame["site"], frame["role"], strict=True), frame[quantity(effects)], strict=True))
    cell = max(NARROWEST, min(WIDEST, (width - _margin(sites)) // len(roles)))
    rows = [(site, [_number(value.get((site, role), math.nan), cell) for role in roles]) for site in sites]
    return _layered([Text(_centred(role, cell)) for role in roles], rows, cell)


def verdict_text(found: Verdict) -> Group:
    """The mechanism in words, and below it the evidence, sentence by sentence."""
    evidence = Table.grid(padding=(0, 1))
    if found.agreement is not None:
        evidence.add_row("-", Text(f"Same verdict in {100 * found.agreement:.4g} % of bootstrap resamples."))
    for sentence in found.evidence:
        evidence.add_row("-", Text(sentence))
    return Group(Text(f"Verdict: {found.finding}", "bold"), evidence)


def by_fact_text(found: Mapping[str, Verdict], fact: str, meaning: Meaning, n_layers: int) -> Group:
    """For each group of documents what the kinds of positions restore at the inputs of layers, and the verdict."""
    inputs = {layer: str(Site(layer, "input", "stream")) for layer in range(1, n_layers)}
    places = [(site, kind) for site in inputs.values() for kind in meaning.kinds]
    named = [words(meaning.key), "between", words(meaning.query)]
    heads = [f"layer {layer}\n{name}" if n_layers > 2 else name for layer in inputs for name in named]
    table = plain_table([fact, "documents", "original", "corrupted", *heads], [fact])
    verdicts = Table.grid(padding=(0, 1))
    for value, each in found.items():
        restored = each.shares.query("corruption == 'key' and direction == 'restore'")
        share = dict(zip(zip(restored["site"], restored["role"], strict=True), restored["share"], strict=True))
        shares = (share.get(place, math.nan) for place in places)
        table.add_row(value, str(each.n), f"{each.original:.3f}", f"{each.corrupted:.3f}", *map(label, shares))
        verdicts.add_row(Text(f"{value}:", "bold"), Text(str(each.finding)))
    where = " and ".join(inputs.values())
    head = f"The likelihood of the answer by {fact}, and with the {words(meaning.key)} corrupted"
    head += f"; and what share of this loss clean activations at {where} restore." if inputs else "."
    return Group(Text(head), "", table, "", verdicts)


def verdict_data(found: Verdict) -> dict[str, Any]:
    """A verdict as plain data."""
    return {
        **asdict(found.finding), "summary": str(found.finding), "agreement": found.agreement,
        "evidence": list(found.evidence), "shares": records(found.shares),
    }  # fmt: skip


def substitution_text(explained: Explanation) -> Text:
    """What the corruption changed, and the model's answers to both documents."""
    text = Text(f"Corrupted: {explained.substitute} in place of the {spoken(explained.role)} {explained.key}.")
    for name, answers in (("clean", explained.clean), ("corrupted", explained.corrupted)):
        text.append(f"\n{name:>11}: ").append_text(Text("  ").join(_said(answers)))
    return text


def patched_tables(explained: Explanation, width: int = 80) -> Iterator[Table]:
    """The model's answers after each intervention: sites by depth, roles across, as many in a table as fit."""
    said = {(each.site, each.role): _said(each.answers) for each in explained.patched}
    sites = list(dict.fromkeys(site for site, _ in said))
    places = {each.role: MISSING if each.position is None else each.position for each in explained.patched}
    heads = {role: Text(f"{role} @{place}") for role, place in places.items()}
    cell = 2 + max(line.cell_len for lines in (*said.values(), heads.values()) for line in lines)
    fit = max(1, (width - _margin(sites)) // cell)
    roles = list(heads)
    for part in (roles[first : first + fit] for first in range(0, len(roles), fit)):
        rows = [(site, [Text("\n").join(said[site, role]) for role in part]) for site in sites]
        yield _layered([heads[role] for role in part], rows, cell)


def _layered(heads: Sequence[Text], rows: Iterable[tuple[Site, Sequence[Text]]], cell: int) -> Table:
    """A row for each site, under the number of its layer."""
    table = Table(box=None, pad_edge=False, padding=0, header_style="bold")
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, width=cell, overflow="fold")
    before = None
    for site, cells in rows:
        if site.block is not None and site.block != before:
            table.add_row(Text(f"layer {site.block}", "bold"))
        before = site.block
        table.add_row(Text(f" {site.part} "), *cells)
        if any("\n" in each.plain for each in cells):
            table.add_row("")
    return table


def _margin(sites: Iterable[Site]) -> int:
    """Width in characters of the column with the names of sites."""
    return 2 + max(len(site.part) for site in sites)


def _number(value: float, width: int) -> Text:
    return Text(_centred(label(value), width), _shade(value))


def _centred(text: str, width: int) -> str:
    """Centred text; an odd space goes to the left, so that neighbours do not touch."""
    return text.rjust((width + len(text) + 1) // 2).ljust(width)


def _said(answers: Answers) -> list[Text]:
    """A line for each answer, the right one marked."""
    wide = max((len(each.symbol) for each in answers), default=0)
    lines = [(each, f"{each.symbol:<{wide}} {label(each.p)}") for each in answers]
    return [
        Text.assemble((line, _shade(each.p)), f" {RIGHT}") if each.right else Text(line) for each, line in lines
    ] or [Text(MISSING)]  # fmt: skip


def _shade(value: float) -> str:
    """A style for a number from 0 to 1: the larger it is, the more it stands out from the terminal's background.

    Few terminals report their background (COLORFGBG). Others are taken as dark; text is readable on light ones, too,
    because its own colour is set.
    """
    strength = 0.0 if math.isnan(value) else min(1.0, max(0.0, value))
    if strength < FAINT:
        return ""
    light = os.environ.get("COLORFGBG", "").endswith((";7", ";15"))
    darkest = len(RAMP) - 1
    step = round(strength * darkest if light else darkest - strength * (darkest - BRIGHTEST))
    text = "#ffffff" if step >= WHITE_FROM else "#000000"
    return f"{'bold ' if strength >= STRONG else ''}{text} on {RAMP[step]}"


def sweep_text(swept: pd.DataFrame, meaning: Meaning = FRAMED) -> Text:
    """What the numbers of a sweep mean, in the words of the task."""
    whole = swept.sort_values("n").iloc[-1]
    done = meaning.done(str(whole["corruption"]))
    before, after = f"{whole['original']:.3f}", f"{whole['corrupted']:.3f}"
    if swept["share"].isna().all():
        return Text(
            f"The task is not learnt: the likelihood of the answer is {before}, and {after} with {done}, so there is "
            "nothing to restore."
        )
    start = spoken(aligned(swept))
    return Text(
        f"With {done}, the likelihood of the answer falls from {before} to {after}. Restored share: how much of this "
        f"loss the clean state of one layer undoes, put in after each position, counted from the {start}."
    )


def sweep_table(swept: pd.DataFrame, roles: Mapping[str, int], width: int = 80) -> Group:
    """The share at every offset as bars, a line a layer; below it as numbers where a position has a name."""
    along = reached(swept)
    offsets = sorted(int(offset) for offset in along["offset"].unique())[: max(1, width - MARGIN)]
    bars, letters = Table.grid(padding=(0, 1)), _letters(offsets, roles)
    bars.add_row("", letters)
    table = plain_table(["layer", *(numbers := named(swept, roles)).columns], gap=1)
    for layer, row in numbers.iterrows():
        share = along[along["layer"] == layer].set_index("offset")["share"]
        bars.add_row(f"layer {layer}", "".join(_bar(float(share.get(offset, math.nan))) for offset in offsets))
        table.add_row(str(layer), *(label(value) for value in row))
    legend = ", ".join(f"{role[0]} {role}" for role, at in roles.items() if at in offsets)
    ends = " to ".join(spelt(offset, {}, aligned(swept)) for offset in (offsets[0], offsets[-1]))
    return Group(bars, Text(f"({ends}; {legend})"), Text(""), table)


def _letters(offsets: Sequence[int], roles: Mapping[str, int]) -> str:
    """The first letter of each role above its offset."""
    at = {offset: role[0] for role, offset in roles.items()}
    return "".join(at.get(offset, " ") for offset in offsets)


def sweep_summary(swept: pd.DataFrame, roles: Mapping[str, int]) -> Group:
    """A sentence for each layer: where what was corrupted enters its state, and whether it stays."""
    lines = []
    [landmark, *_] = swept.loc[swept["role"] != aligned(swept), "role"].unique()
    end = swept[swept["role"] == landmark].set_index("layer")["share"]
    for layer, found in entered(swept).items():
        if found is None:
            lines.append(Text(f"layer {layer}: its clean state alone never restores half of the loss."))
            continue
        offset, share = found
        place = spelt(offset, roles, aligned(swept))
        last = float(end.get(layer, math.nan))
        stays = "stays in it" if last >= HALF else "is no longer needed there"
        lines.append(
            Text(
                f"layer {layer}: what was corrupted enters the state at {place} (share {label(share)}) "
                f"and {stays} ({landmark} {label(last)})."
            )
        )
    return Group(*lines)


def _bar(share: float) -> str:
    return " " if math.isnan(share) else BARS[round(min(1.0, max(0.0, share)) * (len(BARS) - 1))]
