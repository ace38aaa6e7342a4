"""Trackers send a run's history to TensorBoard or Weights & Biases, if one asks for it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mecheval.errors import UnknownName, UserError
from mecheval.store.guard import refuse_links
from mecheval.training.watch import Quiet, Start, Watcher

NAMES = ("tensorboard", "wandb", "wandb-offline")


def tracker(name: str, folder: Path) -> Watcher:
    """The tracker called `name`, which writes below `folder`. Its package is imported only when it is used."""
    if name not in NAMES:
        raise UnknownName("tracker", name, NAMES)
    package, _, offline = name.partition("-")
    refuse_links(folder / package, folder / package)
    return TensorBoard(folder) if package == "tensorboard" else WeightsAndBiases(folder, offline or "online")


class TensorBoard(Quiet):
    """Event files in `folder/tensorboard/<run>`."""

    def __init__(self, folder: Path) -> None:
        self._module = load("torch.utils.tensorboard", "tensorboard")
        self._folder = folder
        self._step = 0

    def begin(self, start: Start) -> None:
        """Open the event files; a run that resumes replaces what an earlier process wrote beyond its checkpoint."""
        purge = start.step + 1 if start.step else 0  # the row at the checkpoint itself is not written again
        folder = self._folder / "tensorboard" / start.run
        refuse_links(folder, folder)
        self._writer = self._module.SummaryWriter(str(folder), purge_step=purge)
        self._step = start.step
        config = json.dumps(start.config, indent=1, ensure_ascii=False, default=str)
        text = f"{start.title}, {start.parameters:,} parameters\n\n```json\n{config}\n```"
        self._writer.add_text("config", text, self._step)

    def row(self, row: Mapping[str, float]) -> None:
        """Write a row at once: rows are rare, and someone may be looking."""
        self._step = int(row["step"])
        for tag, value in tagged(row).items():
            self._writer.add_scalar(tag, value, self._step)
        self._writer.flush()

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Write the final scores apart from the history, at the last row's step."""
        for name, value in scores.items():
            self._writer.add_scalar(f"final/{name}", value, self._step)
        self._writer.add_text("status", status, self._step)
        self._writer.close()


class WeightsAndBiases(Quiet):
    """A run of the project `mecheval` with the same id, so that a run that resumes here resumes there, too."""

    def __init__(self, folder: Path, mode: str) -> None:
        if mode == "offline":  # wandb reports on itself over the network even then, unless this is set when it starts
            os.environ["WANDB_ERROR_REPORTING"] = "false"
        self._wandb = load("wandb", "wandb")
        self._folder, self._mode = folder, mode

    def begin(self, start: Start) -> None:
        """Open the run. The output of the terminal is not captured, because it is a bar."""
        self._folder.mkdir(parents=True, exist_ok=True)  # wandb would write elsewhere if it were not there
        self._run = self._wandb.init(
            project="mecheval", id=start.run, resume="allow", config=start.config, dir=self._folder, mode=self._mode,
            name=start.title, settings=self._wandb.Settings(silent=True, console="off"),
        )  # fmt: skip

    def row(self, row: Mapping[str, float]) -> None:
        """Add one point to every curve."""
        self._run.log(tagged(row), step=int(row["step"]))

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Close the run; only one that is done counts as finished."""
        self._run.summary.update({"status": status, **scores})
        self._run.finish(exit_code=0 if status == "done" else 1)


def tagged(row: Mapping[str, float]) -> dict[str, float]:
    """A history row as curves: dev_loss becomes dev/loss, and a name without a split belongs to train, as train/lr."""
    tags = {name: name.replace("_", "/", 1) if name.startswith("dev_") else f"train/{name}" for name in row}
    return {tags[name]: value for name, value in row.items() if name != "step"}


def load(module: str, package: str) -> Any:
    """Import `module` of an optional package, or say how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is there, but broken
            raise
        raise UserError(f"{package} is not installed; pip install 'mecheval[{package}]'") from None
