"""Watchers observe a training run and cannot harm it; trackers send its history to other programs."""

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
    """The run that begins, as watchers receive it."""

    run: str  # the run's id, 12 hex digits
    title: str  # e.g. "ar · mamba · d 64 · lr 0.003 · seed 0"
    config: dict[str, Any]  # the whole config, nested, plain data
    step: int  # steps already done: 0, or where the run resumes
    steps: int  # steps in all
    parameters: int


class Watcher(Protocol):
    """`begin`, then any number of `step` and `row`, then `end`; `say` at any time, also before and after.

    Every method does nothing by default, for subclasses such as `Quiet`.
    """

    def begin(self, start: Start) -> None:
        """The run is about to take its first step."""
        return

    def step(self, step: int, loss: float) -> None:
        """A training step is done. Called after every one: this must cost next to nothing."""
        return

    def row(self, row: Mapping[str, float]) -> None:
        """A row of the history: step, lr, loss, dev_loss, dev_likelihood, dev_accuracy."""
        return

    def say(self, message: str) -> None:
        """Something the user should know, in one line."""
        return

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """The run is done, diverged, interrupted or failed; scores are such as dev_accuracy, test_likelihood.

        Where interventions were made during training, `interchange_seconds` is the time that they took.
        """
        return


class Quiet(Watcher):
    """A watcher that does nothing: for tests, and as a base class of watchers that need only some of the events."""


class Watchers:
    """Several watchers as one. One that fails is dropped, and the others report that; training never stops for it.

    They begin in order and end in reverse. Put the display last: a tracker may ask for a login before the bar is drawn,
    and the bar is gone before a tracker takes its time to finish. Only KeyboardInterrupt passes through, and even then
    every watcher that began gets its one `end`.
    """

    def __init__(self, watchers: Iterable[Watcher]) -> None:
        self._watching = list(watchers)
        self._to_end: list[Watcher] = []  # those that began and have not ended

    def begin(self, start: Start) -> None:
        def begin(watcher: Watcher) -> None:
            self._to_end.append(watcher)  # before the call: what was interrupted halfway needs its end, too
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
        with ExitStack() as stack:  # the rest end also when Ctrl-C hits one of them
            for watcher in ending:
                stack.callback(self._try, watcher, lambda watcher: watcher.end(status, scores))

    def _each(self, act: Callable[[Watcher], None]) -> None:
        for watcher in tuple(self._watching):
            if watcher in self._watching:  # another one's failure may have shown that this one fails, too
                self._try(watcher, act)

    def _try(self, watcher: Watcher, act: Callable[[Watcher], None]) -> None:
        try:
            act(watcher)
        except (Exception, SystemExit) as error:  # rich makes a SystemExit of a closed pipe
            self._watching.remove(watcher)
            if watcher in self._to_end:  # it may hold a file, a process or the cursor
                self._to_end.remove(watcher)
                with suppress(Exception, SystemExit):
                    watcher.end("interrupted", {})
            self.say(f"{type(watcher).__name__} is off for the rest of this run: {said(error)}")


TRACKERS = ("tensorboard", "wandb", "wandb-offline")


def tracker(name: str, folder: Path) -> Watcher:
    """The tracker called `name`, which writes below `folder`. Its package is imported only when it is used."""
    if name not in TRACKERS:
        raise UnknownName("tracker", name, TRACKERS)
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
        """Write a row and flush it, because rows are rare and may be watched live."""
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
        self._run.log(tagged(row), step=int(row["step"]))

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Close the run; only one that is done counts as finished."""
        self._run.summary.update({"status": status, **scores})
        self._run.finish(exit_code=0 if status == "done" else 1)


def tagged(row: Mapping[str, float]) -> dict[str, float]:
    """A history row as curves: dev_loss becomes dev/loss, and a name without a split belongs to train, as train/lr."""
    tags = {name: name.replace("_", "/", 1) if name.startswith("dev_") else f"train/{name}" for name in row}
    return {tags[name]: value for name, value in row.items() if name != "step"}


def load(module: str, package: str, extra: str = "") -> Any:
    """Import `module` of an optional package, or say how to install it, with the extra of its name or another."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is there, but broken
            raise
        raise UserError(f"{package} is not installed; pip install 'mecheval[{extra or package}]'") from None
