"""Stores behind a URL (`s3://bucket/runs`, `gs://...`, `file:///...`), through local copies.

Locks, training and DuckDB want local files. So a worker pulls a run into a local store, works there, and pushes it; a
reader pulls all that has been published. On the far side, as in a local store, the status comes last: a push that was
cut short is never taken for a whole run. Nothing locks a run there: one sweep at a time may write to a URL.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mecheval.digests import sha256
from mecheval.errors import UserError
from mecheval.files import write_atomic
from mecheval.store.guard import StoreError, check_tree, read_file
from mecheval.store.schema import WHOLE
from mecheval.store.seal import read_record, write_record
from mecheval.store.store import ID, Store

STATUS, CHECKPOINTS, SEEN = "status.json", "checkpoint/", "mirror.json"
FILE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""Files of a run: what others put there under stranger names never becomes a path here; nor do temporary files."""
UNSHARED = ("lock",)

Mark = tuple[int, int]


class Mirror:
    """A store behind a URL. What this object has pulled or pushed is not sent again until it changes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = _open(url)
        self._root = PurePosixPath(root) / "runs"
        self._sent: dict[Path, Mark] = {}  # files whose far twins are the same

    def check(self) -> None:
        """An error unless files can be written there: better now than after hours of training."""
        probe = self._root / f".probe-{secrets.token_hex(8)}"
        self._write(probe, b"probe")
        self._remove(probe)

    def pull(self, run: str, store: str | Path) -> None:
        """Make the run's folder in a local store what it is on the far side, checkpoints included."""
        folder = _local(store, run)
        found = self._find(run)
        for name in _ordered(found):
            content = self._read(self._root / run / name)
            if content is None or (name == STATUS and not _is_json(content)):
                found.pop(name)  # removed meanwhile, or cut short: the checkpoints know how far it came
                continue
            path = folder / name
            _write(path, content)
            self._sent[path] = _mark(path)
        _keep_only(folder, found)

    def push(self, run: str, store: str | Path) -> None:
        """Make the run on the far side what it is in a local store: new files, its status last, then removals."""
        folder = _local(store, run)
        here = {name: folder / name for name in _ordered(_files(folder))}
        new = {name: _mark(path) for name, path in here.items() if self._sent.get(path) != _mark(path)}
        self._announce(run, {name: here[name] for name in new})
        for name, mark in new.items():
            self._write(self._root / run / name, read_file(here[name], folder.parent))
            self._sent[here[name]] = mark
        for name in reversed(_ordered(self._find(run).keys() - here.keys())):  # a checkpoint's JSON before its tensors
            self._remove(self._root / run / name)

    def _announce(self, run: str, files: Mapping[str, Path]) -> None:
        """Before files of a whole run are replaced on the far side, have its status there accept the new ones, too."""
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

        What was seen of the far side is kept beside the copy, so that only what changed travels.
        """
        copy = Store(store)
        (copy.path / "runs").mkdir(parents=True, exist_ok=True)
        seen = _seen(copy.path / SEEN)
        there = self._find_all() if runs is None else {run: self._find(run) for run in runs}
        for run, found in there.items():
            folder = _local(copy.path, run)
            wanted = {name: mark for name, mark in found.items() if not name.startswith(CHECKPOINTS)}
            for name in _ordered(wanted):
                key = f"{run}/{name}"
                if seen.get(key) == wanted[name] and (folder / name).exists():
                    continue
                content = self._read(self._root / run / name)
                if content is not None and (name != STATUS or _is_json(content)):
                    _write(folder / name, content)
                    seen[key] = wanted[name]
            _keep_only(folder, wanted)
        if runs is None:
            for folder in (copy.path / "runs").iterdir():
                if ID.fullmatch(folder.name) and folder.name not in there:
                    shutil.rmtree(folder)
        write_atomic(copy.path / SEEN, json.dumps(seen))

    def _find_all(self) -> dict[str, dict[str, str]]:
        """Every run's files, as `_find` gives them."""
        there: dict[str, dict[str, str]] = {}
        for name, mark in self._listing(self._root).items():
            run, _, file = name.partition("/")
            if ID.fullmatch(run) and _is_shared(file):
                there.setdefault(run, {})[file] = mark
        return there

    def _find(self, run: str) -> dict[str, str]:
        """The run's files on the far side, each with a mark that changes when the file does."""
        return {name: mark for name, mark in self._listing(self._root / run).items() if _is_shared(name)}

    def _listing(self, folder: PurePosixPath) -> dict[str, str]:
        """Files below a folder by their path in it."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.find(str(folder), detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:  # each file system has its own errors
            raise self._failure("read", error) from error
        start = str(folder).lstrip("/") + "/"
        files = {name.lstrip("/"): info for name, info in found.items()}
        return {name.removeprefix(start): _digest(info) for name, info in files.items() if name.startswith(start)}

    def _read(self, path: PurePosixPath) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(str(path)))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failure("read", error) from error

    def _write(self, path: PurePosixPath, content: bytes) -> None:
        """Whole or not at all; an object store sees to that itself."""
        try:
            if _is_local(self._fs):
                _write(Path(path), content)
            else:
                self._fs.pipe_file(str(path), content)
        except Exception as error:
            raise self._failure("write", error) from error

    def _remove(self, path: PurePosixPath) -> None:
        try:
            self._fs.rm_file(str(path))
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._failure("write", error) from error

    def _failure(self, what: str, error: Exception) -> StoreError:
        return StoreError(f"cannot {what} {self.url}: {type(error).__name__}: {' '.join(str(error).split())}.")


def is_url(store: str | Path) -> bool:
    """Whether a store is behind a URL rather than in a local folder."""
    return "://" in str(store)


def local_copy(url: str) -> Path:
    """Where this machine keeps what it has read from a URL: below the user's cache folder."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "mecheval" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]


