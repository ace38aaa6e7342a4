"""Watchers, which observe a training run and cannot harm it, and trackers, which send its history to other programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from mecheval.errors import UnknownName, UserError, said
from mecheval.store.guard import refuse_links


@dataclass(frozen=True)
class Start:
    """A run that begins, as watchers receive it."""

    run: str  # the run's id, 12 hex digits
    title: str  # e.g. "ar · mamba · d 64 · lr 0.003 · seed 0"
    config: dict[str, Any]  # the whole config as nested plain data
    step: int  # number of steps already done: 0, or the step at which the run resumes
    steps: int  # total number of steps
    parameters: int


class Watcher(Protocol):
    """Observes a run: `begin`, then any number of `step` and `row`, then `end`; `say` may come at any time.

    Every method does nothing by default, for subclasses such as `Quiet`.
    """

    def begin(self, start: Start) -> None:
        """Called before the first step."""
        return

    def step(self, step: int, loss: float) -> None:
        """Called after every training step, so it must cost next to nothing."""
        return

    def row(self, row: Mapping[str, float]) -> None:
        """Called with each row of the history: step, lr, loss, dev_loss, dev_likelihood, dev_accuracy."""
        return

    def say(self, message: str) -> None:
        """Called with a one-line message for the user."""
        return

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Called when the run is done, diverged, interrupted or failed, with scores such as `dev_accuracy`.

        If there were interventions during training, `interchange_seconds` is the time that they took.
        """
        return


class Quiet(Watcher):
    """A watcher that does nothing, for tests and as a base class of watchers that need only some of the events."""


class Watchers:
    """Several watchers as one. A watcher that fails is dropped, which the others report; training never stops for it.

    They begin in order and end in reverse. Put the display last: a tracker may ask for a login before the bar is drawn,
    and the bar is gone before a tracker takes its time to finish. Only KeyboardInterrupt passes through, and even then
    every watcher that began is ended exactly once.
    """

    def __init__(self, watchers: Iterable[Watcher]) -> None:
        self._watching = list(watchers)
        self._to_end: list[Watcher] = []  # watchers that began and have not ended

    def begin(self, start: Start) -> None:
        def begin(watcher: Watcher) -> None:
            self._to_end.append(watcher)  # before the call, because a watcher interrupted halfway must be ended, too
            watcher.begin(start)

        self._each(begin)

    def step(self, step: int, loss: float) -> None:
        self._each(lambda watcher: watcher.step(step, loss))

    def row(self, row: Mapping[str, float]) -> None:
        self._each(lambda watcher: watcher.row(row))

    def say(self, message: str) -> None:
        self._each(lambda watcher: watcher.say(message))

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """End every watcher that began, the last one first; a second call does nothing."""
        ending, self._to_end = self._to_end, []
        with ExitStack() as stack:  # ends the others even if Ctrl-C interrupts one of them
            for watcher in ending:
                stack.callback(self._try, watcher, lambda watcher: watcher.end(status, scores))

    def _each(self, act: Callable[[Watcher], None]) -> None:
        for watcher in tuple(self._watching):
            if watcher in self._watching:  # reporting another watcher's failure may have dropped this one
                self._try(watcher, act)

    def _try(self, watcher: Watcher, act: Callable[[Watcher], None]) -> None:
        try:
            act(watcher)
        except (Exception, SystemExit) as error:  # rich raises SystemExit for a closed pipe
            self._watching.remove(watcher)
            if watcher in self._to_end:  # it may hold a file, a process or the cursor, so it is ended
                self._to_end.remove(watcher)
                with suppress(Exception, SystemExit):
                    watcher.end("interrupted", {})
            self.say(f"{type(watcher).__name__} is off for the rest of this run: {said(error)}")


TRACKERS = ("tensorboard", "wandb", "wandb-offline")
"""The choices of `mecheval train --track`."""


def tracker(name: str, folder: Path) -> Watcher:
    """The tracker called `name`, which writes below `folder`. Its package is imported only when it is used."""
    if name not in TRACKERS:
        raise UnknownName("tracker", name, TRACKERS)
    package, _, offline = name.partition("-")
    refuse_links(folder / package, folder / package)
    return TensorBoard(folder) if package == "tensorboard" else WeightsAndBiases(folder, offline or "online")


class TensorBoard(Quiet):
    """Writes event files to `folder/tensorboard/<run>`."""

    def __init__(self, folder: Path) -> None:
        self._module = load("torch.utils.tensorboard", "tensorboard")
        self._folder = folder
        self._step = 0

    def begin(self, start: Start) -> None:
        """Open the event files; a resumed run replaces what an earlier process wrote after the checkpoint."""
        purge = start.step + 1 if start.step else 0  # the row at the checkpoint itself is kept
        folder = self._folder / "tensorboard" / start.run
        refuse_links(folder, folder)
        self._writer = self._module.SummaryWriter(str(folder), purge_step=purge)
        self._step = start.step
        config = json.dumps(start.config, indent=1, ensure_ascii=False, default=str)
        text = f"{start.title}, {start.parameters:,} parameters\n\n```json\n{config}\n```"
        self._writer.add_text("config", text, self._step)

    def row(self, row: Mapping[str, float]) -> None:
        """Write a row and flush it, because rows are rare and the user may be watching them live."""
        self._step = int(row["step"])
        for tag, value in tagged(row).items():
            self._writer.add_scalar(tag, value, self._step)
        self._writer.flush()

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Write the final scores, separately from the history, at the step of the last row."""
        for name, value in scores.items():
            self._writer.add_scalar(f"final/{name}", value, self._step)
        self._writer.add_text("status", status, self._step)
        self._writer.close()


class WeightsAndBiases(Quiet):
    """Logs to a run of the wandb project `mecheval` with the same id, so that a resumed run resumes there, too."""

    def __init__(self, folder: Path, mode: str) -> None:
        if mode == "offline":  # without this, wandb sends error reports over the network even then
            os.environ["WANDB_ERROR_REPORTING"] = "false"
        self._wandb = load("wandb", "wandb")
        self._folder, self._mode = folder, mode

    def begin(self, start: Start) -> None:
        """Open the run. Terminal output is not captured, because it is a progress bar."""
        self._folder.mkdir(parents=True, exist_ok=True)  # if it did not exist, wandb would write elsewhere
        self._run = self._wandb.init(
            project="mecheval", id=start.run, resume="allow", config=start.config, dir=self._folder, mode=self._mode,
            name=start.title, settings=self._wandb.Settings(silent=True, console="off"),
        )  # fmt: skip

    def row(self, row: Mapping[str, float]) -> None:
        self._run.log(tagged(row), step=int(row["step"]))

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Close the run. Only a run that is done counts as successful."""
        self._run.summary.update({"status": status, **scores})
        self._run.finish(exit_code=0 if status == "done" else 1)


def tagged(row: Mapping[str, float]) -> dict[str, float]:
    """A history row with the names of curves: dev_loss becomes dev/loss, and lr becomes train/lr."""
    tags = {name: name.replace("_", "/", 1) if name.startswith("dev_") else f"train/{name}" for name in row}
    return {tags[name]: value for name, value in row.items() if name != "step"}


def load(module: str, package: str, extra: str = "") -> Any:
    """Import `module` of an optional package, or raise an error that says which extra of mecheval installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is installed, but broken
            raise
        raise UserError(f"{package} is not installed; pip install 'mecheval[{extra or package}]'") from None
