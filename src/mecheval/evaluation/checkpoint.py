"""Checkpoints of Hugging Face transformers on disk, and their tokenizers; nothing is fetched, no pickle is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mecheval.errors import UserError
from mecheval.tasks import TASKS, Task, build_task

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
"""Files that could run code when they are loaded."""


def load_checkpoint(path: str | Path) -> nn.Module:
    """The language model in a folder that `save_pretrained` wrote, in single precision and evaluation mode."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; a checkpoint is a folder with config.json and *.safetensors.")
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is no Hugging Face checkpoint: it has no config.json.")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(file.name for kind in PICKLES for file in folder.glob(kind))
        has = f"only pickles ({', '.join(pickled[:3])}), which are not read" if pickled else "no weights"
        raise UserError(f"{folder} has {has}; save the model again with save_pretrained, as safetensors.")
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        raise UserError("checkpoints need transformers: pip install 'mecheval[hf]'.") from None
    with _quietly():
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=torch.float32,
                output_loading_info=True,
            )  # fmt: skip
        except Exception as error:  # whatever a library says of a damaged or unknown checkpoint is the user's to know
            raise UserError(f"cannot load {folder}: {' '.join(str(error).split())[:300]}") from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(f"{folder} is no whole language model: it has no weights for {', '.join(missing[:3])}.")
    model.config.use_cache = False  # an answer depends on its document alone
    loaded: nn.Module = model.eval()
    return loaded


def checkpoint_task(path: str | Path, task: str, options: Mapping[str, Any] | None = None) -> Task:
    """A task by its name; one that reads text (it has an option `tokenizer`) with the checkpoint's own tokenizer."""
    given = dict(options or {})
    if "tokenizer" in TASKS.get(task).Options.model_fields:
        given.setdefault("tokenizer", str(path))
    return build_task(task, **given)


@contextmanager
def _quietly() -> Iterator[None]:
    """Inside, transformers prints neither progress nor warnings; afterwards it does so as before."""
    logging: Any = import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
