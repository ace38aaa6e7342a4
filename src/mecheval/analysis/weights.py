"""Weights files that describe themselves: a safetensors file contains its config, so a model needs no other file.

Some trained models come with the package: `load_pretrained("ar-mamba-64")`. Others can be exported to a folder of
their own, with their config and a model card.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from mecheval.config import RunConfig
from mecheval.errors import UnknownName, UserError, in_one_line
from mecheval.files import HEADER, LENGTH_BYTES, run_id, safetensors_body, safetensors_header, sha256, write_atomic
from mecheval.model import LM
from mecheval.store import RESULTS, RunFolder, Store, StoreError, writing
from mecheval.store.published import is_published, pretrained_file, pretrained_files, pretrained_origin
from mecheval.store.schema import WHOLE
from mecheval.types import LAST, STATES

MOST_BYTES = 30_000_000
"""Largest total size of the pretrained models in bytes."""
MOST_HEADER = 10_000_000
"""Largest size of a header in bytes; a longer one could name a million empty tensors, whereas models have a hundred."""


def weights_file(config: RunConfig, state: str, step: int, weights: dict[str, Tensor]) -> bytes:
    """The content of a weights file, with its origin (run, state, step, config) and a checksum of the tensors."""
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
    """The model in a file, and its origin: run, state, step and config."""
    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot load weights from {file}: {error.strerror}.") from None
    return read_weights(content, str(file))


def read_weights(content: bytes, name: str) -> tuple[LM, dict[str, Any]]:
    """The model in the content of a weights file, and its origin; errors call the file `name`."""
    if int.from_bytes(content[:LENGTH_BYTES], "little") > MOST_HEADER:
        raise UserError(f"cannot load weights from {name}: its header has more than {MOST_HEADER:,} bytes.")
    try:
        tensors = load(content)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"cannot load weights from {name}: {in_one_line(error)}.") from None
    origin = safetensors_header(content)
    if origin is None:
        raise UserError(f"{name} does not say which model it is; use load_zoology for weights of zoology.")
    config = _config_of(origin, name)
    if "tensors_sha256" in origin and origin["tensors_sha256"] != sha256(safetensors_body(content)):
        raise UserError(f"{name} is damaged: its tensors do not match their checksum.")
    lm = config.build_lm().to(getattr(torch, config.machine.dtype)).eval()
    try:
        lm.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{name} does not fit its config: {in_one_line(error)[:300]}") from None
    return lm, origin


def _config_of(origin: Any, name: str) -> RunConfig:
    """The config in a weights file's header, after checking that it belongs to the run that the header names."""
    config = origin.get("config") if isinstance(origin, dict) else None
    if not isinstance(config, dict) or type(origin.get("step")) is not int:
        raise UserError(f"{name} is damaged: its header does not contain a run, a state, a step and a config.")
    task = config.get("task")
    if isinstance(task, dict) and isinstance(task.get("grammar"), str):
        raise UserError(f"{name} names a grammar file, which is not opened; a header must contain the grammar itself.")
    if run_id(config) != origin.get("run"):
        raise UserError(f"{name} is damaged: its config does not belong to run {str(origin.get('run'))[:80]}.")
    return RunConfig.read(config)


def run_config_of(folder: RunFolder) -> RunConfig:
    """The config of a run that has begun, from its status."""
    config = folder.status()["config"]
    if config is None or run_id(config) != folder.id:
        raise StoreError(f"the status of run {folder.id} has no config, or that of another run.")
    return RunConfig.read(config)


def state_weights(folder: RunFolder, state: str) -> tuple[bytes, str]:
    """The weights file of a run's state, and what errors call it; an error says which states the run has.

    Those of a published run lie beside the published runs.
    """
    if state not in STATES:
        raise UnknownName("state", state, STATES)
    status, published = folder.status()["status"], pretrained_file(folder)
    files = {name: f"{folder.weights.name}/{name}.safetensors" for name in STATES}
    there = [name for name, file in files.items() if status in WHOLE and (folder.path / file).exists()]
    there += [LAST] if published is not None else []
    if state not in there:
        without = "it is published without them" if is_published(folder) else f"its status is {status}"
        hint = f"it has: {', '.join(there)}" if there else without
        raise UserError(f"run {folder.id} has no {state} weights; {hint}.")
    if published is not None:
        return published.read_bytes(), str(published)
    folder.check_whole()
    return folder.read_file(files[state]), str(folder.path / files[state])


