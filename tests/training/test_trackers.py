from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mecheval.errors import UnknownName, UserError
from mecheval.training.watch import TRACKERS, Start, tagged, tracker

RUN = "0123456789ab"
CONFIG = {"task": {"name": "ar", "pairs": 8}, "lr": 0.003}
SCORES = {"dev_accuracy": 0.5, "test_likelihood": 0.25}


def start(step: int = 0) -> Start:
    return Start(RUN, "ar · mamba", CONFIG, step=step, steps=40, parameters=1234)


def row(step: int, loss: float) -> dict[str, float]:
    return {"step": step, "lr": 0.5, "loss": loss, "dev_loss": 2.5, "dev_likelihood": 0.125, "dev_accuracy": 0.25}


def python(code: str, *arguments: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=kept | environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_unknown_tracker_names_the_choices(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'tensorboard'\\? Choices: tensorboard, wandb, wandb-offline"):
        tracker("tensor-board", tmp_path)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_says_how_to_get_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = name.removesuffix("-offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")  # so that what offline sets is undone
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError) as problem:
        tracker(name, tmp_path)
    assert str(problem.value) == f"{package} is not installed; pip install 'mecheval[{package}]'"


def test_a_row_becomes_curves() -> None:
    assert tagged(row(500, 1.5)) == {
        "train/lr": 0.5, "train/loss": 1.5, "dev/loss": 2.5, "dev/likelihood": 0.125, "dev/accuracy": 0.25,
    }  # fmt: skip


def test_tensorboard_holds_history_config_and_scores_once_also_when_a_run_continues(tmp_path: Path) -> None:
    first = tracker("tensorboard", tmp_path)
    first.begin(start())
    for step, loss in ((10, 8.0), (20, 4.0), (30, 666.0)):  # killed after 30; its last checkpoint is of step 20
        first.row(row(step, loss))
    second = tracker("tensorboard", tmp_path)
    second.begin(start(step=20))
    second.row(row(30, 2.0))
    second.row(row(40, 1.0))
    second.end("done", SCORES)
    first.end("interrupted", {})  # only closes the file

    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == [RUN]
    events = EventAccumulator(str(tmp_path / "tensorboard" / RUN)).Reload()

    def curve(tag: str) -> list[tuple[int, float]]:
        return [(event.step, event.value) for event in events.Scalars(tag)]

    assert curve("train/loss") == [(10, 8.0), (20, 4.0), (30, 2.0), (40, 1.0)]
    assert curve("dev/likelihood") == [(step, 0.125) for step in (10, 20, 30, 40)]
    assert curve("final/dev_accuracy") == [(40, 0.5)]
    assert curve("final/test_likelihood") == [(40, 0.25)]
    assert set(events.Tags()["scalars"]) == {*tagged(row(0, 0.0)), *(f"final/{name}" for name in SCORES)}
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.startswith("ar · mamba, 1,234 parameters")
    assert json.loads(text[text.index("{") : text.rindex("}") + 1]) == CONFIG


OFFLINE = f"""
import atexit, socket, sys
from pathlib import Path

asked = []
atexit.register(lambda: print(asked))  # first in, last out: what wandb does at exit counts
look_up = socket.getaddrinfo
socket.getaddrinfo = lambda *address, **options: asked.append(address) or look_up(*address, **options)

import mecheval.training.progress
from mecheval.training.watch import tracker
from mecheval.training.watch import Start

print({{"wandb", "tensorboard", "torch.utils.tensorboard"}} & set(sys.modules))  # nothing unless it is asked for
watcher = tracker("wandb-offline", Path(sys.argv[1]))
for status in ("interrupted", "done"):  # two runs in one process
    watcher.begin(Start({RUN!r}, "ar · mamba", {CONFIG!r}, step=0, steps=40, parameters=1234))
    watcher.row({row(10, 8.0)!r})
    watcher.end(status, {SCORES!r})
"""


def test_wandb_offline_writes_a_run_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    assert python(OFFLINE, str(tmp_path / "new" / "runs"), HOME=str(tmp_path)) == "set()\n[]\n"
    runs = sorted((tmp_path / "new" / "runs" / "wandb").glob(f"offline-run-*-{RUN}"))
    assert runs
    written = (runs[-1] / f"run-{RUN}.wandb").read_bytes()
    for part in ("ar · mamba", "mecheval", "dev/likelihood", "train/lr", "test_likelihood", "pairs"):
        assert part.encode() in written, part
    core = (runs[0] / "logs" / "debug-core.log").read_text()
    assert '"disable-analytics":true' in core  # wandb's own process reports nothing either


class FakeRun:
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls
        self.summary: dict[str, Any] = {}

    def log(self, data: dict[str, float], step: int) -> None:
        self.calls.append((data, step))

    def finish(self, exit_code: int) -> None:
        self.calls.append((dict(self.summary), exit_code))


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("diverged", 1), ("interrupted", 1), ("failed", 1)])
def test_wandb_online_is_asked_for_a_run_that_can_continue(
    status: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)

    def init(**arguments: Any) -> FakeRun:
        calls.append(arguments)
        return FakeRun(calls)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    watcher = tracker("wandb", tmp_path / "runs")
    watcher.begin(start(step=20))
    watcher.step(21, 3.0)
    watcher.say("not for wandb")
    watcher.row(row(30, 2.0))
    watcher.end(status, SCORES)
    assert calls == [
        {
            "project": "mecheval", "id": RUN, "resume": "allow", "config": CONFIG, "dir": tmp_path / "runs",
            "mode": "online", "name": "ar · mamba", "settings": {"silent": True, "console": "off"},
        },
        (tagged(row(30, 2.0)), 30),
        ({"status": status, **SCORES}, code),
    ]  # fmt: skip
    assert (tmp_path / "runs").is_dir()
    assert "WANDB_ERROR_REPORTING" not in os.environ  # online, wandb's reports are the user's own choice
