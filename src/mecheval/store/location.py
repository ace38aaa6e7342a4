"""The location of a store: a folder, perhaps shared by several machines, or a URL (`s3://bucket/runs`, `gs://...`).

Locks, training and DuckDB need local files. So a worker pulls a run from a URL into a local store, works there, and
pushes it back; a reader pulls all results. As in a local store, the status is written last, so that an incomplete push
is never mistaken for a whole run. Runs behind a URL cannot be locked, so only one sweep at a time may write to a URL.

During a sweep, a shared folder contains a marker, by which other machines recognise the folder. The sweep's process
holds a lock (flock) on it as long as it lives. A marker that no process holds was left by a killed process, and the
next process that works on the store removes it.
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
"""Names of the files that are pushed and pulled: no locks, no temporary files and no names that leave the folder."""
MARKER = ".sweep-"
"""Prefix of the name of a marker."""
PROBE = 1 << 20
"""Number of bytes written to test whether there is room; a run writes fewer when it begins."""
SHARED_SECONDS = 10.0
"""Longest time in seconds until a shared file system shows a new file to another machine."""
PUSHES, PAUSE = 3, 5.0
"""Number of attempts to push a run that has ended, and seconds between them."""


class Mirror:
    """A store behind a URL. Files that this object has pulled or pushed are sent again only if they change."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = _open(url)
        self._root = PurePosixPath(root) / "runs"
        self._sent: dict[Path, tuple[int, int]] = {}  # files that equal their remote copies

    def check(self) -> None:
        """Raise an error unless files can be written there, rather than after hours of training."""
        probe = self._root / f".probe-{secrets.token_hex(8)}"
        self._write(probe, b"probe")
        self._remove(probe)

    def pull(self, run: str, store: str | Path) -> None:
        """Make the run's folder in a local store equal to the remote one, checkpoints included."""
        folder = _local(store, run)
        found = self._listing(run)
        for name in _ordered(found):
            if self._fetch(run, name, folder):
                self._sent[folder / name] = _mark(folder / name)
            else:
                found.pop(name)  # without a status, the run resumes from its checkpoints
        _keep_only(folder, found)

    def push(self, run: str, store: str | Path) -> None:
        """Make the remote run equal to the local one: write new files, its status last, then remove others."""
        folder = _local(store, run)
        here = {name: folder / name for name in _ordered(_files(folder))}
        new = {name: _mark(path) for name, path in here.items() if self._sent.get(path) != _mark(path)}
        self._announce(run, {name: here[name] for name in new})
        for name, mark in new.items():
            self._write(self._root / run / name, read_file(here[name], folder.parent))
            self._sent[here[name]] = mark
        for name in reversed(_ordered(self._listing(run).keys() - here.keys())):  # the JSON of a checkpoint first
            self._remove(self._root / run / name)

    def push_at_last(self, run: str, store: str | Path) -> None:
        """Push a run that has ended, retrying a few times if the URL does not answer."""
        for _ in range(PUSHES - 1):
            with suppress(StoreError):
                return self.push(run, store)
            time.sleep(PAUSE)
        return self.push(run, store)

    def _announce(self, run: str, files: Mapping[str, Path]) -> None:
        """Before replacing files of a whole run, make its remote status accept the new versions, too."""
        far = self._root / run / STATUS
        content = self._read(far) if any(not name.startswith((STATUS, CHECKPOINTS)) for name in files) else None
        try:
            record = None if content is None else read_record(content, run)
        except ValueError:  # it is damaged, and the new status will replace it
            return
        if record is not None and record.sealed and record.row["status"] in WHOLE:
            new = {name: sha256(read_file(path, path.parent)) for name, path in files.items() if name != STATUS}
            self._write(far, write_record(record.accepting(new)))

    def pull_results(self, store: str | Path, runs: Iterable[str] | None = None) -> None:
        """Bring these runs of a local copy, or all runs, up to date, except for checkpoints.

        A list of the remote files is kept next to the copy, so that only changes are transferred.
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
        """The files of every run, each as `_listing` returns them for one run."""
        there: dict[str, dict[str, str]] = {}
        for name, mark in self._listing().items():
            run, _, file = name.partition("/")
            if ID.fullmatch(run) and FILE.fullmatch(file):
                there.setdefault(run, {})[file] = mark
        return there

    def _listing(self, run: str = "") -> dict[str, str]:
        """The remote files of a run, or of all runs, each with a mark that changes when the file does."""
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
        """Copy a file to a run's local folder; return False if it has been removed or is an incomplete status."""
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
        """Write a file atomically, as object stores always do."""
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
        """Report any error as one line, because each file system has its own kinds of errors."""
        try:
            yield
        except Exception as error:
            raise StoreError(f"cannot {what} {self.url}: {said(error)}.") from error


