"""The store of runs: a folder that many processes can write to, and that is read as tables."""

from mecheval.store.folder import RunFolder
from mecheval.store.guard import StoreError, StoreWarning, writing
from mecheval.store.lock import RunHeld
from mecheval.store.published import RESULTS, Published
from mecheval.store.schema import TABLES, Column, Table
from mecheval.store.store import DEFAULT_STORE, Snapshot, Store, snapshot_of

__all__ = [
    "DEFAULT_STORE", "RESULTS", "TABLES", "Column", "Published", "RunFolder", "RunHeld", "Snapshot", "Store",
    "StoreError", "StoreWarning", "Table", "snapshot_of", "writing",
]  # fmt: skip
