from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mecheval.store import Store
from mecheval.sweep import Event, HereEngine, Stopped, engine, job, sweep, work
from mecheval.training import train
from sweep.jobs import Heard, small_jobs
from training.runs import in_child, kill_self, outcome


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "HELD_SECONDS", 0.1)
    monkeypatch.setattr(engine, "HELD_LOOK_SECONDS", 0.1)


class Holder:
    """Another process that works on a run until it is told what to do."""

    def __init__(self, store: Store, run: str) -> None:
        self.folder = store.folder(run)
        there, self.said = os.pipe()
        self.listen, self.tell = os.pipe()
        self.pid = in_child(lambda: self.hold(there))
        os.read(self.listen, 1)

    def hold(self, orders: int) -> None:
        os.close(self.said)  # so that the end of the test is the end of its orders
        with self.folder.exclusive():
            os.write(self.tell, b"x")
            if os.read(orders, 1) == b"k":
                kill_self()

    def order(self, what: bytes) -> None:
        os.write(self.said, what)
        outcome(self.pid)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_work_tells_soon_that_a_run_is_held(store: Store) -> None:
    (held,) = small_jobs(1)
    heard: list[Event] = []
    with store.folder(held.run).exclusive():
        began = time.monotonic()
        assert work(held, str(store.path), heard.append) == "held"
        assert time.monotonic() - began < 20
    assert [event.status for event in heard] == ["held"]
    assert f"process {os.getpid()}" in heard[0].message
    assert work(held, str(store.path), heard.append) == "done"


@pytest.mark.parametrize("fate", ["finishes", "dies"])
def test_a_run_that_is_held_comes_last(store: Store, fate: str) -> None:
    jobs, heard = small_jobs(2, steps=10), Heard()
    holder = Holder(store, jobs[0].run)

    class Acts(Heard):
        def event(self, event: Event) -> None:
            heard.event(event)
            if event.kind == "say":
                assert [each.run for each in heard.of("end")] == [jobs[1].run], "the others are done before"
                holder.order(b"k" if fate == "dies" else b"e")
                if fate == "finishes":
                    train(jobs[0].config, store)

    assert sweep(jobs, store, HereEngine(), Acts()).failures == ()
    assert [each.status for each in heard.of("end")] == ["done", "done"]
    assert sum(each.run == jobs[0].run for each in heard.of("begin")) == (fate == "dies")
    (said,) = heard.of("say")
    assert f"is in use by process {holder.pid} on host" in said.message


def test_ctrl_c_ends_the_waiting_at_once(store: Store) -> None:
    (held,) = small_jobs(1)
    said: list[str] = []

    class Interrupts(Heard):
        def event(self, event: Event) -> None:
            assert event.kind == "say"
            if not said:
                os.kill(os.getpid(), signal.SIGINT)
            said.append(event.message)

    with store.folder(held.run).exclusive(), pytest.raises(Stopped):
        sweep([held], store, HereEngine(), Interrupts())
    assert "is in use by process" in said[0]
    assert said[1:] == [engine.STOPPING]
