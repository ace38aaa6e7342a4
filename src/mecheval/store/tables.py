"""Converts rows to Parquet and back, with DuckDB, and bounds the time and memory of queries."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.store.schema import LONGEST_TEXT, STORED, VIEWS, Column, Table

if TYPE_CHECKING:  # DuckDB is slow to import, and only needed to read or write a table
    import pandas as pd
    from duckdb import DuckDBPyConnection

FROM_FILE = "from_file"
"""Temporary column with the file that a row comes from."""
MOST_ROWS, MOST_BYTES = 2_000_000, 1 << 30
"""Largest number of rows in a file, and of bytes that they take in memory; most files have a few thousand rows."""
MOST_GROUPS = 100
"""Largest number of row groups in a file; DuckDB writes one for every 122,880 rows."""
SMALL = 1 << 14
"""Size in bytes below which only a file's rows are counted, because Zstandard expands it to less than `MOST_BYTES`."""
MOST_METRICS = 100
"""Largest number of metrics in a wide view besides those of the schema; the table itself has all of them."""
LONGEST_BYTES = 4 * LONGEST_TEXT
"""Largest number of bytes in a text that is read from a file; a character takes up to four."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG)
Rows = Sequence[Mapping[str, Any]]
MEMORY = "2GB"
"""Largest memory that DuckDB may use for one query; the tables of thousands of runs take a tenth of it."""
CHUNK, CHUNK_BYTES = 1000, 100_000_000
"""Largest number of vectors (of 2,048 rows) and approximate number of bytes fetched from DuckDB at a time."""
MAX_VALUES, MAX_BYTES = 10_000_000, 400_000_000
"""Largest number of values (rows times columns) and of bytes in a result, which DuckDB's limit does not cover."""
MOST_MEMORY = 1_000_000_000
"""Bytes by which this process may grow in one query; DuckDB's own limit does not count computed texts."""
MOST_SECONDS, GRACE_SECONDS = 6.0, 2.0
"""CPU seconds after which a query is interrupted, and seconds that it then has to end; most queries take about one."""
LOOK_SECONDS = 0.1
"""Seconds between two checks of the time that a query has taken."""
TOO_LONG = "this takes too long; ask for fewer rows or columns, or allow more time with --seconds."
LONGEST_ANSWER, LONGEST_LIST = 10_000_000, 1_000_000
"""Largest number of characters in a value of a result, and of elements in a list, because showing them takes long."""
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,  # the order of rows, and so the bytes of a file, must not depend on the machine
    "autoinstall_known_extensions": False,  # no network
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # a name in SQL is a table, never a Python variable
    "temp_directory": "",  # no temporary files
    "memory_limit": MEMORY,  # a small file can contain a huge table
}

_KEPT = threading.local()
"""The databases of `scratch`, by thread and process."""


def connect() -> DuckDBPyConnection:
    """A database in memory. It can still open files, for this module's SQL; `seal` it before running a user's SQL."""
    import duckdb

    connection = duckdb.connect(":memory:", config=SETTINGS)
    connection.execute("SET enable_progress_bar = false")  # it would appear in the middle of the output
    return connection


@contextmanager
def scratch() -> Iterator[DuckDBPyConnection]:
    """A connection that is not sealed, with its own tables, to a database that this thread opens only once.

    Opening one takes 20 ms, much longer than reading or writing a run's table. A forked child opens its own.
    """
    opened = _KEPT.__dict__.setdefault("databases", {})
    if os.getpid() not in opened:
        opened[os.getpid()] = connect()
    with opened[os.getpid()].cursor() as connection:
        yield connection


