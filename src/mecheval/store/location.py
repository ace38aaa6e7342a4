"""Where a store is: a folder, perhaps one that several machines share, or a URL (`s3://bucket/runs`, `gs://...`).

Locks, training and DuckDB want local files. So a worker pulls a run from a URL into a local store, works there, and
pushes it; a reader pulls all that has been published. In the remote store, as in a local one, the status comes last: a
push that was cut short is never taken for a whole run. Nothing locks a run there: one sweep at a time may write to a
URL.

A shared folder holds a marker, by which other machines recognise that they see the same folder as the process of the
sweep. That process holds a lock on it (flock) for as long as it lives. So a marker that no process holds was left by a
killed one, and whoever works on the store next removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from mecheval.errors import UserError, in_one_line, said
from mecheval.files import sha256, write_atomic
from mecheval.store.guard import StoreError, check_tree, read_file, read_record, write_record, writing
from mecheval.store.published import Published
from mecheval.store.schema import WHOLE
from mecheval.store.store import ID, Store

STATUS, CHECKPOINTS, SEEN = "status.json", "checkpoint/", "mirror.json"
FILE = re.compile(r"(?!lock$)\w[\w.-]*(/\w[\w.-]*)?")
"""Names of a run's files that travel: neither locks, nor temporary files, nor names that would leave the folder."""
MARKER = ".sweep-"
"""How the name of a marker begins."""
PROBE = 1 << 20
"""Bytes that are written to see whether there is room; a run writes no more than this when it begins."""
SHARED_SECONDS = 10.0
"""Seconds until a shared file system shows a new file to another machine."""
PUSHES, PAUSE = 3, 5.0
"""At the end of a run, how often a URL that does not answer is tried, and how many seconds apart."""


