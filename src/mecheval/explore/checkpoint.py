"""The explorer for a Hugging Face checkpoint on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mecheval.analysis import judged_on
from mecheval.errors import UserError
from mecheval.evaluation.layers import find_layers, inside_layers, sites_of
from mecheval.evaluation.trained import checkpoint_task, load_checkpoint
from mecheval.explore.session import Session
from mecheval.intervene.answering import Answering

MOST = 10_000
"""Documents that can be chosen from."""


def of_checkpoint(path: str | Path, task: str, options: Mapping[str, Any], document: int, split: str) -> Session:
    """A session about one document of a task: its map has the ends of the layers, and convolutions inside them."""
    if not 0 <= document < MOST:
        raise UserError(f"there is no document {document}; choose 0 to {MOST - 1}.")
    made, model = checkpoint_task(path, task, options), Answering(load_checkpoint(path))
    clean, corrupted = (batch[document : document + 1] for batch in judged_on(made, document + 1, split, 0))
    layers, modules = find_layers(model), dict(model.named_modules())
    convolutions = [
        site for site in inside_layers(model, layers, clean.tokens)
        if isinstance(modules[site.removesuffix(".output")], nn.Conv1d)
    ]  # fmt: skip
    places = sites_of(model, layers, (), convolutions, clean.tokens)
    title = f"{Path(path).name} on {made.name}, document {document} ({split})"
    return Session(model, made, clean, corrupted, title, places.every, places.depths)