@contextmanager
def interrupted_after(
    seconds: float, connection: DuckDBPyConnection, unheeded: Callable[[], None] | None = None
) -> Iterator[None]:
    """Interrupt queries of the connection after `seconds` CPU seconds, which do not depend on the machine's load.

    The interruption is repeated, because it has no effect between two steps of a query. SQL functions ignore it; if a
    query still runs `GRACE_SECONDS` later, another thread calls `unheeded`.
    """
    end, done = time.process_time() + seconds, threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_SECONDS):
            late = time.process_time() - end
            if late > 0:
                connection.interrupt()
            if late > GRACE_SECONDS and unheeded is not None:
                unheeded()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def seal(connection: DuckDBPyConnection) -> None:
    """Keep the database's SQL from all files; a list of allowed folders would let it overwrite what is in them."""
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def load_rows(connection: DuckDBPyConnection, table: Table, rows: Rows, *, cleaned: bool = False) -> None:
    """Create `table` from `rows`, which have exactly its columns; None and NaN become NULL.

    With `cleaned`, the values have already passed through `Column.clean`.
    """
    table.check(rows)
    columns = [(column, [row.get(column.name) for row in rows]) for column in table.columns]
    values = [[_plain(each if cleaned else column.clean(each)) for each in given] for column, given in columns]
    _create(connection, table)
    lists = ", ".join(f"unnest(?::{column.type}[])" for column in table.columns)  # much faster than inserting each row
    connection.execute(f"INSERT INTO {table.name} SELECT {lists}", values)


def load_files(
    connection: DuckDBPyConnection, table: Table, files: Sequence[Path], *more: str, where: str = "true"
) -> None:
    """Create `table` from Parquet files. Columns that a file lacks are NULL, and unknown columns are dropped.

    `more` can be `FROM_FILE`, for a column with the file of each row; `where` is an SQL condition for the rows.
    """
    import duckdb

    _create(connection, table, *more)
    if files:
        names = ", ".join([*(_selected(column) for column in table.columns), *more])
        file = f", filename = '{FROM_FILE}'" if more else ""
        read = f"read_parquet(?, union_by_name = true, hive_partitioning = false{file})"
        every = _long(table, f"FROM {table.name} UNION ALL BY NAME FROM {read}")
        try:
            connection.execute(f"INSERT INTO {table.name} SELECT {names} FROM ({every}) WHERE {where}", [_names(files)])
        except duckdb.OutOfMemoryException:
            raise UserError(f"cannot read the table {table.name}: it takes more than {MEMORY} of memory.") from None


def _selected(column: Column) -> str:
    """SQL for a column of files. Too long a text is an error before it is copied, because a few bytes can repeat it."""
    value, name = column.name, column.name
    if column.type == "VARCHAR":
        size = f"strlen({name}::VARCHAR)"
        value = f"if({size} > {LONGEST_BYTES}, error('column {name} has a text of ' || {size} || ' bytes'), {name})"
    return f"{f'coalesce({value}, {column.older})' if column.older else value} AS {name}"


def _long(table: Table, rows: str) -> str:
    """SQL that brings rows, which may be in the wide form, into the form of the table."""
    if not table.wide:
        return rows
    names, values = ", ".join(f"'{name}'" for name in table.metrics), ", ".join(table.metrics)
    empty = ", ".join(f"NULL::DOUBLE AS {name}" for name in table.metrics)
    return f"""
        SELECT * REPLACE (
            unnest(if(metric IS NULL, [{names}], [metric])) AS metric,
            unnest(if(metric IS NULL, [{values}], [value])) AS value
        ) FROM ({rows} UNION ALL BY NAME SELECT {empty} WHERE false)
    """


def make_view(connection: DuckDBPyConnection, table: Table) -> None:
    """Create the wide view of a loaded table, with a column for each metric, those of the schema first."""
    if not table.wide:
        return
    found = connection.execute(f"SELECT DISTINCT metric FROM {table.name} ORDER BY metric").fetchall()
    taken = {column.name for column in table.wide.columns}  # column names are case-insensitive in SQL
    more = {name.casefold(): name for (name,) in found if name and name.casefold() not in taken}
    columns = [column.name for column in table.wide.columns if column.name not in (*table.metrics, "n")]
    for name in (*table.metrics, *list(more.values())[:MOST_METRICS]):
        text, column = name.replace("'", "''"), name.replace('"', '""')
        columns.append(f"""max(value) FILTER (metric = '{text}') AS "{column}\"""")
    shown = f"SELECT {', '.join(columns)}, max(n) AS n FROM {table.name} GROUP BY ALL"
    connection.execute(
        f"CREATE OR REPLACE TEMP VIEW {table.wide.name} AS {shown} ORDER BY {', '.join(table.wide.order)}"
    )


