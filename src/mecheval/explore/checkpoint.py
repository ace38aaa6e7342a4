"""The explorer for a Hugging Face checkpoint on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mecheval.analysis import judged_on
from mecheval.errors import UserError
from mecheval.evaluation.layers import sites_of
from mecheval.evaluation.trained import checkpoint_task, load_checkpoint
from mecheval.explore.session import Session
from mecheval.intervene.places import Answering

MOST = 10_000
"""Documents that can be chosen from."""


def of_checkpoint(path: str | Path, task: str, options: Mapping[str, Any], document: int, split: str) -> Session:
    """A session about one document of a task, with the layers that the checkpoint's model is found to have."""
    if not 0 <= document < MOST:
        raise UserError(f"there is no document {document}; choose 0 to {MOST - 1}.")
    made, model = checkpoint_task(path, task, options), Answering(load_checkpoint(path))
    clean, corrupted = (batch[document : document + 1] for batch in judged_on(made, document + 1, split, 0))
    places = sites_of(model, None, (), None, clean.tokens)
    title = f"{Path(path).name} on {made.name}, document {document} ({split})"
    return Session(model, made, clean, corrupted, title, places.every, places.depths)
