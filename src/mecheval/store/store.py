"""All runs as tables (`Store`), and a snapshot of them within limits, for figures and reports (`Snapshot`)."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.machine import growing_by
from mecheval.store.bounds import ALONG, bound_table, bounded_row, row_problem
from mecheval.store.folder import RunFolder
from mecheval.store.guard import Record, StoreError, StoreWarning, blank, refuse_links
from mecheval.store.schema import EFFECTS, LONGEST_TEXT, RUNS, STORED, TABLES, VERDICTS, VIEWS, WHOLE, Table
from mecheval.store.tables import (
    MOST_MEMORY,
    MOST_SECONDS,
    bounded_frame,
    connect,
    interrupted_after,
    load_rows,
    load_runs,
    make_view,
    one_line,
    runs_with,
    scratch,
    seal,
)  # fmt: skip
from mecheval.types import LAST

if TYPE_CHECKING:  # both are slow to import, and only needed to read a table
    import pandas as pd
    from duckdb import DuckDBPyConnection

DEFAULT_STORE = os.environ.get("MECHEVAL_STORE") or "mecheval-store"
ID = re.compile(r"[0-9a-f]{12}")
URL = re.compile(r"([A-Za-z][\w+.-]+):/+")
"""The start of a URL, also of one that was made a `Path`."""
FEW = 5
"""Number of runs that an error message lists."""
USUAL = ("runs", "history", "effects", "verdicts")
"""Tables that a snapshot has by default."""


class Store:
    """The runs below `<path>/runs`; creating this object touches no file.

    `runs()` lists every run; the other tables contain only runs that are whole (done or diverged). A run that cannot
    be read, or a table that does not match its checksum, is left out with a `StoreWarning`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _usable(path)

    def exists(self) -> bool:
        """Whether there is a store at this path, even an empty one."""
        return (self.path / "runs").is_dir()

    def ids(self) -> list[str]:
        """The ids of all runs, sorted; a run that has lost its status is one of them, so that it is not overlooked."""
        try:
            refuse_links(self.path / "runs", self.path / "runs")
            names = [entry.name for entry in (self.path / "runs").iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"there is no store at {self.path}; `mecheval train` makes one.") from None
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}.") from error
        folders = [self.folder(name) for name in names if ID.fullmatch(name)]
        return sorted(folder.id for folder in folders if folder.exists() or folder.is_lost())

    def folder(self, run: str) -> RunFolder:
        """The folder of the run with this id, whether it has begun or not."""
        if not ID.fullmatch(run):
            raise UserError(f"a run's id has 12 digits from 0-9 and a-f (got {run!r}).")
        return RunFolder(self.path / "runs" / run)

    def find(self, prefix: str) -> RunFolder:
        """The one run whose id starts with `prefix`."""
        ids = self.ids()
        if not prefix:
            raise UserError(f"give a run's id, or the start of it. There are: {_few(ids) or 'none'}.")
        found = [run for run in ids if run.startswith(prefix)]
        if len(found) == 1:
            return self.folder(found[0])
        if found:
            raise UserError(f"{len(found)} runs start with {prefix!r}: {_few(found)}.")
        near = difflib.get_close_matches(prefix, ids, n=FEW, cutoff=0.5) or ids
        raise UserError(f"no run starts with {prefix!r}. There are: {_few(near) or 'none'}.")

    def runs(self) -> pd.DataFrame:
        """One row per run, in the order in which they were started."""
        return self._frame("runs")

    def history(self) -> pd.DataFrame:
        """Losses, dev scores and learning rates during training."""
        return self._frame("history")

    def evaluations(self) -> pd.DataFrame:
        """The scores of each run's states, with a column for each metric."""
        return self._frame("evaluations")

    def scores(self) -> pd.DataFrame:
        """The same as `evaluations`, with a row for each metric."""
        return self._frame("scores")

    def effects(self) -> pd.DataFrame:
        """The effects of interventions."""
        return self._frame("effects")

    def verdicts(self) -> pd.DataFrame:
        """The mechanisms that interventions have found."""
        return self._frame("verdicts")

    def judged(self) -> set[tuple[str, str]]:
        """The runs with a verdict on the trained state, and its split; found without pandas, which is slow to load."""
        with self._database([VERDICTS], sealed=False) as connection:
            found = f"SELECT DISTINCT run, split FROM {VERDICTS.name} WHERE state = '{LAST}'"
            return {(run, split) for run, split in connection.execute(found).fetchall()}

    def ablations(self) -> pd.DataFrame:
        """The effects of named edits, such as zero or mean."""
        return self._frame("ablations")

    def query(
        self, sql: str, seconds: float = MOST_SECONDS, unheeded: Callable[[], None] | None = None
    ) -> pd.DataFrame:
        """The result of an SQL query (DuckDB's dialect) over the store's tables and views, which `TABLES` lists.

        A query that takes more than `seconds` CPU seconds, not counting the time to read the tables, is an error. If
        DuckDB ignores the interruption, `unheeded` is called, in which a program can end itself. The tables are copies
        in memory, so SQL can neither change the store nor touch any file.
        """
        import duckdb

        if not sql.isascii() and any("\ud800" <= sign <= "\udfff" for sign in sql):
            raise UserError("this SQL contains half a character (a surrogate).")
        mentioned = [table for table in TABLES.values() if re.search(rf"\b{table.name}\b", sql, re.IGNORECASE)]
        with self._database(mentioned or TABLES.values()) as connection:
            try:
                with growing_by(MOST_MEMORY), interrupted_after(seconds, connection, unheeded):
                    if connection.execute(sql) is not None:  # it is None where there is no statement
                        return bounded_frame(connection)
                problem = "this SQL has no statement."
            except (duckdb.Error, MemoryError) as error:
                problem = one_line(error)
        raise UserError(f"{problem} Tables: {', '.join(TABLES)}.")

    def _frame(self, name: str) -> pd.DataFrame:
        table = TABLES[name]
        with self._database([table], sealed=False) as connection:
            frame = connection.execute(f"FROM {table.name} ORDER BY {', '.join(table.order)}").df()
        return frame.astype(_dtypes(table))

    @contextmanager
    def _database(self, tables: Iterable[Table], *, sealed: bool = True) -> Iterator[DuckDBPyConnection]:
        with connect() if sealed else scratch() as connection:
            records = self.records()
            for table in dict.fromkeys(VIEWS.get(table.name, table) for table in tables):
                self._load(connection, table, records)
                make_view(connection, table)
            if sealed:
                seal(connection)
            yield connection

    def _load(
        self, connection: DuckDBPyConnection, table: Table, records: Mapping[str, Record], where: str = "true"
    ) -> dict[str, Path]:
        """Create `table` from the files of these runs, and return those used; the others are reported as warnings."""
        if table is RUNS:
            load_rows(connection, table, [record.row for record in records.values()], cleaned=True)
            return {}
        files = {run: path for run, record in records.items() if record.row["status"] in WHOLE
                 and (path := self._checked(run, record, table)) is not None}  # fmt: skip
        for run, why in load_runs(connection, table, files, where).items():
            path = files.pop(run)
            if path.exists():  # the run may have been removed since it was listed
                self._warn(run, f"{path} cannot be used: {why}")
        return files

    def _checked(self, run: str, record: Record, table: Table) -> Path | None:
        """The file of a run's table after checking its checksum; None if it is missing or damaged."""
        folder = self.folder(run)
        try:
            return folder.check(record, table.name)
        except StoreError as error:
            if folder.exists():  # the run may have been removed since it was listed
                self._warn(run, str(error))
            return None

    def rows(self) -> list[dict[str, Any]]:
        """The rows of table runs; a run that cannot be read is listed as failed."""
        return [record.row for record in self.records().values()]

    def records(self) -> dict[str, Record]:
        """The records (row and checksums) of all runs, by their ids."""
        records = {}
        for run in self.ids():
            try:
                record = self.folder(run).known()
            except StoreError as error:
                record = blank(run, status="failed", message=str(error)[:LONGEST_TEXT])
                self._warn(run, str(error))
            if record.row["status"] is not None:  # None means that the run was removed since it was listed
                records[run] = record
        return records

    def _warn(self, run: str, problem: str) -> None:
        warnings.warn(StoreWarning(f"run {run} is left out: {problem}"), stacklevel=2)