def load_runs(
    connection: DuckDBPyConnection, table: Table, files: Mapping[str, Path], where: str = "true"
) -> dict[str, str]:
    """Create `table` from the Parquet files of runs, and return the runs that are left out, with the reason for each.

    A file from elsewhere may not be Parquet, or may have columns of other types, rows of other runs or huge texts. All
    files are read together, which is fast; only if that fails is each read separately.
    """
    import duckdb

    problems: dict[str, str] = {}
    while True:  # once or twice, unless files vanish meanwhile
        left = {run: path for run, path in files.items() if run not in problems}
        try:
            _load_runs(connection, table, left, where)
            return problems
        except (duckdb.Error, ValueError) as error:
            together = one_line(error)
        for run, path in left.items():
            try:
                _load_runs(connection, table, {run: path}, where)
            except (duckdb.Error, ValueError) as error:
                problems[run] = one_line(error)
        if not left.keys() & problems.keys():
            raise UserError(f"the table {table.name} cannot be read: {together}")


def _load_runs(connection: DuckDBPyConnection, table: Table, files: Mapping[str, Path], where: str) -> None:
    _check_files(connection, list(files.values()))
    load_files(connection, table, list(files.values()), FROM_FILE, where=where)
    owner = f"string_split({FROM_FILE}, '/')[-2]"
    strange = connection.execute(f"SELECT run FROM {table.name} WHERE run IS DISTINCT FROM {owner} LIMIT 1").fetchone()
    if strange:
        raise ValueError(f"it has rows of run {str(strange[0])[:80]!r}.")
    connection.execute(f"ALTER TABLE {table.name} DROP COLUMN {FROM_FILE}")


def runs_with(where: str, files: Mapping[str, Path]) -> set[str]:
    """The runs whose Parquet files have a row that satisfies this SQL condition."""
    found = f"SELECT DISTINCT run FROM read_parquet(?, union_by_name = true, hive_partitioning = false) WHERE {where}"
    with scratch() as connection:
        rows = connection.execute(found, [_names(list(files.values()))]).fetchall() if files else []
    return {run for (run,) in rows}


def _check_files(connection: DuckDBPyConnection, files: Sequence[Path]) -> None:
    """Raise an error if the metadata of a file exceed the limits, because even a small file can contain a huge table.

    Nested columns are refused, because DuckDB's time to cast them doubles with every level.
    """
    nested = "SELECT file_name FROM parquet_schema(?) WHERE num_children > 0 GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
    if files and connection.execute(nested, [_names(files)]).fetchone():
        raise ValueError("it has nested columns.")
    sizes = """
        SELECT file_name, num_rows, num_row_groups FROM parquet_file_metadata(?)
        WHERE num_rows > ? OR num_row_groups > ? OR file_size_bytes > ?
    """
    found = connection.execute(sizes, [_names(files), MOST_ROWS, MOST_GROUPS, SMALL]).fetchall() if files else []
    for name, rows, groups in found:
        if groups > MOST_GROUPS:
            raise ValueError(f"it has {groups:,} row groups; the limit is {MOST_GROUPS:,}.")
        bytes_ = "SELECT sum(total_uncompressed_size)::BIGINT FROM parquet_metadata(?)"
        [size] = connection.execute(bytes_, [glob.escape(name)]).fetchone() or [0]
        if rows > MOST_ROWS or (size or 0) > MOST_BYTES:
            limits = f"the limits are {MOST_ROWS:,} rows and {MOST_BYTES:,} bytes"
            raise ValueError(f"it has {rows:,} rows and {size:,} bytes; {limits}.")