def open_store(path_or_url: str) -> Store:
    """A store to read: a local folder, or the local copy of one behind a URL, brought up to date."""
    if not is_url(path_or_url):
        return Store(path_or_url)
    copy = local_copy(path_or_url)
    Mirror(path_or_url).pull_results(copy)
    return Store(copy)


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
    except ImportError as error:
        raise UserError(f"cannot open {url}: {' '.join(str(error).split())}.") from None
    except Exception as error:
        raise UserError(f"cannot open {url}: {type(error).__name__}: {' '.join(str(error).split())}.") from None
    return fs, str(path)


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def _is_shared(name: str) -> bool:
    return FILE.fullmatch(name) is not None and name not in UNSHARED


def _local(store: str | Path, run: str) -> Path:
    """The run's folder in a local store, with no links in it."""
    folder = Store(store).folder(run).path
    if folder.exists():
        check_tree(folder, folder.parent)
    return folder


def _files(folder: Path) -> list[str]:
    """The files of a run's local folder that belong on the far side."""
    paths = [path for path in folder.rglob("*") if not path.is_symlink() and path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    return [name for name in names if _is_shared(name)]


def _ordered(names: Iterable[str]) -> list[str]:
    """The order in which files may come: tensors and tables, then the JSON that vouches for them, the status last."""
    return sorted(names, key=lambda name: (name == STATUS, name.endswith(".json"), name))


def _keep_only(folder: Path, names: Iterable[str]) -> None:
    """Remove files that the far side has not; what vouches for others goes first."""
    for name in reversed(_ordered(set(_files(folder)) - set(names))):
        (folder / name).unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)


def _mark(path: Path) -> Mark:
    """Changes whenever the file does: every write is a new file."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _digest(info: dict[str, Any]) -> str:
    """Size, time, version: whatever the file system says about a file."""
    return hashlib.sha256(repr(sorted(info.items())).encode()).hexdigest()[:16]


def _seen(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # then everything travels once more
        return {}
    return found if isinstance(found, dict) else {}


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True
