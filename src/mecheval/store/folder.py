"""The folder of one run: its lock, and how its files are written, read and checked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from mecheval.files import is_at, sha256, write_atomic
from mecheval.machine import check_address_space, environment
from mecheval.store.guard import Record, StoreError, blank, read_file, read_record, write_record, writing
from mecheval.store.lock import acquire, gone, is_locked
from mecheval.store.schema import LONGEST_TEXT, STATUSES, STORED, VIEWS, WHOLE
from mecheval.store.tables import read_parquet, to_parquet

TABLE_SPACE = 1 << 30
"""Bytes of address space that DuckDB may take when the first table is written."""
STATUS_BYTES = 4_000_000
"""Largest size of a status file in bytes; most have about 3,000, mainly the config."""
ENVIRONMENT = "environment.json"
UNSEALED = STATUS, LOCK = "status.json", "lock"
"""Files whose checksums are not in the status; neither are those of checkpoints, which contain their own."""
MOST_PROBLEMS = 20
"""Number of problems after which `mecheval verify` stops checking a run."""
ALWAYS = ("history", "scores")
"""Tables that every whole run has, even one that was made before there were checksums."""


class RunFolder:
    """The folder of one run; `path.name` is the run's id.

    Any process may read it. Processes write only inside `exclusive`, so that there is one writer at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, path.name
        self._fresh: dict[str, str] = {}  # checksums of files that this object has written since the last status
        self._lock: int | None = None  # descriptor of the lock file while this object holds the run
        self._begun = False  # whether the run has had a status since then

    @property
    def weights(self) -> Path:  # folder of the trained weights, as safetensors
        return self.path / "weights"

    @property
    def checkpoints(self) -> Path:  # folder of the checkpoints from which interrupted training resumes
        return self.path / "checkpoint"

    def table(self, name: str) -> Path:
        """The Parquet file of the table or view called `name`, which has another name in older runs."""
        files = [self.path / file for file in (VIEWS.get(name) or STORED[name]).files]
        return next((file for file in files if os.path.lexists(file)), files[0])

    def exists(self) -> bool:
        """Whether this run has begun, that is, has a status file."""
        try:
            (self.path / STATUS).lstat()
        except OSError as error:  # any other error means that there is a file, and reading it will say what is wrong
            return not isinstance(error, FileNotFoundError | NotADirectoryError)
        return True

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the run's lock, so that no other process writes to it, until the block ends or the process dies.

        Creates the folder, and removes temporary files of killed writers. A run that another process holds is an error.
        """
        return self._holding(create=True, wait=False)

    def saving(self) -> AbstractContextManager[None]:
        """Like `exclusive`, to save what was computed from the run: wait while another process holds the run.

        If the run was moved or removed meanwhile, that is an error.
        """
        return self._holding(create=False, wait=True)

    @contextmanager
    def _holding(self, *, create: bool, wait: bool) -> Iterator[None]:
        self._lock = acquire(self.path / LOCK, create=create, wait=wait)
        try:
            with writing(self.path / LOCK):
                for leftover in self.leftovers():
                    leftover.unlink()
            if not create and not self.exists():
                raise self._lost()
            yield
        finally:
            os.close(self._lock)
            self._lock, self._begun = None, False

    def check_here(self) -> None:
        """Raise an error if the run that this process holds, or its status, was moved or removed meanwhile."""
        if self._lock is not None and not is_at(self._lock, self.path / LOCK):
            raise gone(self.path)
        if self._begun and not self.exists():
            raise self._lost()

    def check_writable(self) -> None:
        """Raise a one-line error if this process cannot write to the run; call it before computing anything."""
        with self.exclusive():
            self.check_tables()

    def check_tables(self) -> None:
        """The same for a process that holds the run. DuckDB takes its memory now, before it may be short."""
        check_address_space(TABLE_SPACE, "to write the tables of a run")
        self._as_file("history", [])

    def leftovers(self) -> list[Path]:
        """Temporary files that killed writers left behind."""
        return list(self.path.rglob(".*.part"))

    def is_held(self) -> bool:
        """Whether a process, this one or another, is inside `exclusive`."""
        return is_locked(self.path / LOCK)

    def is_lost(self) -> bool:
        """Whether there are files of a run, but no status, without which they count for nothing."""
        there = any(path.name != LOCK and path.name[0] != "." for path in self.path.rglob("*"))
        return there and not self.exists() and not self.is_held() and not self.exists()

    def status(self) -> dict[str, Any]:
        """The run's row of table `runs`, with None for unknown values; before the run begins, only its id is known.

        A run whose file says `running` although no process holds it is `interrupted`: its process has died.
        """
        return self.record().row

    def record(self) -> Record:
        """The run's row and the checksums of its files; raises an error if the status file is damaged."""
        record = self._read_record()
        try:
            if record.row["status"] == "running" and not self.is_held():
                record.row["status"] = "interrupted"
        except OSError as error:
            self._unreadable(self.path / LOCK, error)
        return record

    def known(self) -> Record:
        """The same, but a run that has lost its status is an error."""
        record = self.record()
        if record.row["status"] is None and self.is_lost():
            raise self._lost()
        return record

    def set_status(self, **columns: Any) -> None:
        """Set columns of the run's row; `updated` is set, too, and the others do not change.

        A status that makes the run whole records the checksums of all its files.
        """
        self.check_here()
        before = self._read_record()
        row = dict(before.row)
        choices = [name for name in row if name not in ("run", "started", "updated")]
        for name in columns:
            if name not in choices:
                raise ValueError(f"column {name!r} of table runs cannot be set; choices: {', '.join(choices)}")
        row |= columns
        row["message"] = row["message"] and row["message"][:LONGEST_TEXT]
        if row["status"] not in STATUSES:
            raise ValueError(f"unknown status {row['status']!r}; choices: {', '.join(STATUSES)}")
        row["updated"] = datetime.now(UTC).replace(tzinfo=None)
        row["started"] = row["started"] or row["updated"]
        known = before.files if before.row["status"] in WHOLE else {}
        self._write_record(Record(row, self._vouched(known) if row["status"] in WHOLE else {}))

    def seal(self, row: Mapping[str, Any]) -> None:
        """Make a copy of a run whole: `row` is the row of the original, and the checksums are those of the copy."""
        self._write_record(Record(dict(row), dict(sorted(self._vouched({}).items()))))

    def write_files(self, files: Mapping[str, bytes]) -> None:
        """Write files of the run, each atomically; `files` has their contents by their names below the run's folder.

        The status of a whole run first accepts the old and the new versions of the files, and in the end only the new
        ones, so that every file is valid even if the process is killed in between.
        """
        record = self._read_record()
        whole = record.row["status"] in WHOLE
        if whole:
            record = Record(record.row, self._vouched(record.files, record.replacing), sealed=True)
            self._write_record(record.accepting({name: sha256(content) for name, content in files.items()}))
        self.check_here()
        for name, content in files.items():
            path = self.path / name
            with writing(path):
                path.parent.mkdir(exist_ok=True)
                write_atomic(path, content)
            self._fresh[name] = sha256(content)
        if whole:
            self._write_record(Record(record.row, {**record.files, **self._fresh}))

    def write(self, table_name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write all rows of one of the run's tables; column `run` is filled in."""
        self.write_files(self._as_file(table_name, rows))

    def read(self, table_name: str) -> list[dict[str, Any]]:
        """The rows of a table or view of the run after checking its checksum; none if it was not written."""
        path = self.check(self.record(), table_name)
        try:
            return [] if path is None else read_parquet(self.id, path, table_name)
        except ValueError as error:
            self._unreadable(self.table(table_name), error)

    def replace(self, tables: Mapping[str, Sequence[Mapping[str, Any]]], same: Sequence[str], part: str) -> None:
        """Add rows to some of the run's tables, replacing old rows that agree with a new one in the columns `same`.

        `part` names the computation that produced the rows; its environment is recorded under that name.
        """
        files: dict[str, bytes] = {}
        for name, rows in tables.items():
            new = {tuple(row[column] for column in same) for row in rows}
            old = [row for row in self.read(name) if tuple(row[column] for column in same) not in new]
            files |= self._as_file(name, [*old, *rows])
        self.write_files(files | self.environment_file(part))

    def read_file(self, name: str) -> bytes:
        """The content of a file of a whole run, after checking its checksum."""
        return self._checked(self.record(), name)

    def check(self, record: Record, table_name: str) -> Path | None:
        """The file of a table of a whole run, after checking its checksum; None if the run has no such table."""
        table = VIEWS.get(table_name) or STORED[table_name]
        wanted = [name for name in table.files if name in record.files or os.path.lexists(self.path / name)]
        if not wanted and not record.sealed and table.name in ALWAYS:
            wanted = [table.files[0]]
        for name in wanted:
            self._checked(record, name)
            return self.path / name
        return None

    def check_whole(self) -> None:
        """Raise an error if a file of a whole run is damaged; call it before computing anything from the run."""
        for problem in self._damaged(self.record()):
            raise StoreError(problem)

    def problems(self) -> list[str]:
        """The problems with the files of a whole run, one line each, for `mecheval verify`."""
        record = self.record()
        if record.row["status"] not in WHOLE:
            return []
        extra = set(self._files()) - record.files.keys() - record.replacing.keys() if record.sealed else ()
        more = [f"{self.path / name} is not among the files of the run." for name in sorted(extra)]
        return [*self._damaged(record), *more]

    def _damaged(self, record: Record) -> Iterator[str]:
        names = list(record.files) if record.sealed else [self.table(table).name for table in ALWAYS]
        found = 0
        for place, name in enumerate(names, start=1):
            try:
                self._checked(record, name)
            except StoreError as error:
                yield str(error)
                found += 1
            if found == MOST_PROBLEMS and place < len(names):
                yield f"{len(names) - place:,} more files of {self.path} were not checked."
                return

    def environment_file(self, part: str) -> dict[str, bytes]:
        """The file environment.json with one more part of the run, such as "training from step 0"."""
        parts = {name: kept for name, kept in self.environments().items() if name != part}
        return {ENVIRONMENT: json.dumps(parts | {part: environment()}, indent=1).encode() + b"\n"}

    def environments(self) -> dict[str, Any]:
        """The environments in which the parts of the run were computed, by the parts' names."""
        record = self._read_record()
        there = ENVIRONMENT in record.files or os.path.lexists(self.path / ENVIRONMENT)
        if there and record.row["status"] in WHOLE:
            self._checked(record, ENVIRONMENT)
        try:
            found = json.loads(read_file(self.path / ENVIRONMENT, self.path.parent, STATUS_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        return found if all(isinstance(each, dict) for each in found.values()) else {"training": found}  # before 0.2

    def _as_file(self, table_name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
        self.check_here()
        path = self.path / STORED[table_name].files[0]
        with writing(path):
            return {path.name: to_parquet(STORED[table_name], [{**row, "run": self.id} for row in rows], path)}

    def _checked(self, record: Record, name: str) -> bytes:
        """The content of one of the run's files, if it matches its checksum in `record` or in a newer record."""
        path = self.path / name
        while True:
            try:
                content = read_file(path, self.path.parent)
            except FileNotFoundError:
                problem = f"{path} is missing; restore it, or remove the folder to train it again."
            except OSError as error:
                self._unreadable(path, error)
            else:
                if not record.sealed or record.vouches(name, content):
                    return content
                problem = f"{path} does not match its checksum; restore it, or remove the folder to train it again."
            newer = self.record()
            if newer == record:
                raise StoreError(problem)
            record = newer  # since the record was read, the file was replaced or the run removed

    def _vouched(self, known: Mapping[str, str], replacing: Mapping[str, str] = {}) -> dict[str, str]:
        """The checksums of all files of the run: the known ones, and the others computed from the files."""
        names = self._files()
        settled = {name: known[name] for name in names if name in known and name not in replacing}
        unknown = [name for name in names if name not in settled and name not in self._fresh]
        measured = {name: sha256(read_file(self.path / name, self.path.parent)) for name in unknown}
        return settled | measured | {name: digest for name, digest in self._fresh.items() if name in names}

    def _files(self) -> list[str]:
        """The names, below the folder, of the files whose checksums belong in the status."""
        paths = (path for path in self.path.rglob("*") if not path.is_dir() and self.checkpoints not in path.parents)
        names = (path.relative_to(self.path).as_posix() for path in paths if not path.name.startswith("."))
        return sorted(name for name in names if name not in UNSEALED)

    def _read_record(self) -> Record:
        try:
            return read_record(read_file(self.path / STATUS, self.path.parent, STATUS_BYTES), self.id)
        except (FileNotFoundError, NotADirectoryError):
            return blank(self.id)
        except StoreError:
            raise
        except (OSError, ValueError) as error:
            self._unreadable(self.path / STATUS, error)

    def _write_record(self, record: Record) -> None:
        content = write_record(record)
        if len(content) > STATUS_BYTES:
            raise StoreError(f"the config of run {self.id} is too large: a status has at most {STATUS_BYTES:,} bytes.")
        with writing(self.path / STATUS):
            write_atomic(self.path / STATUS, content)
        self._begun = self._lock is not None
        if record.row["status"] in WHOLE and not record.replacing:
            self._fresh = {}

    def _lost(self) -> StoreError:
        return StoreError(f"{self.path / STATUS} is missing; restore it, or remove the folder to train the run again.")

    def _unreadable(self, path: Path, error: Exception) -> NoReturn:
        why = error.strerror if isinstance(error, OSError) else f"the file is damaged ({error})"
        raise StoreError(f"cannot read {path}: {why}; to train run {self.id} again, remove its folder.") from error
