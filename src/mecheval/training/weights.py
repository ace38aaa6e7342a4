"""Weights that say what they are: a safetensors file carries its config, so a model needs no other file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mecheval.config import RunConfig
from mecheval.errors import UserError
from mecheval.files import write_atomic
from mecheval.model import LM
from mecheval.store import writing

HEADER = "mecheval"
"""The one key of the file's metadata; with more keys, their order, and so the bytes, would vary."""


def save_weights(path: Path, config: RunConfig, state: str, step: int, weights: dict[str, Tensor]) -> None:
    """Write weights with their origin: run, state (last or best), step, config."""
    origin = {"run": config.id, "state": state, "step": step, "config": config.to_dict()}
    separate = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}  # tied ones share memory
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, save(separate, metadata={HEADER: json.dumps(origin)}))


def load_lm(path: str | Path) -> LM:
    """The model in a weights file, or in an exported folder, in evaluation mode."""
    lm, _ = load_weights(path)
    return lm


def load_weights(path: str | Path) -> tuple[LM, dict[str, Any]]:
    """The model, and where it comes from: run, state, step, config."""
    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        with safe_open(file, framework="pt") as opened:
            header = (opened.metadata() or {}).get(HEADER)
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot load weights from {file}: {error}.") from None
    if header is None:
        raise UserError(f"{file} does not say which model it is; for zoology's weights there is load_zoology.")
    origin = json.loads(header)
    config = RunConfig.read(origin["config"])
    lm = config.build_lm().to(getattr(torch, config.machine.dtype)).eval()
    lm.load_state_dict(weights)
    return lm, origin
