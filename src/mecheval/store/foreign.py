"""Parquet files of runs that someone else may have made, or that are damaged: what can be shown of them, in memory.

Every row is taken for one of the run in whose folder its file is, whatever it says itself.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mecheval.store.bounds import LARGEST_STEP, MOST_LAYERS, TEXTS, bounds_of, is_site, name_of, text_of
from mecheval.store.folder import RunFolder, StoreError
from mecheval.store.schema import Column, Table
from mecheval.store.tables import connect, one_line

if TYPE_CHECKING:  # slow to import
    from duckdb import DuckDBPyConnection

AT_ONCE = 100
"""Files that one statement reads."""
MOST_ROWS, MOST_BYTES = 2_000_000, 1 << 30
"""Rows of a file, and their size in memory; a file that has more is not read."""
MOST_STEPS = 2_000
"""Steps of a run in table history, and along training; of more, some are kept, evenly, and the last."""
MOST_PLACES = 2_000
"""Pairs of a site and a role of a run."""
CUT = 20_000
"""Characters of any text that leave the database."""
ON_THE_WAY = "training"
"""The state of effects that were measured while a run was trained."""
APART = {
    "history": ("run", "step"),
    "evaluations": ("run", "state", "split", "step"),
    "effects": ("run", "state", "split", "site", "role"),
    "verdicts": ("run", "state", "split"),
}
"""Columns that tell the rows of a table apart; what was measured along training differs in its step too."""
NEEDED = {"effects": ("step",), "verdicts": ("step", "label")}
"""Columns besides these without which a row says nothing."""
FROM = "mecheval_file"
"""What the column with the name of a row's file is called."""


@dataclass
class Taken:
    """Tables in memory; which runs are left out of them, and of which some rows are, each with why."""

    connection: DuckDBPyConnection
    wrong: dict[str, str] = field(default_factory=dict)
    less: dict[str, str] = field(default_factory=dict)
    probed: set[str] = field(default_factory=set)  # runs with effects along training


def take(tables: Sequence[Table], folders: Sequence[RunFolder], *, on_the_way: bool = False) -> Taken:
    """These tables of these runs; of table effects either what was measured along training, or the rest."""
    import duckdb

    wrong: dict[str, str] = {}
    for _ in range(2):
        taken = Taken(connect(), wrong)
        try:
            for table in tables:
                _create(taken.connection, table)
                files = [folder.table(table.name) for folder in folders if folder.id not in wrong]
                files = [file for file in files if file.exists()]
                for first in range(0, len(files), AT_ONCE):
                    _take_files(taken, table, files[first : first + AT_ONCE], on_the_way)
                _bound(taken, table, on_the_way)
            for table in tables:
                _remove(taken.connection, table, wrong)
            taken.probed -= wrong.keys()
            return taken
        except duckdb.Error as error:  # some damage makes the database give up; the second time it is known where
            problem = one_line(error)
    raise StoreError(f"cannot read the runs below {folders[0].path.parent}: {problem}")


def _create(connection: DuckDBPyConnection, table: Table) -> None:
    columns = ", ".join(f"{column.name} {column.type}" for column in table.columns)
    connection.execute(f"CREATE TABLE {table.name} ({columns}); CREATE TABLE none_{table.name} ({columns})")


def _take_files(taken: Taken, table: Table, files: Sequence[Path], on_the_way: bool) -> None:
    """Add the rows of files; of those that cannot be read, it is noted why."""
    import duckdb

    try:
        fitting = _small(taken, files)
        taken.probed |= _insert(taken.connection, table, fitting, on_the_way)
    except duckdb.Error:
        fitting = []
        for file in files:
            try:
                with connect() as alone:
                    _create(alone, table)
                    small = _small(Taken(alone, taken.wrong), [file])
                    _insert(alone, table, small, on_the_way)
                    fitting += small
            except duckdb.Error as error:
                if file.exists():  # else the run was removed meanwhile
                    why = f"{one_line(error)[:300]} To train the run anew, remove its folder."
                    taken.wrong[file.parent.name] = f"cannot read {file}: {why}"
        taken.probed |= _insert(taken.connection, table, fitting, on_the_way)


def _small(taken: Taken, files: Sequence[Path]) -> list[Path]:
    """The files that are read; of those that are too large, it is noted."""
    sizes = taken.connection.execute(
        "SELECT file_name, sum(row_group_num_rows) FILTER (column_id = 0), sum(total_uncompressed_size) "
        "FROM parquet_metadata(?) GROUP BY file_name",
        [_escaped(files)],
    ).fetchall()
    for name, rows, size in sizes:
        if (rows or 0) > MOST_ROWS or (size or 0) > MOST_BYTES:
            limit = f"it has {rows:,} rows of {size:,} bytes, and at most {MOST_ROWS:,} of {MOST_BYTES:,} are read"
            taken.wrong[Path(name).parent.name] = f"cannot read {name}: {limit}."
    return [file for file in files if file.parent.name not in taken.wrong]


