"""Rows to Parquet and back, with DuckDB."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.files import write_atomic
from mecheval.store.schema import Table

if TYPE_CHECKING:  # DuckDB is slow to import; only those who read or write a table wait for it
    import pandas as pd  # type: ignore[import-untyped]
    from duckdb import DuckDBPyConnection

Rows = Sequence[Mapping[str, Any]]

MEMORY = "2GB"
"""What DuckDB may use at most for one query; the tables of thousands of runs take a tenth of it."""
CHUNK = 1000
"""Rows, or vectors of 2,048 rows, that are taken from DuckDB at a time."""
MAX_VALUES = 50_000_000
"""Most values (rows times columns) of an answer: what a frame holds lies outside of DuckDB's memory."""

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,  # row order, and so the bytes of a file, must not depend on the machine
    "autoinstall_known_extensions": False,  # no network
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # a name in SQL is a table, never a Python variable
    "temp_directory": "",  # nothing is written beside the user's files
    "memory_limit": MEMORY,  # a small file can hold a huge table
}


def connect() -> DuckDBPyConnection:
    """A database in memory. Its doors are open for this module's own SQL: `seal` it before running a user's."""
    import duckdb

    return duckdb.connect(":memory:", config=SETTINGS)


def seal(connection: DuckDBPyConnection) -> None:
    """Close the database to the world for good: from here on its SQL reads and writes no file, inside the store or out.

    A list of allowed folders would not do, because what may be read there may also be overwritten.
    """
    connection.execute("SET enable_progress_bar = false")  # it would stand in the middle of an answer
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def load_rows(connection: DuckDBPyConnection, table: Table, rows: Rows) -> None:
    """Make `table` from `rows`, which have exactly its columns; None and NaN are NULL."""
    table.check(rows)
    values = [[_plain(column.clean(row[column.name])) for row in rows] for column in table.columns]
    _create(connection, table)
    lists = ", ".join(f"unnest(?::{column.type}[])" for column in table.columns)  # much faster than row by row
    connection.execute(f"INSERT INTO {table.name} SELECT {lists}", values)


def load_files(connection: DuckDBPyConnection, table: Table, files: Sequence[Path]) -> None:
    """Make `table` from Parquet files; a column that a file lacks is NULL, one that the schema lacks is left out."""
    _create(connection, table)
    if files:
        names = ", ".join(column.name for column in table.columns)
        read = "read_parquet(?, union_by_name = true, hive_partitioning = false)"
        try:
            connection.execute(
                f"INSERT INTO {table.name} SELECT {names} FROM (FROM {table.name} UNION ALL BY NAME FROM {read})",
                [[glob.escape(str(file.absolute())) for file in files]],  # a name is not a pattern
            )
        except Exception as error:
            if not _out_of_memory(error):
                raise
            raise UserError(f"the table {table.name} takes more than {MEMORY} of memory: it cannot be read.") from None


def bounded_frame(connection: DuckDBPyConnection) -> pd.DataFrame:
    """The answer to what was last executed; an error where it would fill the memory."""
    import pandas as pd

    frames: list[pd.DataFrame] = []
    values = 0
    while not frames or len(frames[-1]):
        frames.append(connection.fetch_df_chunk(CHUNK))
        values += frames[-1].size
        if values > MAX_VALUES:
            raise UserError(f"the answer has more than {MAX_VALUES:,} values; ask for fewer rows or columns.")
    return frames[0] if len(frames) < 3 else pd.concat(frames[:-1], ignore_index=True)


def write_parquet(path: str | Path, table: Table, rows: Rows) -> None:
    """Write rows as a Parquet file, whole or not at all; the same rows give the same bytes."""
    import duckdb

    path = Path(path)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        with connect() as connection:
            load_rows(connection, table, rows)
            connection.table(table.name).write_parquet(part, compression="zstd", use_tmp_file=False)
        write_atomic(path, Path(part).read_bytes())
    except duckdb.IOException as error:
        raise _os_error(error, path) from error
    finally:
        Path(part).unlink(missing_ok=True)


def is_readable(file: Path) -> bool:
    """Whether the file is not there, or is Parquet; DuckDB does not always say which of many files it cannot read."""
    import duckdb

    try:
        with connect() as connection:
            answer = connection.execute("FROM read_parquet(?)", [glob.escape(str(file.absolute()))])
            while answer.fetchmany(CHUNK):
                pass
    except duckdb.Error:
        return not file.exists()
    return True


def read_parquet(path: Path, table: Table) -> list[dict[str, Any]]:
    """The rows of a Parquet file as `write_parquet` takes them, in their order."""
    with connect() as connection:
        load_files(connection, table, [path])
        rows = connection.execute(f"FROM {table.name}").fetchall()
    return [dict(zip((column.name for column in table.columns), row, strict=True)) for row in rows]


def one_line(error: Exception) -> str:
    """DuckDB's message without the picture of the SQL below it, or what to set where memory is short."""
    if _out_of_memory(error):
        return f"this takes more than {MEMORY} of memory; ask for fewer rows or columns."
    line = " ".join(re.split(r"\nLINE \d+:", str(error))[0].split())
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _out_of_memory(error: Exception) -> bool:
    import duckdb

    return isinstance(error, duckdb.OutOfMemoryException)


def _create(connection: DuckDBPyConnection, table: Table) -> None:
    columns = ", ".join(f"{column.name} {column.type}" for column in table.columns)
    connection.execute(f"CREATE OR REPLACE TABLE {table.name} ({columns})")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value.encode(errors="replace").decode() if isinstance(value, str) else value  # DuckDB takes Unicode alone


def _os_error(error: Exception, path: Path) -> OSError:
    """DuckDB tells a full disk only in words; callers deal with OSError alone."""
    known = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG)
    code = next((code for code in known if os.strerror(code) in str(error)), errno.EIO)
    return OSError(code, os.strerror(code), str(path))
