"""Imports names of a package when they are first used, so that reading results does not load torch."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # see mecheval/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazily(package: str, files: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package; `files` maps each public name to the module that defines it."""

    def get(name: str) -> Any:
        if name in files:
            return getattr(import_module(f"{package}.{files[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


def later(name: str) -> Any:
    """The object called `name` ("figures.heatmap.heatmap") in a later room, imported when it is used.

    Imports follow the flow of data; a table that can draw itself is the exception, and `tests/test_layers.py`
    lists where it is used.
    """
    module, _, what = f"mecheval.{name}".rpartition(".")
    return getattr(import_module(module), what)
