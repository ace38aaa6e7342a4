"""Trained models that come with the package: `load_pretrained("ar-mamba-64")`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.analysis.runs import Trained, run_config_of, weights_of
from mecheval.config import RunConfig
from mecheval.errors import UnknownName, UserError
from mecheval.files import safetensors_header, write_atomic
from mecheval.store import RESULTS, RunFolder, writing
from mecheval.types import LAST

if TYPE_CHECKING:  # slow to import
    from mecheval.model import LM

MOST_BYTES = 30_000_000
"""The largest size of all pretrained models together."""


def load_pretrained(name: str, results: str | Path = RESULTS) -> LM:
    """A trained model of `mecheval list pretrained`, such as `ar-mamba-64`, in evaluation mode.

    The file's header has the config and a checksum of the tensors, and both are checked.
    """
    from mecheval.analysis.weights import load_weights

    files = pretrained_files(Path(results))
    if name not in files:
        raise UnknownName("pretrained model", name, files)
    lm, origin = load_weights(files[name])
    if (own := pretrained_name(RunConfig.read(origin["config"]))) != name:
        raise UserError(f"{files[name]} is damaged: it holds {own}.")
    return lm


def published_model(folder: RunFolder) -> Trained | None:
    """The model of a published run, whose weights lie beside the runs; None if they are not published.

    It computes in double precision, because the reference paths need no compilation, which a first look would wait for.
    """
    from mecheval.analysis.weights import load_weights

    for path in pretrained_files(folder.path.parents[1]).values():
        if pretrained_origin(path)["run"] == folder.id:
            lm, origin = load_weights(path)
            config = RunConfig.read(origin["config"])
            return Trained(config, config.build_task(), lm.double(), origin["step"])
    return None


def pretrained_files(results: Path = RESULTS) -> dict[str, Path]:
    """The file of each pretrained model, by its name."""
    return {path.stem: path for path in sorted((results / "weights").glob("*.safetensors"))}


def pretrained_origin(path: Path) -> dict[str, Any]:
    """Where a pretrained model comes from: run, state, step and config."""
    origin = safetensors_header(path.read_bytes())
    if not isinstance(origin, dict):
        raise UserError(f"{path} does not say which model it is.")
    return origin


def pretrained_name(config: RunConfig) -> str:
    """ar-mamba-64: the task, the mixer and the width."""
    return f"{config.task.name}-{config.mixer.name.replace('*', 'x')}-{config.model.d_model}"


def add_pretrained(folder: RunFolder, results: Path = RESULTS) -> str:
    """Put a run's last weights among the pretrained models, in place of those of the same name; returns the name."""
    folder.check_whole()
    name = pretrained_name(run_config_of(folder))
    content = folder.read_file(weights_of(folder, LAST))
    path = results / "weights" / f"{name}.safetensors"
    others = sum(file.stat().st_size for file in pretrained_files(results).values() if file != path)
    if others + len(content) > MOST_BYTES:
        raise UserError(f"{name} has {len(content):,} bytes, and others {others:,}; at most {MOST_BYTES:,} fit.")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return name
