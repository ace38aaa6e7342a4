"""Weights that say what they are: a safetensors file carries its config, so a model needs no other file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from mecheval.config import RunConfig
from mecheval.digests import run_id, sha256
from mecheval.errors import UserError
from mecheval.files import HEADER, safetensors_body, safetensors_header
from mecheval.model import LM


def weights_file(config: RunConfig, state: str, step: int, weights: dict[str, Tensor]) -> bytes:
    """Weights as the content of a file, with their origin (run, state, step, config) and a checksum of the tensors."""
    separate = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}  # tied ones share memory
    origin = {"run": config.id, "state": state, "step": step, "config": config.to_dict()}
    bare = save(separate)
    origin["tensors_sha256"] = sha256(safetensors_body(bare))
    return save(separate, metadata={HEADER: json.dumps(origin)})


def load_lm(path: str | Path) -> LM:
    """The model in a weights file, or in an exported folder, in evaluation mode."""
    lm, _ = load_weights(path)
    return lm


def load_weights(path: str | Path) -> tuple[LM, dict[str, Any]]:
    """The model in a file, and where it comes from: run, state, step, config."""
    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot load weights from {file}: {error.strerror}.") from None
    return read_weights(content, str(file))


def read_weights(content: bytes, name: str) -> tuple[LM, dict[str, Any]]:
    """The model in the content of a weights file, and its origin; errors call the file `name`."""
    try:
        tensors = load(content)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"cannot load weights from {name}: {' '.join(str(error).split())}.") from None
    origin = safetensors_header(content)
    if origin is None:
        raise UserError(f"{name} does not say which model it is; for zoology's weights there is load_zoology.")
    config = _config_of(origin, name)
    if "tensors_sha256" in origin and origin["tensors_sha256"] != sha256(safetensors_body(content)):
        raise UserError(f"{name} is damaged: its tensors do not match their checksum.")
    lm = config.build_lm().to(getattr(torch, config.machine.dtype)).eval()
    try:
        lm.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{name} does not fit its config: {' '.join(str(error).split())[:300]}") from None
    return lm, origin


def _config_of(origin: Any, name: str) -> RunConfig:
    """The config in a weights file's header, once it is known to be the one of the run that the header names."""
    config = origin.get("config") if isinstance(origin, dict) else None
    if not isinstance(config, dict) or type(origin.get("step")) is not int:
        raise UserError(f"{name} is damaged: its header does not hold a run, a state, a step and a config.")
    task = config.get("task")
    if isinstance(task, dict) and isinstance(task.get("grammar"), str):
        raise UserError(f"{name} names a grammar file; a header holds the grammar itself, no file is opened for it.")
    if run_id(config) != origin.get("run"):
        raise UserError(f"{name} is damaged: its config does not belong to run {str(origin.get('run'))[:80]}.")
    return RunConfig.read(config)
