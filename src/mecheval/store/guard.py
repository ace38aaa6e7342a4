"""Files of a store that someone else may have made: only regular files are opened, and no link is followed.

A store can be received from a stranger. A symbolic link in it could make a reader or a writer touch files elsewhere,
and a FIFO or a device could make a reader wait forever.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mecheval.errors import UserError

MOST_FILES = 10_000
"""How many files and folders a run may have; ours have about ten."""


class StoreError(UserError):
    """A file of the store cannot be written or read."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report a full disk or a missing permission while writing `path` as one line.

    Writes are atomic, so what was saved before such an error is still there.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; what was saved before is intact.") from error


def open_file(path: Path, flags: int, below: Path) -> int:
    """The descriptor of a regular file below the folder `below`. Links on the way to it, or at its end, are refused."""
    refuse_links(path.parent, below)
    try:
        # O_NONBLOCK: opening a FIFO for reading would otherwise wait for a writer.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a FIFO or socket opened for writing
            raise _refusal(path) from None
        raise
    found = os.fstat(descriptor)
    shared = found.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR)  # writing in place would reach its other names
    if shared or not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise _refusal(path)
    return descriptor


def read_file(path: Path, below: Path, limit: int | None = None) -> bytes:
    """The content of a regular file below the folder `below`; more than `limit` bytes are refused."""
    with os.fdopen(open_file(path, os.O_RDONLY, below), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise StoreError(f"cannot read {path}: it has {size:,} bytes, and at most {limit:,} are read.")
        return file.read()


def refuse_links(folder: Path, below: Path) -> None:
    """An error when `folder`, or a folder on the way to it from `below` (itself included), is a symbolic link."""
    for part in (folder, *folder.parents):
        if part.is_symlink():
            raise _refusal(part)
        if part == below:
            return


def check_tree(folder: Path, below: Path) -> None:
    """An error unless everything in `folder` is a regular file or a folder; before a process writes there."""
    refuse_links(folder, below)
    seen = 0
    for place, folders, files in os.walk(folder, onerror=_raise):
        seen += len(folders) + len(files)
        if seen > MOST_FILES:
            raise StoreError(f"{folder} has more than {MOST_FILES:,} files; a run has about ten.")
        for name in folders:
            if (Path(place) / name).is_symlink():
                raise _refusal(Path(place) / name)
        for name in files:
            if not stat.S_ISREG((Path(place) / name).lstat().st_mode):
                raise _refusal(Path(place) / name)


def _refusal(path: Path) -> StoreError:
    try:
        mode = path.lstat().st_mode
    except OSError:
        mode = 0
    what = {
        stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder", stat.S_IFREG: "a second name (hard link) of another file",
    }.get(stat.S_IFMT(mode), "not a regular file")  # fmt: skip
    return StoreError(f"{path} is {what}; a store holds only regular files and folders, and no links are followed.")


def _raise(error: OSError) -> None:
    raise error
