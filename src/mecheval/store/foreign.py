"""Tables of runs that someone else may have made: rows that say nothing, numbers that cannot be, endless names.

This makes a table in memory such that it can be drawn, and says what it had to leave out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mecheval.store.bounds import LARGEST_STEP, MOST_LAYERS, TEXTS, bounds_of, is_site, name_of, text_of
from mecheval.store.schema import Table

if TYPE_CHECKING:  # slow to import
    from duckdb import DuckDBPyConnection

MOST_STEPS = 2_000
"""Steps of a run in table history, and along training; of more, some are kept, evenly, and the last."""
MOST_PLACES = 2_000
"""Pairs of a site and a role at which a run was intervened on; ours have some hundreds."""
ON_THE_WAY = "training"
"""The state of what was measured while a run was trained."""
APART = {
    "history": ("run", "step"),
    "evaluations": ("run", "state", "split", "step"),
    "effects": ("run", "state", "split", "site", "role"),
    "verdicts": ("run", "state", "split"),
}
"""Columns that tell the rows of a table apart; what was measured along training differs in its step, too."""
NEEDED = {"effects": ("step",), "verdicts": ("step", "label")}
"""Columns besides these without which a row says nothing."""


def bound_table(connection: DuckDBPyConnection, table: Table) -> list[tuple[str, str]]:
    """Bring a table into the limits of `bounds`; which runs lost rows by that, each with what these rows are.

    Numbers outside of their range are missing, and texts are cut. Rows without a place, and those that are there
    twice, are removed.
    """
    for column in table.columns:
        if column.type == "VARCHAR":
            _bound_texts(connection, table, column.name)
        else:
            low, high = _range(column.name, column.type)
            connection.execute(
                f"UPDATE {table.name} SET {column.name} = NULL WHERE NOT {column.name} BETWEEN ? AND ?", [low, high]
            )
    name, apart = table.name, APART[table.name]
    needed = dict.fromkeys((*apart, *NEEDED.get(name, ())))
    lost = _removed(connection, table, " OR ".join(f"{column} IS NULL" for column in needed))
    told = [(run, f"{_rows(n)} of table {name} lack one of {', '.join(needed)}") for run, n in lost.items()]
    keys = ", ".join([*apart, f"CASE state WHEN '{ON_THE_WAY}' THEN step END"] if "state" in apart else apart)
    again = _removed(connection, table, f"rowid NOT IN (SELECT min(rowid) FROM {name} GROUP BY {keys})")
    told += [(run, f"{_rows(n)} of table {name} are there twice") for run, n in again.items()]
    if name == "effects":
        many = f"SELECT run FROM {name} GROUP BY run HAVING count(DISTINCT (site, role)) > {MOST_PLACES}"
        gone = _removed(connection, table, f"run IN ({many})")
        told += [(run, f"its effects are at more than {MOST_PLACES:,} sites and roles") for run in gone]
    thin_steps(connection, table)
    return told


def thin_steps(connection: DuckDBPyConnection, table: Table) -> None:
    """Of what was measured along training at very many steps keep some, evenly, and the last."""
    along = f"state = '{ON_THE_WAY}'" if "state" in APART[table.name] else "true"
    steps = f"SELECT DISTINCT run, step FROM {table.name} WHERE {along}"
    numbered = (
        "SELECT run, step, row_number() OVER (PARTITION BY run ORDER BY step) AS place, "
        f"count(*) OVER (PARTITION BY run) AS n FROM ({steps})"
    )
    gone = f"SELECT run, step FROM ({numbered}) WHERE place % ceil(n / {MOST_STEPS}) <> 0 AND place < n"
    connection.execute(f"DELETE FROM {table.name} WHERE {along} AND (run, step) IN ({gone})")


def _range(column: str, type_: str) -> tuple[float, float]:
    if type_ == "INTEGER":  # they are all numbers of layers
        return 0, MOST_LAYERS - 1
    return (0, LARGEST_STEP) if type_ == "BIGINT" else bounds_of(column)


def _bound_texts(connection: DuckDBPyConnection, table: Table, column: str) -> None:
    """Texts of a column as they can be shown; names that are empty, and sites beyond any layer, are missing."""
    changed = []
    for (text,) in connection.execute(f"SELECT DISTINCT {column} FROM {table.name}").fetchall():
        if text is None or column == "run":
            continue
        shown = text_of(text) if column in TEXTS else name_of(text)
        fits = column in TEXTS or (is_site(shown) if column == "site" else bool(shown))
        if shown != text or not fits:
            changed.append((text, shown if fits else None))
    if changed:
        given = [list(each) for each in zip(*changed, strict=True)]
        pairs = "SELECT unnest(?::VARCHAR[]) AS old, unnest(?::VARCHAR[]) AS new"
        connection.execute(f"UPDATE {table.name} SET {column} = new FROM ({pairs}) WHERE {column} = old", given)


def _removed(connection: DuckDBPyConnection, table: Table, which: str) -> Counter[str]:
    """Remove rows; how many of each run."""
    gone = connection.execute(f"DELETE FROM {table.name} WHERE {which} RETURNING run").fetchall()
    return Counter(str(run) for (run,) in gone)


def _rows(n: int) -> str:
    return f"{n:,} row{'s' * (n > 1)}"
