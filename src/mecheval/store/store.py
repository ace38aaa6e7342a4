"""All runs, as tables."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.store.folder import RunFolder, StoreError
from mecheval.store.schema import EFFECTS, EVALUATIONS, HISTORY, RUNS, TABLES, VERDICTS, WHOLE, Table
from mecheval.store.tables import bounded_frame, connect, is_readable, load_files, load_rows, one_line, seal

if TYPE_CHECKING:  # both are slow to import; only those who read a table wait for them
    import pandas as pd  # type: ignore[import-untyped]
    from duckdb import DuckDBPyConnection

DEFAULT_STORE = os.environ.get("MECHEVAL_STORE") or "mecheval-store"
ID = re.compile(r"[0-9a-f]{12}")
FEW = 5
TRIES = 5
"""A run may be removed or written anew between the listing and the reading; the next listing is without the gap."""


class Store:
    """The runs below `<path>/runs`; making this object touches no file.

    `runs()` lists every run; the other tables hold only runs that are whole (done or diverged).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def ids(self) -> list[str]:
        """Ids of all runs, sorted."""
        try:
            names = [entry.name for entry in (self.path / "runs").iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"there is no store at {self.path}; `mecheval train` makes one.") from None
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}.") from error
        return sorted(name for name in names if ID.fullmatch(name) and self.folder(name).exists())

    def folder(self, run: str) -> RunFolder:
        """The folder of exactly this run, begun or not."""
        if not ID.fullmatch(run):
            raise UserError(f"a run's id is 12 digits of 0-9 and a-f (got {run!r}).")
        return RunFolder(self.path / "runs" / run)

    def find(self, prefix: str) -> RunFolder:
        """The one run whose id starts with `prefix`."""
        ids = self.ids()
        found = [run for run in ids if run.startswith(prefix)]
        if len(found) == 1:
            return self.folder(found[0])
        if found:
            raise UserError(f"{len(found)} runs start with {prefix!r}: {_few(found)}.")
        near = difflib.get_close_matches(prefix, ids, n=FEW, cutoff=0.5) or ids
        raise UserError(f"no run starts with {prefix!r}. There are: {_few(near) or 'none'}.")

    def runs(self) -> pd.DataFrame:
        """One row a run, in the order in which they began."""
        return self._frame(RUNS)

    def history(self) -> pd.DataFrame:
        """Losses and learning rates along training."""
        return self._frame(HISTORY)

    def evaluations(self) -> pd.DataFrame:
        """How well the states of each run answer."""
        return self._frame(EVALUATIONS)

    def effects(self) -> pd.DataFrame:
        """What interventions did."""
        return self._frame(EFFECTS)

    def verdicts(self) -> pd.DataFrame:
        """What interventions say about the mechanism."""
        return self._frame(VERDICTS)

    def query(self, sql: str) -> pd.DataFrame:
        """The answer to SQL (DuckDB's) over the tables runs, history, evaluations, effects and verdicts.

        The tables are copies in memory: SQL can neither change the store nor touch any file.
        """
        import duckdb

        mentioned = [table for table in TABLES.values() if re.search(rf"\b{table.name}\b", sql, re.IGNORECASE)]
        with self._database(mentioned or TABLES.values()) as connection:
            try:
                if connection.execute(sql) is not None:  # it is where there is no statement
                    return bounded_frame(connection)
                problem = "this SQL says nothing."
            except duckdb.Error as error:
                problem = one_line(error)
        raise UserError(f"{problem} Tables: {', '.join(TABLES)}.")

    def _frame(self, table: Table) -> pd.DataFrame:
        with self._database([table]) as connection:
            frame = connection.execute(f"FROM {table.name} ORDER BY {', '.join(table.order)}").df()
        return frame.astype(_dtypes(table))

    @contextmanager
    def _database(self, tables: Iterable[Table]) -> Iterator[DuckDBPyConnection]:
        """A sealed database with these tables in memory."""
        with connect() as connection:
            self._load(connection, list(tables))
            seal(connection)
            yield connection

    def _load(self, connection: DuckDBPyConnection, tables: Sequence[Table]) -> None:
        import duckdb

        for _ in range(TRIES):
            rows = self.rows()
            whole = [self.folder(row["run"]) for row in rows if row["status"] in WHOLE]
            try:
                for table in tables:
                    if table is RUNS:
                        load_rows(connection, table, rows)
                    else:
                        files = [folder.table(table.name) for folder in whole]
                        load_files(connection, table, [file for file in files if file.exists()])
                return
            except duckdb.Error as error:
                problem = one_line(error)
        files = [folder.table(table.name) for table in tables if table is not RUNS for folder in whole]
        damaged = next((file for file in files if not is_readable(file)), self.path)
        raise StoreError(f"cannot read {damaged}: {problem} To train a run anew, remove its folder.")

    def rows(self) -> list[dict[str, Any]]:
        """Rows of table runs; a run that cannot be read is listed as failed, so that it does not hide the others."""
        rows = []
        for run in self.ids():
            try:
                row = self.folder(run).status()
            except StoreError as error:
                row = {column.name: None for column in RUNS.columns}
                row |= {"run": run, "status": "failed", "message": str(error)}
            if row["status"] is not None:  # it was removed since the listing
                rows.append(row)
        return rows


def _dtypes(table: Table) -> dict[str, Any]:
    """Types of a frame, by the schema alone: missing values never turn whole numbers into fractions."""
    import pandas as pd

    text = pd.Series(["text"]).dtype  # which depends on the version of pandas
    of_type = {"INTEGER": "Int32", "BIGINT": "Int64", "DOUBLE": "float64", "TIMESTAMP": "datetime64[us]"}
    return {column.name: of_type.get(column.type, text) for column in table.columns}


def _few(runs: Sequence[str]) -> str:
    return ", ".join(runs[:FEW]) + (", …" if len(runs) > FEW else "")