def _insert(connection: DuckDBPyConnection, table: Table, files: Sequence[Path], on_the_way: bool) -> set[str]:
    """Add the rows of files; a column that a file lacks is NULL. Which runs have effects along training."""
    if not files:
        return set()
    run = f"regexp_extract({FROM}, '([0-9a-f]+)[/\\\\][^/\\\\]*$', 1)"
    read = f"read_parquet(?, union_by_name = true, hive_partitioning = false, filename = '{FROM}')"
    rows = f"(FROM none_{table.name} UNION ALL BY NAME FROM {read})"
    columns = ", ".join(f"{run} AS run" if column.name == "run" else _taken(column) for column in table.columns)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE read_now AS SELECT {columns} FROM {rows}", [_escaped(files)])
    if table.name != "effects":
        connection.execute(f"INSERT INTO {table.name} FROM read_now")
        return set()
    along = f"state IS NOT DISTINCT FROM '{ON_THE_WAY}'"
    connection.execute(f"INSERT INTO {table.name} FROM read_now WHERE {'' if on_the_way else 'NOT'} ({along})")
    return {run for (run,) in connection.execute(f"SELECT DISTINCT run FROM read_now WHERE {along}").fetchall()}


def _taken(column: Column) -> str:
    """A column as SQL: numbers outside of their range are NULL, and texts are cut."""
    cast = f"CAST({column.name} AS {column.type})"
    if column.type == "VARCHAR":
        return f"left({cast}, {CUT}) AS {column.name}"
    low, high = (0.0, float(MOST_LAYERS - 1)) if column.type == "INTEGER" else bounds_of(column.name)
    if column.type == "BIGINT":
        low, high = 0, LARGEST_STEP
    return f"CASE WHEN {cast} BETWEEN {low!r} AND {high!r} THEN {cast} END AS {column.name}"


def _bound(taken: Taken, table: Table, on_the_way: bool) -> None:
    """Remove rows that say nothing or say it again, and make texts such that they can be shown."""
    connection, name = taken.connection, table.name
    apart = APART[name]
    for column in table.columns:
        if column.type == "VARCHAR" and column.name != "run":
            _bound_texts(connection, table, column.name)
    needed = [*apart, *NEEDED.get(name, ())]
    gaps = connection.execute(f"DELETE FROM {name} WHERE {' OR '.join(f'{c} IS NULL' for c in needed)} RETURNING run")
    _note(taken, table, [run for (run,) in gaps.fetchall()], f"lack a {', '.join(needed[1:-1])} or {needed[-1]}")
    groups = ", ".join([*apart, f"CASE state WHEN '{ON_THE_WAY}' THEN step END"] if "state" in apart else apart)
    again = connection.execute(
        f"DELETE FROM {name} WHERE rowid NOT IN (SELECT min(rowid) FROM {name} GROUP BY {groups}) RETURNING run"
    )
    _note(taken, table, [run for (run,) in again.fetchall()], "are there twice")
    if name == "effects":
        places = connection.execute(
            f"SELECT run FROM {name} GROUP BY run HAVING count(DISTINCT (site, role)) > {MOST_PLACES}"
        )
        many = f"has effects at more than {MOST_PLACES:,} sites and roles"
        taken.wrong |= {run: f"run {run} cannot be shown: it {many}." for (run,) in places.fetchall()}
    if name == "history" or on_the_way:
        _thin(connection, table)


def _bound_texts(connection: DuckDBPyConnection, table: Table, column: str) -> None:
    """Texts of a column as they can be shown; names that are empty, and sites beyond any layer, are NULL."""
    changed = []
    for (text,) in connection.execute(f"SELECT DISTINCT {column} FROM {table.name}").fetchall():
        if text is None:
            continue
        shown = text_of(text) if column in TEXTS else name_of(text)
        fits = column in TEXTS or (is_site(shown) if column == "site" else bool(shown))
        if shown != text or not fits:
            changed.append((text, shown if fits else None))
    if changed:
        given = [list(each) for each in zip(*changed, strict=True)]
        pairs = "SELECT unnest(?::VARCHAR[]) AS old, unnest(?::VARCHAR[]) AS new"
        connection.execute(f"UPDATE {table.name} SET {column} = new FROM ({pairs}) WHERE {column} = old", given)


def _thin(connection: DuckDBPyConnection, table: Table) -> None:
    """Of the runs with very many steps keep some, evenly, and the last."""
    steps = f"SELECT run, step, row_number() OVER up AS place, count(*) OVER (PARTITION BY run) AS n FROM " \
            f"(SELECT DISTINCT run, step FROM {table.name}) WINDOW up AS (PARTITION BY run ORDER BY step)"  # fmt: skip
    gone = f"SELECT run, step FROM ({steps}) WHERE place % ceil(n / {MOST_STEPS}) <> 0 AND place < n"
    connection.execute(f"DELETE FROM {table.name} WHERE (run, step) IN ({gone})")


def _note(taken: Taken, table: Table, runs: Sequence[str], what: str) -> None:
    for run in dict.fromkeys(runs):
        n = runs.count(run)
        line = f"run {run}: {n:,} row{'s' * (n > 1)} of table {table.name} {what}, and are left out."
        taken.less.setdefault(run, line)


def _remove(connection: DuckDBPyConnection, table: Table, runs: Collection[str]) -> None:
    if runs:
        connection.execute(f"DELETE FROM {table.name} WHERE run IN (SELECT unnest(?::VARCHAR[]))", [list(runs)])
    connection.execute(f"DROP TABLE none_{table.name}")


def _escaped(files: Sequence[Path]) -> list[str]:
    """Paths for DuckDB: a name is not a pattern."""
    return [glob.escape(str(file.absolute())) for file in files]
