"""Trackers: a run's history in TensorBoard or Weights & Biases. Nothing is tracked unless asked for."""

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
    """The tracker called `name`, which writes below `folder`. Its package is imported here and nowhere else."""
    place = folder / name.partition("-")[0]
    refuse_links(place, place)
    if name == "tensorboard":
        return TensorBoard(folder)
    if name == "wandb":
        return WeightsAndBiases(folder, "online")
    if name == "wandb-offline":
        return WeightsAndBiases(folder, "offline")
    raise UnknownName("tracker", name, NAMES)


class TensorBoard(Quiet):
    """Event files in `folder/tensorboard/<run>`."""

    def __init__(self, folder: Path) -> None:
        self._module = load("torch.utils.tensorboard", "tensorboard")
        self._folder = folder
        self._step = 0

    def begin(self, start: Start) -> None:
        """A run that continues replaces what an earlier process wrote beyond its checkpoint."""
        purge = start.step + 1 if start.step else 0  # the row at the checkpoint itself is not written again
        folder = self._folder / "tensorboard" / start.run
        refuse_links(folder, folder)
        self._writer = self._module.SummaryWriter(str(folder), purge_step=purge)
        self._step = start.step
        config = json.dumps(start.config, indent=1, ensure_ascii=False, default=str)
        text = f"{start.title}, {start.parameters:,} parameters\n\n```json\n{config}\n```"
        self._writer.add_text("config", text, self._step)

    def row(self, row: Mapping[str, float]) -> None:
        """Written at once: rows are rare, and someone may be looking."""
        self._step = int(row["step"])
        for tag, value in tagged(row).items():
            self._writer.add_scalar(tag, value, self._step)
        self._writer.flush()

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Final scores stand apart from the history, at the last row's step."""
        for name, value in scores.items():
            self._writer.add_scalar(f"final/{name}", value, self._step)
        self._writer.add_text("status", status, self._step)
        self._writer.close()


class WeightsAndBiases(Quiet):
    """A run of the project `mecheval`, with the run's own id, so that a continued run continues there, too."""

    def __init__(self, folder: Path, mode: str) -> None:
        if mode == "offline":  # wandb reports on itself over the network even then, unless told not to when it starts
            os.environ["WANDB_ERROR_REPORTING"] = "false"
        self._wandb = load("wandb", "wandb")
        self._folder, self._mode = folder, mode

    def begin(self, start: Start) -> None:
        """What the terminal shows is not captured: it is a bar."""
        self._folder.mkdir(parents=True, exist_ok=True)  # wandb would write elsewhere if it were not there
        self._run = self._wandb.init(
            project="mecheval", id=start.run, resume="allow", config=start.config, dir=self._folder, mode=self._mode,
            name=start.title, settings=self._wandb.Settings(silent=True, console="off"),
        )  # fmt: skip

    def row(self, row: Mapping[str, float]) -> None:
        """One point of every curve."""
        self._run.log(tagged(row), step=int(row["step"]))

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Only a run that is done counts as finished."""
        self._run.summary.update({"status": status, **scores})
        self._run.finish(exit_code=0 if status == "done" else 1)


def tagged(row: Mapping[str, float]) -> dict[str, float]:
    """A history row as curves: dev_loss is dev/loss, and what has no split is of training, e.g. train/lr."""
    curves = {name: value for name, value in row.items() if name != "step"}
    return {
        name.replace("_", "/", 1) if name.startswith("dev_") else f"train/{name}": value
        for name, value in curves.items()
    }


def load(module: str, package: str) -> Any:
    """Import `module` of an optional package, or say how to get it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is there, but broken
            raise
        raise UserError(f"{package} is not installed; pip install 'mecheval[{package}]'") from None