def is_url(store: str | Path) -> bool:
    """Whether a store is behind a URL rather than in a local folder."""
    return "://" in str(store)


def local_copy(url: str) -> Path:
    """The folder in the user's cache in which this machine keeps its copy of the store behind a URL."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "mecheval" / sha256(url.rstrip("/").encode())[:16]


def open_store(path_or_url: str) -> Store:
    """Open a store for reading: a local folder, or an updated local copy of the store behind a URL."""
    if not is_url(path_or_url):
        return Store(path_or_url)
    copy = local_copy(path_or_url)
    Mirror(path_or_url).pull_results(copy)
    return Store(copy, path_or_url)


def open_published(path_or_url: str) -> Store:
    """Open a store for reading, together with the published results."""
    opened = open_store(path_or_url)
    return Published(opened.path, name=opened.name)


def check_writable(folder: Path, what: str) -> None:
    """Raise a one-line error unless files can be written to a folder, which is created if it is missing."""
    try:
        for place in (folder, *folder.parents):
            if place.is_symlink() and not place.exists():
                raise StoreError(
                    f"cannot use the {what} {folder}: {place} is a link to {place.readlink()}, which does not exist."
                )
            if place.exists() and not place.is_dir():
                raise StoreError(f"cannot use the {what} {folder}: {place} is a file, not a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # it has no name, so it never stays behind
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot write to the {what} {folder}: {error.strerror or error}.") from error


@contextmanager
def marked(place: Path) -> Iterator[str]:
    """Put a marker into a folder while the context lasts, and yield its name; stale markers are removed."""
    remove_stale(place)
    marker = place / f"{MARKER}{secrets.token_hex(8)}"
    with writing(marker):
        place.mkdir(parents=True, exist_ok=True)
        descriptor, locked = tempfile.mkstemp(dir=place, prefix=".lock-", suffix=".part")
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # before the file is renamed, so that it never looks stale
        Path(locked).rename(marker)
    try:
        yield marker.name
    finally:
        marker.unlink(missing_ok=True)
        os.close(descriptor)


def remove_stale(place: Path) -> None:
    """Remove the markers of killed processes; a marker that cannot be removed is harmless."""
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
    """Raise an error unless this machine sees the marker that the sweep's process has put into the store."""
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
        raise UserError(f"cannot open {url}: unknown protocol {protocol!r}. Choices include file, s3, gs and abfs.")
    try:
        fs, path = fsspec.core.url_to_fs(url.rstrip("/"))
    except Exception as error:
        why = in_one_line(error) if isinstance(error, ImportError) else said(error)
        raise UserError(f"cannot open {url}: {why}.") from None
    return fs, str(path)


def _local(store: str | Path, run: str) -> Path:
    """The run's folder in a local store, checked for links."""
    folder = Store(store).folder(run).path
    if folder.exists():
        check_tree(folder, folder.parent)
    return folder


def _files(folder: Path) -> list[str]:
    """The files of a run's local folder that belong in the remote store."""
    paths = [path for path in folder.rglob("*") if not path.is_symlink() and path.is_file()]
    return [name for path in paths if FILE.fullmatch(name := path.relative_to(folder).as_posix())]


def _ordered(names: Iterable[str]) -> list[str]:
    """The order in which to write files: tensors and tables, then JSON with their checksums, then the status."""
    return sorted(names, key=lambda name: (name == STATUS, name.endswith(".json"), name))


def _keep_only(folder: Path, names: Iterable[str]) -> None:
    """Remove files that the remote store does not have, those that hold checksums of others first."""
    for name in reversed(_ordered(set(_files(folder)) - set(names))):
        (folder / name).unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)


def _mark(path: Path) -> tuple[int, int]:
    """A mark that changes whenever the file does, because every write creates a new file."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _digest(info: dict[str, Any]) -> str:
    """A digest of all that the file system knows about a file, such as its size, time and version."""
    return sha256(repr(sorted(info.items())).encode())[:16]


def _parsed(content: bytes) -> dict[str, Any] | None:
    """The mapping in a JSON file, or None if the file is damaged or truncated."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
