"""Mechanistic evaluation of sequence architectures: not only whether a model recalls, but how."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mecheval.tasks import Task, build_task
from mecheval.tasks.pcfg import Grammar
from mecheval.types import Batch

if TYPE_CHECKING:
    from mecheval.mixers import build_mixer
    from mecheval.model import LM, load_zoology

__all__ = ["LM", "Batch", "Grammar", "Task", "build_mixer", "build_task", "load_zoology"]

_NEED_TORCH = {"LM": "model", "load_zoology": "model", "build_mixer": "mixers"}
"""Imported when first used, so that listing and sampling tasks does not wait for torch."""


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(import_module(f"mecheval.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module 'mecheval' has no attribute {name!r}")
