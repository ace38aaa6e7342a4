"""The command that compares our results with the paper's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli import standings
from mecheval.cli.app import app, aside, console, loading, print_json
from mecheval.cli.clean import write
from mecheval.cli.drawings import Save, draw, write_chart
from mecheval.cli.options import AllSeeds, AsJson, Scale, StorePath
from mecheval.cli.show import format_of, formatted
from mecheval.cli.studies import ALL
from mecheval.errors import UnknownName, UserError
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.paper import Compared

TABLES = ("cells", "patterns", "arms", "claims")


@app.command(short_help="Compare a study with the paper's numbers and claims.")
def compare(
    study: Annotated[
        str,
        typer.Argument(metavar="STUDY", help="A study of `mecheval list studies`, or all; or mixers, or scales."),
    ],
    scale: Scale = "laptop",
    seeds: AllSeeds = None,
    table: Annotated[str | None, typer.Option(help="Show only this table: cells, patterns, arms or claims.")] = None,
    store: StorePath = Path(DEFAULT_STORE),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the claims, or --table, in Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the claims, or --table, in LaTeX.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: cells, or claims if there are no cells.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a study with the paper: its numbers, and which of the paper's claims our results support.

    `mixers` compares all mixers at a scale instead, and `scales` the scale laptop with the paper's size: how often it
    says the same about who recalls, and about where the key is stored.
    """
    with loading():
        from mecheval import studies
        from mecheval.cli.show.studies import comparison_parts
        from mecheval.paper import compare_studies
        from mecheval.store import Published

    kind = format_of(csv=csv, json=as_json, latex=latex, markdown=markdown)
    if study in standings.SHOWN:
        if table is not None or seeds is not None:
            raise UserError(f"--{'table' if table is not None else 'seeds'} is for a study, and not for {study}.")
        standings.SHOWN[study](store, scale, kind)
        return
    study = studies.study_name(study)
    if study not in (*studies.PAPER, ALL):
        raise UnknownName("study", study, (*studies.PAPER, ALL, *standings.SHOWN))
    if table not in (None, *TABLES):
        raise UnknownName("table", str(table), TABLES)
    with aside.status("reading"):
        names = studies.PAPER if study == ALL else [study]
        compared = compare_studies(names, Published(store), scale, seeds)
    if as_json:
        print_json([_data(one, scale, table) for one in compared])
    elif kind is not None and (csv or table not in (None, "claims")):
        write(formatted(_frame(compared, table), kind))
    elif kind is not None:
        write(_claims(compared, kind))
    else:
        for one in compared:
            for part in comparison_parts(one, scale, table, console.width):
                console.print(part)


def _tables(one: Compared) -> dict[str, pd.DataFrame]:
    import pandas as pd

    claims = pd.DataFrame(map(asdict, one.claims))
    arms = one.arms.settings if one.arms else pd.DataFrame()
    return {"cells": one.comparison.cells, "patterns": one.comparison.patterns, "arms": arms, "claims": claims}


def _data(one: Compared, scale: str, table: str | None) -> dict[str, Any]:
    """A study as plain data."""
    from mecheval.cli.show import records

    settings = {
        task: {"ours": setting.describe(), "paper": type(setting).paper(task).describe()}
        for task, setting in one.settings.items()
    }
    runs = {str(status): int(n) for status, n in one.table.frame["status"].value_counts().items()}
    tables = {name: records(frame) for name, frame in _tables(one).items() if table in (None, name)}
    said = {"agreement": one.comparison.agreement, "arms_said": one.arms.said} if one.arms else {}
    return {"study": one.table.study.name, "scale": scale, "settings": settings, "runs": runs, **said, **tables}


def _claims(compared: list[Compared], kind: str) -> str:
    """The claims that were tested, one per row, then how many have which outcome."""
    from mecheval.paper import claims_frame, counted

    claims = [claim for one in compared for claim in one.claims]
    return f"{formatted(claims_frame(claims), kind)}\n{'% ' * (kind == 'latex')}{counted(claims)}\n"


def _frame(compared: list[Compared], table: str | None) -> pd.DataFrame:
    """One table of all studies, with the study in its first column."""
    import pandas as pd

    name = table or ("cells" if any(len(one.comparison.cells) for one in compared) else "claims")
    frame = pd.concat([_tables(one)[name].assign(study=one.table.study.name) for one in compared])
    columns = ["study", *(column for column in frame.columns if column != "study")]
    return frame.reindex(columns=columns)


@draw.command("paper")
def draw_paper(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="ar (figure 3) or atr (figure 7).")] = "ar",
    scale: Scale = "paper",
    seeds: AllSeeds = None,
    store: StorePath = Path(DEFAULT_STORE),
    save: Save = Path("paper.svg"),
) -> None:
    """Draw a figure of the paper with our runs below its numbers, cell by cell; differences are outlined."""
    with loading():
        from mecheval import figures, studies
        from mecheval.paper import compare_studies
        from mecheval.paper.picture import DRAWN, picture
        from mecheval.store import Published

    figures.check_suffix(save)
    study = studies.study_name(study)
    if study not in DRAWN:
        raise UnknownName("study", study, DRAWN)
    with aside.status("reading"):
        [compared] = compare_studies([study], Published(store), scale, seeds)
    write_chart(picture(compared), save)
