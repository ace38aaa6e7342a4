"""All runs, as tables."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.store.folder import RunFolder
from mecheval.store.guard import StoreError, refuse_links
from mecheval.store.schema import EFFECTS, EVALUATIONS, HISTORY, LONGEST_TEXT, RUNS, TABLES, VERDICTS, WHOLE, Table
from mecheval.store.seal import Record
from mecheval.store.tables import bounded_frame, connect, load_rows, load_runs, one_line, seal

if TYPE_CHECKING:  # both are slow to import; only those who read a table wait for them
    import pandas as pd
    from duckdb import DuckDBPyConnection

DEFAULT_STORE = os.environ.get("MECHEVAL_STORE") or "mecheval-store"
ID = re.compile(r"[0-9a-f]{12}")
FEW = 5


class StoreWarning(UserWarning):
    """Something of a run cannot be used; the other runs can."""


class Store:
    """The runs below `<path>/runs`; making this object touches no file.

    `runs()` lists every run; the other tables hold only runs that are whole (done or diverged). A run that cannot be
    read, or a table that does not match its checksum, is left out with a `StoreWarning`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def ids(self) -> list[str]:
        """Ids of all runs, sorted."""
        try:
            refuse_links(self.path / "runs", self.path / "runs")
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
        records = self.records()
        for table in tables:
            if table is RUNS:
                load_rows(connection, table, [record.row for record in records.values()])
            else:
                self.load_table(connection, table, records)

    def load_table(self, connection: DuckDBPyConnection, table: Table, records: Mapping[str, Record]) -> None:
        """Make `table` of what these runs, by their ids, have of it; what cannot be used is left out with a warning."""
        files = {run: path for run, record in records.items() if record.row["status"] in WHOLE
                 and (path := self._checked(run, record, table)) is not None}  # fmt: skip
        for run, why in load_runs(connection, table, files).items():
            if files[run].exists():  # else the run was removed since the listing
                self._warn(run, f"{files[run]} cannot be used: {why}")

    def _checked(self, run: str, record: Record, table: Table) -> Path | None:
        """The file of a run's table, once it matches its checksum."""
        folder = self.folder(run)
        try:
            return folder.check(record, table.name)
        except StoreError as error:
            if folder.exists():  # else the run was removed since the listing
                self._warn(run, str(error))
            return None

    def rows(self) -> list[dict[str, Any]]:
        """Rows of table runs; a run that cannot be read is listed as failed, so that it does not hide the others."""
        return [record.row for record in self.records().values()]

    def records(self) -> dict[str, Record]:
        """The rows of all runs by their ids, with the checksums of their files."""
        records = {}
        for run in self.ids():
            try:
                record = self.folder(run).record()
            except StoreError as error:
                row = {column.name: None for column in RUNS.columns}
                record = Record(row | {"run": run, "status": "failed", "message": str(error)[:LONGEST_TEXT]})
                self._warn(run, str(error))
            if record.row["status"] is not None:  # it was removed since the listing
                records[run] = record
        return records

    def _warn(self, run: str, problem: str) -> None:
        warnings.warn(StoreWarning(f"run {run} is left out: {problem}"), stacklevel=2)


def _dtypes(table: Table) -> dict[str, Any]:
    """Types of a frame, by the schema alone: missing values never turn whole numbers into fractions."""
    import pandas as pd

    text = pd.Series(["text"]).dtype  # which depends on the version of pandas
    of_type = {"INTEGER": "Int32", "BIGINT": "Int64", "DOUBLE": "float64", "TIMESTAMP": "datetime64[us]"}
    return {column.name: of_type.get(column.type, text) for column in table.columns}


def _few(runs: Sequence[str]) -> str:
    return ", ".join(runs[:FEW]) + (", …" if len(runs) > FEW else "")