class Mirror:
    """A store behind a URL. What this object has pulled or pushed is not sent again until it changes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = _open(url)
        self._root = PurePosixPath(root) / "runs"
        self._sent: dict[Path, tuple[int, int]] = {}  # files whose remote copies are the same

    def check(self) -> None:
        """Raise an error unless files can be written there: better now than after hours of training."""
        probe = self._root / f".probe-{secrets.token_hex(8)}"
        self._write(probe, b"probe")
        self._remove(probe)

    def pull(self, run: str, store: str | Path) -> None:
        """Make the run's folder in a local store what it is in the remote store, checkpoints included."""
        folder = _local(store, run)
        found = self._listing(run)
        for name in _ordered(found):
            if self._fetch(run, name, folder):
                self._sent[folder / name] = _mark(folder / name)
            else:
                found.pop(name)  # if it is a status, the checkpoints know how far the run came
        _keep_only(folder, found)

    def push(self, run: str, store: str | Path) -> None:
        """Make the remote run what it is in a local store: new files, its status last, then removals."""
        folder = _local(store, run)
        here = {name: folder / name for name in _ordered(_files(folder))}
        new = {name: _mark(path) for name, path in here.items() if self._sent.get(path) != _mark(path)}
        self._announce(run, {name: here[name] for name in new})
        for name, mark in new.items():
            self._write(self._root / run / name, read_file(here[name], folder.parent))
            self._sent[here[name]] = mark
        for name in reversed(_ordered(self._listing(run).keys() - here.keys())):  # a checkpoint's JSON before tensors
            self._remove(self._root / run / name)

    def push_at_last(self, run: str, store: str | Path) -> None:
        """Push a run that has ended, and try again a few times if the URL does not answer."""
        for _ in range(PUSHES - 1):
            with suppress(StoreError):
                return self.push(run, store)
            time.sleep(PAUSE)
        return self.push(run, store)

    def _announce(self, run: str, files: Mapping[str, Path]) -> None:
        """Before files of a whole run are replaced there, have its remote status accept the new ones, too."""
        far = self._root / run / STATUS
        content = self._read(far) if any(not name.startswith((STATUS, CHECKPOINTS)) for name in files) else None
        try:
            record = None if content is None else read_record(content, run)
        except ValueError:  # it is damaged, and the new status replaces it
            return
        if record is not None and record.sealed and record.row["status"] in WHOLE:
            new = {name: sha256(read_file(path, path.parent)) for name, path in files.items() if name != STATUS}
            self._write(far, write_record(record.accepting(new)))

    def pull_results(self, store: str | Path, runs: Iterable[str] | None = None) -> None:
        """Bring these runs of a local copy up to date, or all; everything but checkpoints.

        A list of what was seen in the remote store is kept beside the copy, so that only changes travel.
        """
        copy = Store(store)
        with writing(copy.path):
            (copy.path / "runs").mkdir(parents=True, exist_ok=True)
            note = copy.path / SEEN
            seen: dict[str, str] = _parsed(note.read_bytes() if note.exists() else b"") or {}
            there = self._runs() if runs is None else {run: self._listing(run) for run in runs}
            for run, found in there.items():
                folder = _local(copy.path, run)
                wanted = {name: mark for name, mark in found.items() if not name.startswith(CHECKPOINTS)}
                for name in _ordered(wanted):
                    key = f"{run}/{name}"
                    known = seen.get(key) == wanted[name] and (folder / name).exists()
                    if not known and self._fetch(run, name, folder):
                        seen[key] = wanted[name]
                _keep_only(folder, wanted)
            for folder in (copy.path / "runs").iterdir() if runs is None else ():
                if ID.fullmatch(folder.name) and folder.name not in there:
                    shutil.rmtree(folder)
            write_atomic(note, json.dumps(seen))

    def _runs(self) -> dict[str, dict[str, str]]:
        """The files of every run, as `_listing` gives those of one."""
        there: dict[str, dict[str, str]] = {}
        for name, mark in self._listing().items():
            run, _, file = name.partition("/")
            if ID.fullmatch(run) and FILE.fullmatch(file):
                there.setdefault(run, {})[file] = mark
        return there

    def _listing(self, run: str = "") -> dict[str, str]:
        """A run's remote files, or all of them; each with a mark that changes when the file does."""
        folder = self._root / run
        found: dict[str, Any] = {}
        with self._failing("read"), suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            found = self._fs.find(str(folder), detail=True)
        start = str(folder).lstrip("/") + "/"
        files = {name.lstrip("/"): info for name, info in found.items()}
        names = {name.removeprefix(start): _digest(info) for name, info in files.items() if name.startswith(start)}
        return {name: mark for name, mark in names.items() if not run or FILE.fullmatch(name)}

    def _fetch(self, run: str, name: str, folder: Path) -> bool:
        """Copy a file into a run's local folder, unless it was removed meanwhile, or is a status that was cut short."""
        content = self._read(self._root / run / name)
        if content is None or (name == STATUS and _parsed(content) is None):
            return False
        _write(folder / name, content)
        return True

    def _read(self, path: PurePosixPath) -> bytes | None:
        with self._failing("read"), suppress(FileNotFoundError):
            return bytes(self._fs.cat_file(str(path)))
        return None

    def _write(self, path: PurePosixPath, content: bytes) -> None:
        """Write a file atomically, as object stores do by themselves."""
        from fsspec.implementations.local import LocalFileSystem

        with self._failing("write"):
            if isinstance(self._fs, LocalFileSystem):
                _write(Path(path), content)
            else:
                self._fs.pipe_file(str(path), content)

    def _remove(self, path: PurePosixPath) -> None:
        with self._failing("write"), suppress(FileNotFoundError):
            self._fs.rm_file(str(path))

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Report every error as one line: each file system has its own kinds."""
        try:
            yield
        except Exception as error:
            raise StoreError(f"cannot {what} {self.url}: {said(error)}.") from error


def is_url(store: str | Path) -> bool:
    """Whether a store is behind a URL rather than in a local folder."""
    return "://" in str(store)


def local_copy(url: str) -> Path:
    """The folder, below the user's cache folder, in which this machine keeps what it has read from a URL."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "mecheval" / sha256(url.rstrip("/").encode())[:16]


def open_store(path_or_url: str) -> Store:
    """A store to read: a local folder, or the local copy of one behind a URL, brought up to date."""
    if not is_url(path_or_url):
        return Store(path_or_url)
    copy = local_copy(path_or_url)
    Mirror(path_or_url).pull_results(copy)
    return Store(copy, path_or_url)