def _names(files: Sequence[Path]) -> list[str]:
    """Paths for DuckDB, escaped because it would read a name as a pattern."""
    return [glob.escape(str(file.absolute())) for file in files]


def bounded_frame(connection: DuckDBPyConnection) -> pd.DataFrame:
    """The result of the statement that was last executed, or an error if it is too large."""
    import pandas as pd

    frames: list[pd.DataFrame] = []
    values = size = 0
    vectors = 1
    while not frames or len(frames[-1]):
        frames.append(connection.fetch_df_chunk(vectors))
        here = frames[-1].memory_usage(deep=True)
        values, size = values + frames[-1].size, size + int(here.sum())
        if values > MAX_VALUES or size > MAX_BYTES:
            most = f"{MAX_VALUES:,} values" if values > MAX_VALUES else f"{MAX_BYTES:,} bytes"
            raise UserError(f"the answer has more than {most}; ask for fewer rows or columns.")
        for name in here.index[here > LONGEST_ANSWER].difference(["Index"]):
            longest = max((len(value) for value in frames[-1][name] if isinstance(value, str | bytearray)), default=0)
            if longest > LONGEST_ANSWER:
                most = f"the limit is {LONGEST_ANSWER:,}, and left({name}, 100) takes the first 100"
                raise UserError(f"column {str(name)[:80]} has a value of {longest:,} characters; {most}.")
        for name, column in frames[-1].items():
            if column.dtype != "object":
                continue
            lengths = (len(value) for value in column if isinstance(value, Sized) and not isinstance(value, str))
            if max(lengths, default=0) > LONGEST_LIST:
                raise UserError(f"column {str(name)[:80]} has a list of more than {LONGEST_LIST:,} elements.")
        vectors = min(CHUNK, max(1, CHUNK_BYTES * vectors // max(1, int(here.sum()))))
    return frames[0] if len(frames) < 3 else pd.concat(frames[:-1], ignore_index=True)


def to_parquet(table: Table, rows: Rows, path: Path) -> bytes:
    """The bytes of a Parquet file with these rows, which depend only on the rows; `path` is where it will be."""
    import duckdb

    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        with scratch() as connection:
            load_rows(connection, table, rows)
            connection.table(table.name).write_parquet(part, compression="zstd", use_tmp_file=False)
        return Path(part).read_bytes()
    except duckdb.IOException as error:  # callers expect an OSError for a full disk
        code = next((code for code in DISK_ERRORS if os.strerror(code) in str(error)), errno.EIO)
        raise OSError(code, os.strerror(code), str(path)) from error
    except duckdb.OutOfMemoryException:
        raise MemoryError(f"to write {path}") from None
    finally:
        Path(part).unlink(missing_ok=True)


def read_parquet(run: str, path: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table or view in a run's Parquet file, or a ValueError that says why it cannot be used."""
    table = VIEWS.get(name) or STORED[name]
    with scratch() as connection:
        for problem in load_runs(connection, table, {run: path}).values():
            raise ValueError(problem)
        make_view(connection, table)
        rows = connection.execute(f"FROM {name}")
        names = [column[0] for column in rows.description or ()]
        return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


def one_line(error: Exception) -> str:
    """DuckDB's message without its excerpt of the SQL, or advice if time or memory has run out."""
    import duckdb

    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        return "this takes too much memory; ask for fewer rows or columns."
    if isinstance(error, duckdb.InterruptException):
        return TOO_LONG
    line = " ".join(re.split(r"\nLINE \d+:", str(error))[0].split())
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _create(connection: DuckDBPyConnection, table: Table, *more: str) -> None:
    columns = [*(f"{column.name} {column.type}" for column in table.columns), *(f"{name} VARCHAR" for name in more)]
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {table.name} ({', '.join(columns)})")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value.encode(errors="replace").decode() if isinstance(value, str) else value  # DuckDB needs valid Unicode
