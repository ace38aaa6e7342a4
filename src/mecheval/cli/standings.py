"""All mixers at a scale, as a picture and a table; and what the scale laptop is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from mecheval.cli.app import aside, console, line, loading, note, print_json
from mecheval.cli.clean import write
from mecheval.cli.drawings import draw, write_chart
from mecheval.cli.options import Scale, StorePath
from mecheval.cli.show import formatted, plain_table, records, score
from mecheval.errors import UserError
from mecheval.store import DEFAULT_STORE
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd
    from rich.table import Table

TITLES = {"paper": "Every mixer at the paper's size", "laptop": "Every mixer at scale laptop"}
TASKS = {"ar": "pairs (AR)", "atr": "trees (ATR)"}
BELOW = (
    "Means over seeds on test, at the learning rate that is best on dev; intervals of 95 % hold documents and seeds. "
    "n: seeds. Restored: where a clean input of layer 1 brings back most of what the corruption loses, and its share."
)
WORTH = (
    "Correlation: of the ranks of the likelihoods (Spearman). Who recalls: settings of which both scales say alike "
    "whether they learnt. Where: of those that learnt at both, settings with the same verdict. In brackets: "
    "95 % intervals."
)


@draw.command("mixers")
def draw_mixers(
    scale: Scale = "paper",
    store: StorePath = Path(DEFAULT_STORE),
    save: Annotated[Path, typer.Option(help="File to write: .svg, .pdf, .png, .html or .json.")] = Path("mixers.svg"),
) -> None:
    """Draw every mixer by its likelihood on pairs and on trees, marked by its mechanisms."""
    with loading():
        from mecheval import figures
        from mecheval.figures.mixers import mixers
        from mecheval.paper.standings import panels

    figures.check_suffix(save)
    write_chart(mixers(panels(_standings(store, scale), scale), TITLES[scale]), save)


def show_mixers(store: Path, scale: str, kind: str | None) -> None:
    """Print how every mixer stands at a scale."""
    frame = _standings(store, scale)
    if frame.empty:
        raise UserError(
            f"there are no finished runs at scale {scale}; `mecheval study newer --scale {scale}` makes some"
            f"{', and --scale paper shows the published ones' * (scale != 'paper')}."
        )
    if kind == "json":
        print_json(records(frame))
    elif kind is not None:
        write(formatted(frame, kind))
    else:
        for task, own in frame.groupby("task", sort=False):
            console.print(f"\n{TITLES[scale]}: {TASKS[str(task)]}", style="bold", markup=False)
            console.print(_table(own))
        note(BELOW)


def show_scales(store: Path, scale: str, kind: str | None) -> None:
    """Print how far the scale laptop agrees with the paper's size."""
    with loading():
        from mecheval.paper.agreement import agreement, beside, differences, laptop

    small, large = laptop(), _standings(store, "paper")
    found = agreement(small, large)
    if kind == "json":
        print_json({"agreement": records(found), "settings": records(beside(small, large))})
        return
    if kind is not None:
        write(formatted(found, kind))
        return
    console.print("\nWhat the scale laptop says about the paper's size", style="bold", markup=False)
    console.print(_agreement(found))
    differing = differences(beside(small, large))
    if differing:
        line("\nThe verdicts differ, with the likelihoods, on:")
    for sentence in differing:
        line(f"  {sentence}")
    note(WORTH)


SHOWN = {"mixers": show_mixers, "scales": show_scales}
"""What `mecheval compare` shows beside studies."""


def _standings(store: Path, scale: str) -> pd.DataFrame:
    with loading():
        from mecheval.errors import UnknownName
        from mecheval.paper.standings import standings
        from mecheval.store import Published
        from mecheval.studies import SCALES

    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES)
    with aside.status("reading"):
        return standings(Published(store), scale)


def words(verdicts: str) -> str:
    """Verdicts as prose writes them."""
    return verdicts.replace("conv_association", "short convolution").replace("_", " ")


def _table(own: pd.DataFrame) -> Table:
    """The mixers of one task."""
    heads = ("mixer", "d", "acc", "likelihood [95 %]", "restored", "verdict", "n")
    table = plain_table(heads, ("mixer", "restored", "verdict"), ("verdict",), gap=1)
    for row in own.to_dict("records"):
        place = f"{row['restored_at']} {row['share']:.2f}" if row["share"] == row["share"] else MISSING
        name, verdict = row["setting"].replace("+", "+\n"), words(row["verdicts"])
        cells = (name, row["d_model"], score(row["accuracy"]), _within(row, "likelihood"), place, verdict, row["seeds"])
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table


def _agreement(found: pd.DataFrame) -> Table:
    """The agreement of two scales."""
    heads = ("task", "d", "settings", "n", "correlation", "who recalls", "where")
    table = plain_table(heads, ("task", "settings"), ("settings",), gap=1)
    for row in found.to_dict("records"):
        shares = [f"{row[f'{name}_hits']} of {row[f'{name}_of']}\n{_ends(row, name)}" for name in ("recalls", "stored")]
        ranks = MISSING if row["correlation"] != row["correlation"] else f"{row['correlation']:.2f}"
        cells = (TASKS[row["task"]], str(row["d_model"]), row["group"], str(row["settings"]),
                 f"{ranks}\n{_ends(row, 'correlation')}", *shares)  # fmt: skip
        table.add_row(*map(Text, cells))
    return table


def _within(row: dict[str, Any], name: str) -> str:
    """A number with its interval."""
    return f"{row[name]:.3f} {_ends(row, name)}".strip()


def _ends(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"[{low:.2f}, {high:.2f}]" if low == low else ""
