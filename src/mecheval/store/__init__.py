"""The store of runs: a folder that many processes write to and that is read as four tables."""

from mecheval.store.folder import RunFolder, RunHeld, StoreError, writing
from mecheval.store.schema import TABLES, Column, Table
from mecheval.store.store import DEFAULT_STORE, Store

__all__ = ["DEFAULT_STORE", "TABLES", "Column", "RunFolder", "RunHeld", "Store", "StoreError", "Table", "writing"]
