"""A store as it was at one moment, read once and within limits: what figures, tables and reports are made from."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from mecheval.store.bounds import bounded_row, row_problem, unreadable
from mecheval.store.foreign import ON_THE_WAY, bound_table
from mecheval.store.guard import StoreError
from mecheval.store.schema import EFFECTS, RUNS, TABLES, WHOLE, Table
from mecheval.store.seal import Record
from mecheval.store.store import Store, StoreWarning
from mecheval.store.tables import connect, load_rows, one_line, seal

if TYPE_CHECKING:  # slow to import
    import pandas as pd
    from duckdb import DuckDBPyConnection

AT_ONCE = 100
"""Runs whose files are read together, and whose effects are in memory with those that are not kept."""
USUAL = ("runs", "history", "effects", "verdicts")


class Snapshot(Store):
    """Some tables of a store in memory; runs that end meanwhile are not seen, so all parts of a report agree.

    A run beyond the limits of `bounds` is listed as failed, as one that cannot be read, with why and a `StoreWarning`.
    Effects measured along training are left in their files (`on_the_way`): of thousands of runs, they are millions.
    `among`: the runs whose tables are read; all are listed.
    """

    def __init__(self, store: Store, tables: Sequence[str] = USUAL, among: Container[str] | None = None) -> None:
        import duckdb

        super().__init__(store.path)
        self.probed: set[str] = set()  # runs that were intervened on while they were trained
        self._kept = {run: self._bounded(record) for run, record in store.records().items()}
        read = {run: record for run, record in self._kept.items() if among is None or run in among}
        self._connection = connect()
        try:
            for table in map(TABLES.__getitem__, tables):
                if table is RUNS:
                    load_rows(self._connection, RUNS, self.rows())
                else:
                    self._take(self._connection, table, read)
        except duckdb.Error as error:  # one file that cannot be read does not come this far
            raise StoreError(f"cannot read {store.path}: {one_line(error)[:300]}") from None
        seal(self._connection)

    def records(self) -> dict[str, Record]:
        """The rows and checksums of all runs, as they were."""
        return {run: replace(record, row=dict(record.row)) for run, record in self._kept.items()}

    def on_the_way(self, runs: Sequence[str]) -> pd.DataFrame:
        """Effects of these runs along training."""
        with connect() as connection:
            self._take(connection, EFFECTS, {run: self._kept[run] for run in runs}, on_the_way=True)
            return connection.execute(f"FROM {EFFECTS.name}").df()

    @contextmanager
    def _database(self, tables: Iterable[Table]) -> Iterator[DuckDBPyConnection]:
        """The one database, whichever tables are asked for."""
        yield self._connection

    def _bounded(self, record: Record) -> Record:
        """The same within the limits; or, of a run that cannot be shown, that it failed, and why."""
        run, problem = record.row["run"], row_problem(record.row)
        if problem is None:
            return replace(record, row=bounded_row(record.row))
        self._warn(run, problem)
        return Record(unreadable(run, problem))

    def _take(
        self, connection: DuckDBPyConnection, table: Table, records: Mapping[str, Record], *, on_the_way: bool = False
    ) -> None:
        """Make a table of these runs, some at a time, each time without what is not kept."""
        name, kept = table.name, f"{table.name}_kept"
        along = f"state IS NOT DISTINCT FROM '{ON_THE_WAY}'"
        wanted = "true" if table is not EFFECTS else along if on_the_way else f"NOT ({along})"
        self.load_table(connection, table, {})
        connection.execute(f"CREATE TABLE {kept} AS FROM {name}")
        whole = iter([(run, record) for run, record in records.items() if record.row["status"] in WHOLE])
        while some := dict(islice(whole, AT_ONCE)):
            self.load_table(connection, table, some)
            if table is EFFECTS and not on_the_way:
                found = connection.execute(f"SELECT DISTINCT run FROM {name} WHERE {along}").fetchall()
                self.probed |= {run for (run,) in found}
            connection.execute(f"INSERT INTO {kept} FROM {name} WHERE {wanted}")
        connection.execute(f"DROP TABLE {name}; ALTER TABLE {kept} RENAME TO {name}")
        for run, what in bound_table(connection, table):
            warnings.warn(StoreWarning(f"run {run} is shown without some of its rows: {what}."), stacklevel=2)


def snapshot_of(store: Store, *tables: str, among: Container[str] | None = None) -> Store:
    """The store itself where it is a snapshot already, or not there yet; else these tables of it, or of some runs."""
    if isinstance(store, Snapshot) or not (store.path / "runs").is_dir():
        return store
    return Snapshot(store, tables, among)
