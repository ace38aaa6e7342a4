"""Names of a package that are imported when first used, so that listing and reading results does not wait for torch."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # see mecheval/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazily(package: str, files: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package: `files` says in which of its modules each public name is."""

    def get(name: str) -> Any:
        if name in files:
            return getattr(import_module(f"{package}.{files[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


def later(name: str) -> Any:
    """What a later room calls `name` ("figures.heatmap.heatmap"), imported when it is used.

    Data flows one way, and imports with it; a table that can draw itself is the exception, and `tests/test_layers.py`
    lists where it is made.
    """
    module, _, what = f"mecheval.{name}".rpartition(".")
    return getattr(import_module(module), what)