def open_published(path_or_url: str) -> Store:
    """The same, with the published results behind it, for those that only read."""
    opened = open_store(path_or_url)
    return Published(opened.path, name=opened.name)


def check_writable(folder: Path, what: str) -> None:
    """Raise an error of one line unless files can be written into a folder, which is made if it is missing."""
    try:
        for place in (folder, *folder.parents):
            if place.is_symlink() and not place.exists():
                raise StoreError(
                    f"cannot use the {what} {folder}: {place} is a link to {place.readlink()}, which does not exist."
                )
            if place.exists() and not place.is_dir():
                raise StoreError(f"cannot use the {what} {folder}: {place} is a file, not a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name, so nothing is left whatever happens
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot write to the {what} {folder}: {error.strerror or error}.") from error


@contextmanager
def marked(place: Path) -> Iterator[str]:
    """Inside, a marker is in the folder, which is made if it is missing; yields its name. Stale ones are removed."""
    remove_stale(place)
    marker = place / f"{MARKER}{secrets.token_hex(8)}"
    with writing(marker):
        place.mkdir(parents=True, exist_ok=True)
        descriptor, locked = tempfile.mkstemp(dir=place, prefix=".lock-", suffix=".part")
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # before it has its name, so that it never looks stale
        Path(locked).rename(marker)
    try:
        yield marker.name
    finally:
        marker.unlink(missing_ok=True)
        os.close(descriptor)


def remove_stale(place: Path) -> None:
    """Remove the markers of processes that were killed. One that cannot be removed does no harm."""
    with suppress(OSError):
        for marker in place.glob(f"{MARKER}*"):
            with suppress(OSError):
                descriptor = os.open(marker, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    marker.unlink()
                finally:
                    os.close(descriptor)


def check_shared(store: str, marker: str) -> None:
    """Raise an error unless this machine sees the marker that the process of the sweep put into the store."""
    until = time.monotonic() + SHARED_SECONDS
    while not (Path(store) / marker).exists():
        if time.monotonic() >= until:
            raise StoreError(
                f"the store {store} is not shared with node {socket.gethostname()}; "
                "use a folder that all nodes see under this path, or a URL (s3://...)."
            )
        time.sleep(0.5)


def _open(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise UserError(f"cannot open {url}: fsspec is not installed; `pip install 'mecheval[ray]'`.") from None
    protocol = url.partition("://")[0]
    if protocol not in fsspec.available_protocols():
        raise UserError(f"cannot open {url}: unknown protocol {protocol!r}; known are file, s3, gs, abfs and others.")
    try:
        fs, path = fsspec.core.url_to_fs(url.rstrip("/"))
    except Exception as error:
        why = in_one_line(error) if isinstance(error, ImportError) else said(error)
        raise UserError(f"cannot open {url}: {why}.") from None
    return fs, str(path)


def _local(store: str | Path, run: str) -> Path:
    """The run's folder in a local store, with no links in it."""
    folder = Store(store).folder(run).path
    if folder.exists():
        check_tree(folder, folder.parent)
    return folder


def _files(folder: Path) -> list[str]:
    """The files of a run's local folder that belong into the remote store."""
    paths = [path for path in folder.rglob("*") if not path.is_symlink() and path.is_file()]
    return [name for path in paths if FILE.fullmatch(name := path.relative_to(folder).as_posix())]


def _ordered(names: Iterable[str]) -> list[str]:
    """The order in which files may come: tensors and tables, then the JSON that vouches for them, the status last."""
    return sorted(names, key=lambda name: (name == STATUS, name.endswith(".json"), name))


def _keep_only(folder: Path, names: Iterable[str]) -> None:
    """Remove files that the remote store does not have, beginning with those that vouch for others."""
    for name in reversed(_ordered(set(_files(folder)) - set(names))):
        (folder / name).unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)


def _mark(path: Path) -> tuple[int, int]:
    """A mark that changes whenever the file does: every write makes a new file."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _digest(info: dict[str, Any]) -> str:
    """Size, time, version: whatever the file system says about a file, in 16 digits."""
    return sha256(repr(sorted(info.items())).encode())[:16]


def _parsed(content: bytes) -> dict[str, Any] | None:
    """The names and values of a JSON file; None where it is damaged or was cut short."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
