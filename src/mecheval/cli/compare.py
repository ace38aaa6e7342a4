"""The command that compares our results with the paper's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli.app import app, aside, console, loading, print_json
from mecheval.cli.clean import write
from mecheval.cli.options import AllSeeds, AsJson, Scale, StorePath
from mecheval.cli.show import format_of, formatted
from mecheval.cli.studies import ALL
from mecheval.errors import UnknownName
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.paper import Compared

TABLES = ("cells", "patterns", "claims")


@app.command(short_help="Compare a study with the paper's numbers and claims.")
def compare(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study of `mecheval list studies`, or all.")],
    scale: Scale = "laptop",
    seeds: AllSeeds = None,
    table: Annotated[str | None, typer.Option(help="Show only this table: cells, patterns or claims.")] = None,
    store: StorePath = Path(DEFAULT_STORE),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the claims, or --table, in Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the claims, or --table, in LaTeX.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: cells, or claims if there are no cells.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a study with the paper: its numbers, and which of the paper's claims our results support."""
    with loading():
        from mecheval import studies
        from mecheval.cli.show.studies import comparison_parts
        from mecheval.paper import compare_study
        from mecheval.store import Published, Store
        from mecheval.store.store import snapshot_of

    kind = format_of(csv=csv, json=as_json, latex=latex, markdown=markdown)
    study = studies.study_name(study)
    if study not in (*studies.PAPER, ALL):
        raise UnknownName("study", study, (*studies.PAPER, ALL))
    if table not in (None, *TABLES):
        raise UnknownName("table", str(table), TABLES)
    with aside.status("reading"):
        names = studies.PAPER if study == ALL else [study]
        opened: Store = Published(store)
        grids = {}
        for name in names:
            n = studies.seeds_in(studies.STUDIES[name], scale, opened) if seeds is None else seeds
            grids[name] = studies.study_points(studies.STUDIES[name], scale, n)
        asked = {point.config.id for points in grids.values() for point in points}
        opened = snapshot_of(opened, "effects", "verdicts", among=asked)
        compared = [
            compare_study(studies.study_table(studies.STUDIES[name], points, opened), points, scale)
            for name, points in grids.items()
        ]
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
    return {"cells": one.comparison.cells, "patterns": one.comparison.patterns, "claims": claims}


def _data(one: Compared, scale: str, table: str | None) -> dict[str, Any]:
    """A study as plain data."""
    from mecheval.cli.show import records

    settings = {
        task: {"ours": setting.describe(), "paper": type(setting).paper(task).describe()}
        for task, setting in one.settings.items()
    }
    runs = {str(status): int(n) for status, n in one.table.frame["status"].value_counts().items()}
    tables = {name: records(frame) for name, frame in _tables(one).items() if table in (None, name)}
    return {"study": one.table.study.name, "scale": scale, "settings": settings, "runs": runs, **tables}


def _claims(compared: list[Compared], kind: str) -> str:
    """The claims that were tested, one per row, then the number of those that were not."""
    import pandas as pd

    claims = [claim for one in compared for claim in one.claims]
    tested = [one for one in claims if one.outcome != "not tested"]
    rows = [(one.says, one.outcome, str(one.seeds), one.evidence) for one in tested]
    table = formatted(pd.DataFrame(rows, columns=["claim", "outcome", "seeds", "numbers"]), kind)
    comment = "% " if kind == "latex" else ""
    return f"{table}\n{comment}{len(claims) - len(tested)} of {len(claims)} claims are not tested yet.\n"


def _frame(compared: list[Compared], table: str | None) -> pd.DataFrame:
    """One table of all studies, with the study in its first column."""
    import pandas as pd

    name = table or ("cells" if any(len(one.comparison.cells) for one in compared) else "claims")
    frame = pd.concat([_tables(one)[name].assign(study=one.table.study.name) for one in compared])
    columns = ["study", *(column for column in frame.columns if column != "study")]
    return frame.reindex(columns=columns)
