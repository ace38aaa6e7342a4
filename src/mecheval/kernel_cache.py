"""Where compiled kernels are kept on disk; apart from the kernels, so that a program that calls none loads no numba."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

DIGEST_BYTES = hashlib.sha256().digest_size


class KernelCache(FunctionCache):
    """Numba's cache on disk, without what can go wrong with it: a kernel is rather compiled again.

    Numba only notices changes of the kernel's own file, not of the kernels and constants that were compiled into it
    from other files. So this cache has a stamp of all of these to compare.
    """

    def __init__(self, function: Callable[..., object], stamp: tuple[Any, ...]) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, stamp)

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # the disk may be full, or the folder no longer writable
            super().save_overload(sig, data)


class _Files(IndexDataCacheFile):
    """A cache's index and data files. A damaged or emptied file counts as missing, and is written again.

    Machine code has a checksum, because one wrong bit would give wrong numbers, and names what it was compiled from,
    because numba writes the index first, which after a kill leads to the code of an earlier version.
    """

    def load(self, key: Any) -> Any:
        try:
            found = super().load(key)
        except Exception:  # whatever numba makes of a damaged file
            return None
        return found[1] if found is not None and found[0] == (self._source_stamp, key) else None

    def save(self, key: Any, data: Any) -> None:
        super().save(key, ((self._source_stamp, key), data))

    def _load_index(self) -> dict[Any, str]:
        try:
            found = super()._load_index()
        except Exception:
            return {}
        return found if isinstance(found, dict) else {}

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        whole = hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]
        return super()._load_data(name) if whole else None  # which does not look at what stands behind the data

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(content + hashlib.sha256(content).digest())
