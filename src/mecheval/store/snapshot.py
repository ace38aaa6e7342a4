"""A store as it was at one moment, read once and within limits: what figures, tables and reports are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.store.bounds import bounded_row, unreadable
from mecheval.store.foreign import take
from mecheval.store.schema import EFFECTS, RUNS, TABLES, WHOLE, Table
from mecheval.store.store import Store
from mecheval.store.tables import load_rows, seal

if TYPE_CHECKING:  # slow to import
    import pandas as pd  # type: ignore[import-untyped]
    from duckdb import DuckDBPyConnection

USUAL = ("history", "effects", "verdicts")
TOLD = 10
"""Runs of which it is told what is wrong with them; of more, how many they are."""


class Snapshot(Store):
    """Some tables of a store in memory; runs that end meanwhile are not seen, so all parts of a report agree.

    A run that cannot be read, or is beyond the limits of `bounds`, is listed as failed, with why, and has no rows in
    the other tables; `problems` has a line about each. Effects measured along training are left in their files
    (`on_the_way`): of thousands of runs, they are millions.
    """

    def __init__(self, store: Store, tables: Sequence[str] = USUAL) -> None:
        super().__init__(store.path)
        rows = [bounded_row(row) for row in store.rows()]
        whole = [self.folder(row["run"]) for row in rows if row["status"] in WHOLE]
        taken = take([TABLES[name] for name in tables], whole)
        self.probed = taken.probed  # runs that were intervened on while they were trained
        self._connection, wrong = taken.connection, taken.wrong
        self._kept = [unreadable(row["run"], wrong[row["run"]]) if row["run"] in wrong else row for row in rows]
        self._less = [line for run, line in taken.less.items() if run not in wrong]
        load_rows(self._connection, RUNS, self._kept)
        seal(self._connection)

    @property
    def problems(self) -> list[UserError]:
        """What is wrong with runs of the store, a line each; of many, the first."""
        lines = [row["message"] for row in self._kept if row["status"] == "failed" and row["updated"] is None]
        lines += self._less
        more = len(lines) - TOLD
        if more > 0:
            lines[TOLD:] = [f"{more:,} more run{'s' * (more > 1)} of {self.path} cannot be shown, or not whole."]
        return [UserError(line) for line in lines]

    def rows(self) -> list[dict[str, Any]]:
        """Rows of table runs, as they were."""
        return [dict(row) for row in self._kept]

    def on_the_way(self, runs: Sequence[str]) -> pd.DataFrame:
        """Effects of these runs along training."""
        taken = take([EFFECTS], [self.folder(run) for run in runs], on_the_way=True)
        with taken.connection as connection:
            return connection.execute(f"FROM {EFFECTS.name}").df()

    @contextmanager
    def _database(self, tables: Iterable[Table]) -> Iterator[DuckDBPyConnection]:
        """The one database, whichever tables are asked for."""
        yield self._connection


def snapshot_of(store: Store, *tables: str) -> Store:
    """The store itself where it is a snapshot already, or not there yet; else these tables of it."""
    if isinstance(store, Snapshot) or not (store.path / "runs").is_dir():
        return store
    return Snapshot(store, tables)


def problems_of(store: Store) -> list[UserError]:
    """What is wrong with runs of the store, as far as that is known."""
    return store.problems if isinstance(store, Snapshot) else []
