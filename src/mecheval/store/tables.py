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

from mecheval.files import write_atomic
from mecheval.store.schema import Table

if TYPE_CHECKING:  # DuckDB is slow to import; only those who read or write a table wait for it
    from duckdb import DuckDBPyConnection

Rows = Sequence[Mapping[str, Any]]

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,  # row order, and so the bytes of a file, must not depend on the machine
    "autoinstall_known_extensions": False,  # no network
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # a name in SQL is a table, never a Python variable
    "temp_directory": "",  # nothing is written beside the user's files
}


def connect() -> DuckDBPyConnection:
    """A database in memory. Its doors are open for this module's own SQL: `seal` it before running a user's."""
    import duckdb

    return duckdb.connect(":memory:", config=SETTINGS)


def seal(connection: DuckDBPyConnection) -> None:
    """Close the database to the world for good: from here on its SQL reads and writes no file, inside the store or out.

    A list of allowed folders would not do, because what may be read there may also be overwritten.
    """
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
        connection.execute(
            f"INSERT INTO {table.name} SELECT {names} FROM (FROM {table.name} UNION ALL BY NAME FROM {read})",
            [[glob.escape(str(file.absolute())) for file in files]],  # a name is not a pattern
        )


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
            connection.execute("FROM read_parquet(?)", [glob.escape(str(file.absolute()))]).fetchall()
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
    """DuckDB's message without the picture of the SQL below it."""
    line = " ".join(re.split(r"\nLINE \d+:", str(error))[0].split())
    return line if line.endswith((".", "!", "?")) else f"{line}."


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
