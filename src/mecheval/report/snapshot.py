"""A store as it was at one moment, read once: a report asks it the same questions for every study."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from mecheval.store import TABLES, Store, Table
from mecheval.store.schema import EFFECTS
from mecheval.store.seal import Record
from mecheval.store.tables import connect, seal

if TYPE_CHECKING:  # slow to import
    import pandas as pd  # type: ignore[import-untyped]
    from duckdb import DuckDBPyConnection

AT_ONCE = 100
"""Runs whose effects are in memory together, with those that are not kept."""
ON_THE_WAY = "training"


class Snapshot(Store):
    """All tables of a store in memory; runs that end meanwhile are not seen, so all parts of a report agree.

    Effects measured along training are left in their files (`on_the_way`): of thousands of runs, they are millions.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store.path)
        self.probed: set[str] = set()  # runs that were intervened on while they were trained
        self._kept: dict[str, Record] = {}
        self._taken = False
        self._connection = connect()
        self._load(self._connection, [table for table in TABLES.values() if table is not EFFECTS])
        self._load_effects()
        seal(self._connection)
        self._taken = True

    def records(self) -> dict[str, Record]:
        """The rows and checksums of all runs, as they were."""
        if not self._taken:
            self._kept = super().records()
        return {run: replace(record, row=dict(record.row)) for run, record in self._kept.items()}

    def on_the_way(self, runs: Sequence[str]) -> pd.DataFrame:
        """Effects of these runs along training."""
        with connect() as connection:
            self.load_table(connection, EFFECTS, {run: self._kept[run] for run in runs})
            return connection.execute(f"FROM {EFFECTS.name} WHERE state = '{ON_THE_WAY}'").df()

    @contextmanager
    def _database(self, tables: Iterable[Table]) -> Iterator[DuckDBPyConnection]:
        """The one database, whichever tables are asked for."""
        yield self._connection

    def _load_effects(self) -> None:
        """Some runs at a time, each time without what is not kept."""
        name, kept, connection = EFFECTS.name, "kept", self._connection
        records = list(self._kept.items())
        self.load_table(connection, EFFECTS, {})
        connection.execute(f"CREATE TABLE {kept} AS FROM {name}")
        for first in range(0, len(records), AT_ONCE):
            self.load_table(connection, EFFECTS, dict(records[first : first + AT_ONCE]))
            found = connection.execute(f"SELECT DISTINCT run FROM {name} WHERE state = '{ON_THE_WAY}'").fetchall()
            self.probed |= {run for (run,) in found}
            connection.execute(f"INSERT INTO {kept} FROM {name} WHERE state <> '{ON_THE_WAY}'")
        connection.execute(f"DROP TABLE {name}; ALTER TABLE {kept} RENAME TO {name}")
