"""One run's folder: who may write to it, and how."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from mecheval.errors import UserError
from mecheval.files import write_atomic
from mecheval.store.schema import RUNS, STATUSES, TABLES
from mecheval.store.tables import read_parquet, write_parquet

PATIENCE, PAUSE = 20, 0.01
"""Someone who asks whether a run is held has its lock for a moment, so a refusal counts only when it lasts (0.2 s)."""


class StoreError(UserError):
    """A file of the store cannot be written or read."""


class RunHeld(UserError):
    """Another process is writing to this run."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell a full disk or a missing permission while writing `path` as one line.

    Writes are atomic, so what was saved before such an error is still there.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; what was saved before is intact.") from error


class RunFolder:
    """The folder of one run; `path.name` is the run's id.

    Any process may read. A process that writes does so inside `exclusive`, so files have one writer at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, path.name
        self._status, self._lock, self._config = path / "status.json", path / "lock", path / "config.yaml"

    @property
    def weights(self) -> Path:
        """Folder of the trained weights, as safetensors."""
        return self.path / "weights"

    @property
    def checkpoints(self) -> Path:
        """Folder of what training needs to go on after it was interrupted."""
        return self.path / "checkpoint"

    def table(self, name: str) -> Path:
        """Parquet file of the table `name`."""
        return self.path / f"{TABLES[name].name}.parquet"

    def exists(self) -> bool:
        """Whether this run has begun: a run is there from its first status on."""
        try:
            self._status.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # something is there, and reading it will tell what is wrong
            return True
        return True

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Be the only one to write to this run, until the block ends or the process dies.

        Creates the folder and removes what killed writers left. The lock is the kernel's (flock), so it never goes
        stale; who holds it is written into the lock file for others to tell.
        """
        with writing(self._lock):
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with writing(self._lock):
                self._acquire(descriptor)
                holder = {"process": os.getpid(), "host": socket.gethostname(), "since": f"{_now():%Y-%m-%d %H:%M:%S}"}
                os.truncate(descriptor, 0)  # in place: the lock is on this very file
                os.write(descriptor, json.dumps(holder).encode())
                for leftover in self.path.rglob(".*.part"):
                    leftover.unlink()
            yield
        finally:
            os.close(descriptor)

    def is_held(self) -> bool:
        """Whether a process, this one or another, is inside `exclusive`."""
        try:
            descriptor = os.open(self._lock, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def status(self) -> dict[str, Any]:
        """The run's row of table `runs`; what is not known is None, before the run has begun everything but its id.

        A run that says it is running while nobody holds it is `interrupted`: its process died.
        """
        row = self._read_status()
        try:
            if row["status"] == "running" and not self.is_held():
                row["status"] = "interrupted"
        except OSError as error:
            self._unreadable(self._lock, error)
        return row

    def set_status(self, **columns: Any) -> None:
        """Change these columns of the run's row, and `updated`; the others stay as they are.

        JSON has no word for numbers that are not finite; they are missing.
        """
        row = self._read_status()
        choices = [name for name in row if name not in ("run", "started", "updated")]
        for name in columns:
            if name not in choices:
                raise ValueError(f"column {name!r} of table runs cannot be set; choices: {', '.join(choices)}")
        row |= columns
        if row["status"] not in STATUSES:
            raise ValueError(f"unknown status {row['status']!r}; choices: {', '.join(STATUSES)}")
        row["updated"] = _now()
        row["started"] = row["started"] or row["updated"]
        ready = {column.name: _json_value(column.clean(row[column.name])) for column in RUNS.columns}
        self._write(self._status, json.dumps(ready, indent=1, allow_nan=False) + "\n")

    def write(self, table_name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write one of the run's tables, whole; `run` is filled in here."""
        path = self.table(table_name)
        with writing(path):
            write_parquet(path, TABLES[table_name], [{**row, "run": self.id} for row in rows])

    def read(self, table_name: str) -> list[dict[str, Any]]:
        """The rows of one of the run's tables; none where it was not written."""
        path = self.table(table_name)
        return read_parquet(path, TABLES[table_name]) if path.exists() else []

    def replace(self, table_name: str, rows: Sequence[Mapping[str, Any]], same: Sequence[str]) -> None:
        """Write `rows` into one of the run's tables in place of those that agree with one of them in columns `same`."""
        new = {tuple(row[name] for name in same) for row in rows}
        old = [row for row in self.read(table_name) if tuple(row[name] for name in same) not in new]
        self.write(table_name, [*old, *rows])

    def write_config(self, text: str) -> None:
        """Write config.yaml, from which the run can be trained again."""
        self._write(self._config, text)

    def write_environment(self) -> None:
        """Write environment.json: what the run is trained with; after a continuation, the latest."""
        from mecheval.store.environment import environment

        self._write(self.path / "environment.json", json.dumps(environment(), indent=1) + "\n")

    def _acquire(self, descriptor: int) -> None:
        for _ in range(PATIENCE):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(PAUSE)
            else:
                return
        try:
            holder = json.loads(os.pread(descriptor, 1000, 0))
            who = f"process {holder['process']} on host {holder['host']} (since {holder['since']} UTC)"
        except (ValueError, TypeError, KeyError):  # the holder has not written itself down yet
            who = "another process"
        raise RunHeld(f"run {self.id} is being trained by {who}.")

    def _read_status(self) -> dict[str, Any]:
        """The row as it was written."""
        try:
            saved = json.loads(self._status.read_bytes(), parse_constant=_not_json)
            if not isinstance(saved, dict) or "status" not in saved:
                raise ValueError("it has no status")
            return {column.name: column.clean(saved.get(column.name)) for column in RUNS.columns} | {"run": self.id}
        except (FileNotFoundError, NotADirectoryError):
            return {column.name: None for column in RUNS.columns} | {"run": self.id}
        except (OSError, ValueError) as error:
            self._unreadable(self._status, error)

    def _write(self, path: Path, content: str) -> None:
        with writing(path):
            write_atomic(path, content)

    def _unreadable(self, path: Path, error: Exception) -> NoReturn:
        why = error.strerror if isinstance(error, OSError) else f"the file is damaged ({error})"
        raise StoreError(f"cannot read {path}: {why}; to train run {self.id} anew, remove its folder.") from error


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value.isoformat()}Z"
    return None if value in (float("inf"), -float("inf")) else value


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