def load_pretrained(name: str, results: str | Path = RESULTS) -> LM:
    """A trained model of `mecheval list pretrained`, such as `ar-mamba-64`, in evaluation mode.

    The file's header has the config and a checksum of the tensors, and both are checked.
    """
    files = pretrained_files(Path(results))
    if name not in files:
        raise UnknownName("pretrained model", name, files)
    lm, origin = load_weights(files[name])
    if (own := pretrained_name(RunConfig.read(origin["config"]))) != name:
        raise UserError(f"{files[name]} is damaged: it contains {own}.")
    return lm


def find_run(store: Store, name: str) -> RunFolder:
    """The one run whose id starts with `name`, or the published run of the pretrained model with this name."""
    if "-" not in name:  # an id has no hyphen, but the name of a pretrained model has one
        return store.find(name)
    files = pretrained_files()
    if name not in files:
        raise UnknownName("pretrained model", name, files)
    return Store(RESULTS).folder(pretrained_origin(files[name])["run"])


def pretrained_name(config: RunConfig) -> str:
    """The name of a pretrained model from its task, mixer and width, such as ar-mamba-64."""
    return f"{config.task.name}-{config.mixer.name.replace('*', 'x')}-{config.model.d_model}"


def add_pretrained(folder: RunFolder, results: Path = RESULTS) -> str:
    """Add a run's last weights to the pretrained models, replacing those of the same name; return the name."""
    content, _ = state_weights(folder, LAST)
    name = pretrained_name(run_config_of(folder))
    path = results / "weights" / f"{name}.safetensors"
    others = sum(file.stat().st_size for file in pretrained_files(results).values() if file != path)
    if others + len(content) > MOST_BYTES:
        raise UserError(f"{name} has {len(content):,} bytes, and others {others:,}; at most {MOST_BYTES:,} fit.")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return name


def export(folder: RunFolder, to: str | Path | None = None, state: str = "last") -> Path:
    """Write `model.safetensors`, `config.yaml` and `README.md`, and return the folder, which `load_lm` can read."""
    weights, _ = state_weights(folder, state)
    config = run_config_of(folder)
    to = Path(to) if to is not None else Path(f"{config.task.name}-{config.mixer.name.replace('*', 'x')}-{folder.id}")
    files: dict[str, str | bytes] = {
        "model.safetensors": weights, "config.yaml": config.to_yaml(), "README.md": card(folder, config, state),
    }  # fmt: skip
    *first, last = files
    with writing(to):
        to.mkdir(parents=True, exist_ok=True)
        parts = list(to.glob(".*.part"))
        if {path.name for path in to.iterdir()} - {*first, *(path.name for path in parts)}:  # not a killed export
            raise UserError(f"{to} exists and is not an empty folder; choose another with --to.")
        for part in parts:
            part.unlink()
        for name in (*first, last):  # the last one makes it whole
            write_atomic(to / name, files[name])
    return to


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def card(folder: RunFolder, config: RunConfig, state: str) -> str:
    """The model card: what the model is, how well it does, how it was trained and how to load it."""
    found = folder.status()
    measured = [row for row in folder.read("evaluations") if row["state"] == state]
    names = [name for name in measured[0] if name not in ("run", "state", "step")] if measured else []
    header = [*("answers" if name == "n" else name for name in names)], ["---"] * len(names)
    rows = ([_cell(row[name]) for name in names] for row in measured)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (*header, *rows))
    scores = table if measured else "Its scores are not in the store."
    judged = next((row for row in folder.read("verdicts") if (row["state"], row["split"]) == (state, "test")), None)
    found_out = "" if judged is None else "\n".join([
        "## How it recalls", "", f"Verdict on {judged['n']} test documents: {judged['summary']}.", "",
        *(f"- {sentence}" for sentence in judged["evidence"].splitlines()), "", "",
    ])  # fmt: skip
    parameters = "an unknown number of" if found["parameters"] is None else f"{found['parameters']:,}"
    step = f", step {measured[0]['step']:,} of {config.data.steps:,}" if measured else ""
    return f"""# {config.mixer.name} on {config.task.name}

A language model of {parameters} parameters ({config.model.n_layers} layers, width {config.model.d_model})
with the sequence mixer `{config.mixer.name}`, trained by mecheval on the task `{config.task.name}`. Run {folder.id},
{state} state{step}; status: {found["status"]}.

{scores}

Likelihood is p(answer) and accuracy the share of right answers, at the predictions of the documents of each split.

{found_out}```python
import mecheval as me

lm = me.load_lm(".")  # this folder; no other file is needed
```

## Config

```yaml
{config.to_yaml()}```
"""
