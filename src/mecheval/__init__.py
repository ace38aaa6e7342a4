"""Mechanistic evaluation of sequence architectures: not only whether a model recalls, but how."""

from __future__ import annotations

from importlib import import_module

from mecheval.lazy import lazily

TYPE_CHECKING = False  # `typing` takes most of the time before the command line can handle Ctrl-C
if TYPE_CHECKING:
    from typing import Any

    from mecheval.analysis import load_lm, load_pretrained
    from mecheval.config import RunConfig, run_config
    from mecheval.evaluation import evaluate
    from mecheval.figures.heatmap import heatmap
    from mecheval.intervene import (
        ablate,
        attribute,
        capture,
        circuit,
        erase_state,
        evidence,
        interchange,
        patch,
        path,
        reads,
        replace_state,
        smallest_set,
        state_sweep,
        verdict,
        verdicts_by,
    )  # fmt: skip
    from mecheval.mixers import build_mixer
    from mecheval.model import LM, load_zoology
    from mecheval.store import Store
    from mecheval.tasks import Grammar, Task, build_task
    from mecheval.training import train
    from mecheval.types import Batch

__all__ = [
    "LM", "Batch", "Grammar", "RunConfig", "Store", "Task", "ablate", "attribute", "build_mixer", "build_task",
    "capture", "circuit", "erase_state", "evaluate", "evidence", "heatmap", "interchange", "load_lm", "load_pretrained",
    "load_zoology", "patch", "path", "reads", "replace_state", "run_config", "smallest_set", "state_sweep", "train",
    "verdict", "verdicts_by",
]  # fmt: skip

_ROOMS = {
    "Store": "store", "Grammar": "tasks", "Task": "tasks", "build_task": "tasks", "Batch": "types",
    "LM": "model", "load_zoology": "model", "build_mixer": "mixers", "RunConfig": "config", "run_config": "config",
    "ablate": "intervene", "attribute": "intervene", "capture": "intervene", "circuit": "intervene",
    "evidence": "intervene",    "interchange": "intervene", "patch": "intervene", "path": "intervene",
    "erase_state": "intervene", "reads": "intervene", "replace_state": "intervene", "state_sweep": "intervene",
    "smallest_set": "intervene", "verdict": "intervene", "verdicts_by": "intervene",
    "load_lm": "analysis", "load_pretrained": "analysis", "train": "training", "evaluate": "evaluation",
    "heatmap": "figures",
}  # fmt: skip
"""Names are imported when first used, so that listing and sampling tasks does not load torch, and help is fast."""


_get = lazily(__name__, _ROOMS)


def __getattr__(name: str) -> Any:
    if name in ("errors", "store", "tasks", "types"):  # so that `mecheval.errors.UserError` needs no further import
        return import_module(f"mecheval.{name}")
    return _get(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
