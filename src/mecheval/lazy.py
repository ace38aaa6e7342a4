"""Names of a package that are imported when first used, so that listing and reading results does not wait for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, files: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package: `files` says in which of its modules each public name is."""

    def get(name: str) -> Any:
        if name in files:
            return getattr(import_module(f"{package}.{files[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