class Snapshot(Store):
    """A copy of some tables of a store in memory, taken at one moment so that all parts of a report agree.

    A run beyond the limits of `bounds` is listed as failed, with the reason and a `StoreWarning`, like one that cannot
    be read. Effects measured during training stay in their files (`on_the_way`), because there may be millions.
    `among` limits the runs whose tables are read; all runs are listed.
    """

    def __init__(self, store: Store, tables: Sequence[str] = USUAL, among: Container[str] | None = None) -> None:
        import duckdb

        super().__init__(store.path)
        self._source = store
        self._kept = {run: self._bounded(record) for run, record in store.records().items()}
        read = {run: record for run, record in self._kept.items() if among is None or run in among}
        self._effects: dict[str, Path] = {}
        self._connection = connect()
        try:
            for table in dict.fromkeys(VIEWS.get(name) or STORED[name] for name in tables):
                self._take(self._connection, table, self._kept if table is RUNS else read)
                make_view(self._connection, table)
        except duckdb.Error as error:  # a single file that cannot be read does not raise this
            raise StoreError(f"cannot read {store.path}: {one_line(error)[:300]}") from None
        seal(self._connection)

    def records(self) -> dict[str, Record]:
        return {run: replace(record, row=dict(record.row)) for run, record in self._kept.items()}

    @cached_property
    def probed(self) -> set[str]:
        """The ids of runs with interventions during training."""
        return runs_with(ALONG, self._effects)

    def exists(self) -> bool:
        return self._source.exists()

    def folder(self, run: str) -> RunFolder:
        return self._source.folder(run)

    def on_the_way(self, runs: Sequence[str]) -> pd.DataFrame:
        """The effects of these runs that were measured during training."""
        with scratch() as connection:
            self._take(connection, EFFECTS, {run: self._kept[run] for run in runs}, on_the_way=True)
            return connection.execute(f"FROM {EFFECTS.name}").df()

    @contextmanager
    def _database(self, tables: Iterable[Table], *, sealed: bool = True) -> Iterator[DuckDBPyConnection]:
        yield self._connection

    def _bounded(self, record: Record) -> Record:
        """The record brought within the limits; for a run that cannot be shown, a failed record with the reason."""
        run, problem = record.row["run"], row_problem(record.row)
        if problem is None:
            return replace(record, row=bounded_row(record.row))
        self._warn(run, problem)
        return blank(run, status="failed", message=problem)

    def _take(
        self, connection: DuckDBPyConnection, table: Table, records: Mapping[str, Record], *, on_the_way: bool = False
    ) -> None:
        """Create a table of these runs within the limits; effects are those from during training, or all others."""
        wanted = "true" if table is not EFFECTS else ALONG if on_the_way else f"NOT ({ALONG})"
        files = self._load(connection, table, records, wanted)
        if table is EFFECTS and not on_the_way:
            self._effects = files
        for run, what in () if table is RUNS else bound_table(connection, table):
            warnings.warn(StoreWarning(f"run {run} is shown without some of its rows: {what}."), stacklevel=2)


