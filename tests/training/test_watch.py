from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mecheval.training.watch import Quiet, Start, Watcher, Watchers

START = Start(run="0123456789ab", title="ar · mamba", config={"task": {"name": "ar"}}, step=0, steps=10, parameters=7)
ROW = {"step": 5.0, "loss": 2.5}


class Recorder:
    def __init__(self, heard: list[Any], name: str = "", fails: Mapping[str, BaseException] | None = None) -> None:
        self.heard, self.name, self.fails = heard, name, fails or {}

    def hear(self, call: str, *what: object) -> None:
        self.heard.append((self.name, call, *what))
        if call in self.fails:
            raise self.fails[call]

    def begin(self, start: Start) -> None:
        self.hear("begin", start)

    def step(self, step: int, loss: float) -> None:
        self.hear("step", step, loss)

    def row(self, row: Mapping[str, float]) -> None:
        self.hear("row", row)

    def say(self, message: str) -> None:
        self.hear("say", message)

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        self.hear("end", status, scores)


class FullDisk(Recorder):
    pass


def test_everything_is_passed_on_in_order_and_ends_in_reverse() -> None:
    heard: list[Any] = []
    watchers: Watcher = Watchers([Recorder(heard, "a"), Recorder(heard, "b")])
    watchers.begin(START)
    watchers.step(1, 3.5)
    watchers.row(ROW)
    watchers.say("saved")
    watchers.end("done", {"dev_accuracy": 1.0})
    calls = [("begin", START), ("step", 1, 3.5), ("row", ROW), ("say", "saved")]
    in_order = [(name, *call) for call in calls for name in "ab"]
    assert heard == [*in_order, *((name, "end", "done", {"dev_accuracy": 1.0}) for name in "ba")]


@pytest.mark.parametrize("call", ["begin", "step", "row", "say"])
def test_a_watcher_that_fails_is_ended_and_dropped_and_the_others_are_told_once(call: str) -> None:
    heard: list[Any] = []
    failing = FullDisk(heard, "bad", {call: OSError(28, "No space\nleft")})
    watchers = Watchers([Recorder(heard, "a"), failing, Recorder(heard, "b")])
    for _ in range(2):
        watchers.begin(START)
        watchers.step(1, 3.5)
        watchers.row(ROW)
        watchers.say("saved")
    watchers.end("done", {})
    by_bad = [event[1:] for event in heard if event[0] == "bad"]
    assert by_bad[-2][0] == call
    assert by_bad[-1] == ("end", "interrupted", {})
    assert [event[1] for event in heard if event[0] == "bad"].count(call) == 1
    line = "FullDisk is off for the rest of this run: OSError: [Errno 28] No space left"
    assert [event for event in heard if event[2:] == (line,)] == [("a", "say", line), ("b", "say", line)]


def test_a_failure_at_the_end_is_told_also_to_those_that_have_ended() -> None:
    heard: list[Any] = []
    watchers = Watchers([FullDisk(heard, "bad", {"end": OSError("full")}), Recorder(heard, "display")])
    watchers.begin(START)
    watchers.end("done", {})
    assert heard[2:] == [
        ("display", "end", "done", {}),
        ("bad", "end", "done", {}),
        ("display", "say", "FullDisk is off for the rest of this run: OSError: full"),
    ]


def test_a_watcher_that_cannot_even_hear_of_a_failure_is_dropped_too() -> None:
    heard: list[Any] = []
    bad = FullDisk(heard, "bad", {"step": OSError("full")})
    deaf = Recorder(heard, "deaf", {"say": SystemExit(1), "end": OSError("gone")})
    watchers = Watchers([bad, deaf, Recorder(heard, "display")])
    watchers.begin(START)
    watchers.step(1, 3.5)
    watchers.step(2, 3.5)
    assert [(name, call) for name, call, *_ in heard[3:]] == [
        ("bad", "step"), ("bad", "end"), ("deaf", "say"), ("deaf", "end"), ("display", "say"), ("display", "say"),
        ("display", "step"), ("display", "step"),
    ]  # fmt: skip


def test_an_interrupt_passes_through_and_everyone_that_began_gets_one_end() -> None:
    heard: list[Any] = []
    interrupt = {"begin": KeyboardInterrupt(), "end": KeyboardInterrupt()}
    watchers = Watchers([Recorder(heard, "a"), Recorder(heard, "slow", interrupt), Recorder(heard, "b")])
    with pytest.raises(KeyboardInterrupt):
        watchers.begin(START)
    with pytest.raises(KeyboardInterrupt):
        watchers.end("interrupted", {})
    watchers.end("interrupted", {})
    assert [(name, call) for name, call, *_ in heard] == [
        ("a", "begin"), ("slow", "begin"), ("slow", "end"), ("a", "end"),
    ]  # fmt: skip


def test_nobody_watching_is_fine() -> None:
    heard: list[Any] = []
    watchers = Watchers([Quiet(), FullDisk(heard, "bad", {"row": OSError("full")})])
    watchers.begin(START)
    watchers.row(ROW)
    watchers.row(ROW)
    watchers.end("done", {})
    assert [call for _, call, *_ in heard] == ["begin", "row", "end"]
