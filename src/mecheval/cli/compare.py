"""The command that puts our results beside the paper's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli.app import AsJson, app, aside, console, print_json
from mecheval.cli.clean import write
from mecheval.cli.studies import ALL, Scale, Seeds, StoreAddress
from mecheval.errors import UnknownName, UserError
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.paper import Comparison, Judged, Setting
    from mecheval.store import Store
    from mecheval.studies import Study
    from mecheval.sweep import Point

TABLES = ("cells", "patterns", "claims")


@dataclass(frozen=True)
class Compared:
    """A study beside the paper."""

    study: Study
    runs: pd.DataFrame
    settings: dict[str, Setting]
    comparison: Comparison
    claims: list[Judged]


@app.command()
def compare(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study of `mecheval list studies`, or all.")],
    scale: Scale = "laptop",
    seeds: Seeds = 1,
    table: Annotated[str | None, typer.Option(help="Only cells, patterns or claims.")] = None,
    store: StoreAddress = DEFAULT_STORE,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: cells, or claims where there are none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put a study's results beside the paper's numbers, and say which of its claims they bear out."""
    with aside.status("loading"):
        from mecheval.store.location import open_store
        from mecheval.store.store import snapshot_of
        from mecheval.studies import PAPER, STUDIES, study_points

    if study not in (*PAPER, ALL):
        raise UnknownName("study", study, (*PAPER, ALL))
    if table not in (None, *TABLES):
        raise UnknownName("table", str(table), TABLES)
    if csv and as_json:
        raise UserError("choose one of --csv and --json.")
    with aside.status("reading"):
        names = PAPER if study == ALL else [study]
        grids = {name: study_points(STUDIES[name], scale, seeds) for name in names}
        asked = {point.config.id for points in grids.values() for point in points}
        opened = snapshot_of(open_store(store), "effects", "verdicts", among=asked)
        compared = [_compare(STUDIES[name], scale, points, opened) for name, points in grids.items()]
    if as_json:
        print_json([_data(one, scale, table) for one in compared])
    elif csv:
        write(_csv(compared, table))
    else:
        for one in compared:
            _show(one, scale, table)


def _compare(study: Study, scale: str, points: list[Point], store: Store) -> Compared:
    from mecheval.paper import compare, judge_claims, settings_of
    from mecheval.studies import study_table

    table = study_table(study, points, store)
    runs, frame, settings = table.frame, table.best().frame, settings_of(point.config for point in points)
    judged = judge_claims({study.name: frame}, scale, {study.name: settings})
    return Compared(study, runs, settings, compare(study.name, frame, scale), judged)


def _show(one: Compared, scale: str, table: str | None) -> None:
    from mecheval import show_compare as show

    study, comparison = one.study, one.comparison
    console.print(show.heading(study.name, study.figure, study.question, scale))
    console.print(show.settings_text(one.settings))
    progress = show.runs_text(one.runs, study.name, scale)
    if progress is not None:
        console.print(progress)
    console.print()
    if len(comparison.cells) and table in (None, "cells"):
        console.print(show.cells_text(comparison))
        console.print()
        console.print(show.cells_table(comparison, console.width))
        console.print()
    if len(comparison.patterns) and table in (None, "patterns"):
        console.print(show.patterns_table(comparison))
        console.print()
    if one.claims and table in (None, "claims"):
        console.print(show.claims_text(one.claims))
        console.print()
        console.print(show.claims_table(one.claims))
        console.print()


def _data(one: Compared, scale: str, table: str | None) -> dict[str, Any]:
    """A study as plain data; NaN is null."""
    import json

    tables = {
        "cells": json.loads(one.comparison.cells.to_json(orient="records")),
        "patterns": json.loads(one.comparison.patterns.to_json(orient="records")),
        "claims": [asdict(judged) for judged in one.claims],
    }
    settings = {
        task: {"ours": setting.describe(), "paper": type(setting).paper(task).describe()}
        for task, setting in one.settings.items()
    }
    runs = {str(status): int(n) for status, n in one.runs["status"].value_counts().items()}
    wanted = tables if table is None else {table: tables[table]}
    return {"study": one.study.name, "scale": scale, "settings": settings, "runs": runs, **wanted}


def _csv(compared: list[Compared], table: str | None) -> str:
    """One table of all studies, with the study in front."""
    import pandas as pd

    cells, patterns = (
        pd.concat([frame.assign(study=one.study.name) for one in compared for frame in [getattr(one.comparison, name)]])
        for name in ("cells", "patterns")
    )
    claims = pd.DataFrame([asdict(judged) for one in compared for judged in one.claims])
    frame = {"cells": cells, "patterns": patterns, "claims": claims}[table or ("cells" if len(cells) else "claims")]
    columns = ["study", *(column for column in frame.columns if column != "study")]
    return str(frame.reindex(columns=columns).to_csv(index=False))