def snapshot_of(store: Store, *tables: str, among: Container[str] | None = None) -> Store:
    """A snapshot of these tables, or the store itself if it is already a snapshot or does not exist yet."""
    if isinstance(store, Snapshot) or not store.exists():
        return store
    return Snapshot(store, tables, among)


def _dtypes(table: Table) -> dict[str, Any]:
    """The data types of a frame according to the schema, so that missing values do not make integers floats."""
    import pandas as pd

    text = pd.Series(["text"]).dtype  # depends on the version of pandas
    of_type = {"INTEGER": "Int32", "BIGINT": "Int64", "DOUBLE": "float64", "TIMESTAMP": "datetime64[us]"}
    return {column.name: of_type.get(column.type, text) for column in table.columns}


def _usable(path: str | Path) -> Path:
    """The folder of a store, or a one-line error if this program could not keep runs there."""
    if URL.match(str(path)):
        address = URL.sub(r"\1://", str(path))  # a `Path` keeps one slash
        raise UserError(f"the store {address} is a URL; mount it as a folder, or use a folder that all machines share.")
    try:
        os.path.abspath(path).encode()  # noqa: PTH100 (it must not follow links)
    except UnicodeEncodeError:
        raise UserError(f"cannot use the store {path}: its path is not UTF-8, which DuckDB needs; rename it.") from None
    return Path(path)


def _few(runs: Sequence[str]) -> str:
    return ", ".join(runs[:FEW]) + (", …" if len(runs) > FEW else "")
