"""Libraries that take seconds to import: only the test process that needs one waits for it."""

from __future__ import annotations

from typing import Any

import pytest


class Library:
    """Stands for a module, which is imported when something of it is used; without it, the test is skipped."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, what: str) -> Any:
        if what.startswith("_"):  # what pytest asks of everything that it finds in a file
            raise AttributeError(what)
        module = pytest.importorskip(self.name, reason=f"pip install 'mecheval[dev]' brings {self.name}")
        return getattr(module, what)


pyvene, transformers = Library("pyvene"), Library("transformers")
