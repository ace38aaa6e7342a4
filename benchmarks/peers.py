"""Public implementations to agree with and to race, found where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from torch import Tensor

Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def naive(op: str) -> Any:
    """The readable implementations of one of flash-linear-attention's ops, e.g. "gla"; all scale q by 1/sqrt(D).

    Taken from their file, because importing the package would need Triton; None where it is not installed.
    """
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        return None
    path = f"{package.submodule_search_locations[0]}/ops/{op}/naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_naive_{op.replace('/', '_')}", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def naive_delta_rule() -> Recurrence | None:
    """Its delta rule, over (B, H, L, D)."""
    module = naive("delta_rule")
    recurrence: Recurrence | None = None if module is None else module.delta_rule_recurrence
    return recurrence
