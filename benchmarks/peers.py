"""Public implementations to agree with and to race, found where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from torch import Tensor

Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def naive_delta_rule() -> Recurrence | None:
    """flash-linear-attention's readable recurrence over (B, H, L, D), which scales q by 1/sqrt(D) itself.

    Taken from its file, because importing the package would need Triton; None where it is not installed.
    """
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        return None
    path = f"{package.submodule_search_locations[0]}/ops/delta_rule/naive.py"
    spec = importlib.util.spec_from_file_location("fla_naive_delta_rule", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recurrence: Recurrence = module.delta_rule_recurrence
    return recurrence
