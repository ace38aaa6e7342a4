"""A store as it was at one moment, read once: a report asks it the same questions for every study."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mecheval.store import TABLES, Store, Table
from mecheval.store.schema import EFFECTS, WHOLE
from mecheval.store.tables import connect, load_files, seal

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
        self._kept: list[dict[str, Any]] = []
        self._taken = False
        self._connection = connect()
        self._load(self._connection, [table for table in TABLES.values() if table is not EFFECTS])
        self._load_effects()
        seal(self._connection)
        self._taken = True

    def rows(self) -> list[dict[str, Any]]:
        """Rows of table runs, as they were."""
        if not self._taken:
            self._kept = super().rows()
        return [dict(row) for row in self._kept]

    def on_the_way(self, runs: Sequence[str]) -> pd.DataFrame:
        """Effects of these runs along training."""
        with connect() as connection:
            load_files(connection, EFFECTS, [self.folder(run).table(EFFECTS.name) for run in runs])
            return connection.execute(f"FROM {EFFECTS.name} WHERE state = '{ON_THE_WAY}'").df()

    @contextmanager
    def _database(self, tables: Iterable[Table]) -> Iterator[DuckDBPyConnection]:
        """The one database, whichever tables are asked for."""
        yield self._connection

    def _load_effects(self) -> None:
        """Some runs at a time, each time without what is not kept."""
        import duckdb

        name, kept, connection = EFFECTS.name, "kept", self._connection
        whole = [self.folder(row["run"]) for row in self._kept if row["status"] in WHOLE]
        files = [path for folder in whole if (path := folder.table(name)).exists()]
        try:
            load_files(connection, EFFECTS, [])
            connection.execute(f"CREATE TABLE {kept} AS FROM {name}")
            for first in range(0, len(files), AT_ONCE):
                load_files(connection, EFFECTS, files[first : first + AT_ONCE])
                found = connection.execute(f"SELECT DISTINCT run FROM {name} WHERE state = '{ON_THE_WAY}'").fetchall()
                self.probed |= {run for (run,) in found}
                connection.execute(f"INSERT INTO {kept} FROM {name} WHERE state <> '{ON_THE_WAY}'")
            connection.execute(f"DROP TABLE {name}; ALTER TABLE {kept} RENAME TO {name}")
        except duckdb.Error:  # a run was removed meanwhile, or a file is damaged: the store says which
            self._load(connection, list(TABLES.values()))
