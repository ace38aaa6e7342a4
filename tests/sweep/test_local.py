from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mecheval.custom import Source
from mecheval.mixers import MIXERS
from mecheval.store import Store
from mecheval.sweep import Event, Job, LocalEngine, Stopped, sweep
from mecheval.sweep.local import lower_priority
from sweep.forked import NAME, forked  # noqa: F401 (a fixture)
from sweep.jobs import Heard, Here, bytes_of
from training.runs import in_child, outcome, tiny

LONG = [Job(tiny(steps=90, every=30, seed=seed)) for seed in range(3)]
"""Long enough to be stopped in the middle; one more than there are workers."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What three runs publish, worked on in this process without any interruption."""
    store = Store(tmp_path_factory.mktemp("expected"))
    sweep(LONG, store, Here(), Heard())
    return bytes_of(store, LONG)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """The workers of a process; other tests may have left it other children."""
    found = [Path("/proc") / child for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [
        int(child.name)
        for child in found
        if b"mecheval.sweep.worker" in (child / "cmdline").read_bytes() or NAME in (child / "comm").read_text()
    ]


@pytest.mark.usefixtures("forked")
def test_a_killed_worker_is_replaced_and_its_run_goes_on(tmp_path: Path, expected: dict[str, dict[str, bytes]]) -> None:
    jobs, heard = LONG, Heard()
    killed: list[int] = []

    class Killer(Heard):
        def event(self, event: Event) -> None:
            heard.event(event)
            if event.kind == "step" and event.step > 20 and not killed:
                killed.extend(children(os.getpid())[:1])
                os.kill(killed[0], signal.SIGKILL)

    swept = sweep(jobs, Store(tmp_path), LocalEngine(workers=1, checkpoint_seconds=0.01), Killer())
    assert killed
    assert swept.failures == ()
    assert any("killed by SIGKILL" in event.message for event in heard.of("say"))
    assert max(event.step for event in heard.of("begin")) > 0, "it went on from a checkpoint"
    assert bytes_of(tmp_path, jobs) == expected


@pytest.mark.usefixtures("forked")
def test_a_run_that_always_kills_its_worker_fails_and_the_others_do_not(tmp_path: Path) -> None:
    jobs, heard = LONG[:2], Heard()

    class Killer(Heard):
        def event(self, event: Event) -> None:
            heard.event(event)
            if event.kind == "begin" and event.run == jobs[0].run:
                os.kill(children(os.getpid())[0], signal.SIGKILL)

    swept = sweep(jobs, Store(tmp_path), LocalEngine(workers=1, tries=2), Killer())
    assert [failure.run for failure in swept.failures] == [jobs[0].run]
    assert "killed by SIGKILL, 2 times" in swept.failures[0].message
    assert Store(tmp_path).folder(jobs[1].run).status()["status"] == "done"


@pytest.mark.usefixtures("forked")
def test_a_signal_saves_and_stops_and_the_same_sweep_goes_on(
    tmp_path: Path, expected: dict[str, dict[str, bytes]]
) -> None:
    jobs, store = LONG, Store(tmp_path)

    class Interrupter(Heard):
        interrupted = False

        def event(self, event: Event) -> None:
            super().event(event)
            if event.kind == "step" and event.step > 20 and not self.interrupted:
                self.interrupted = True
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped) as stopped:
        sweep(jobs, store, LocalEngine(workers=2), Interrupter())
    assert stopped.value.signal == signal.SIGINT
    assert children(os.getpid()) == []
    begun = [store.folder(job.run).status() for job in jobs if store.folder(job.run).exists()]
    assert {row["status"] for row in begun} == {"interrupted"}
    assert all(row["step"] > 0 for row in begun), "saved where they were, though no checkpoint was due"
    heard = Heard()
    assert sweep(jobs, store, LocalEngine(workers=2), heard).failures == ()
    assert max(event.step for event in heard.of("begin")) > 0
    assert sorted(event.run for event in heard.of("end")) == sorted(job.run for job in jobs)
    assert {event.status for event in heard.of("end")} == {"done"}
    assert bytes_of(store, jobs) == expected


@pytest.mark.usefixtures("forked")
def test_when_the_parent_is_killed_its_workers_save_and_end(
    tmp_path: Path, expected: dict[str, dict[str, bytes]]
) -> None:
    jobs, store, sign = LONG, Store(tmp_path / "store"), tmp_path / "sign"

    class Signs(Heard):
        def event(self, event: Event) -> None:
            if event.kind == "step":
                sign.touch()

    parent = in_child(lambda: sweep(jobs, store, LocalEngine(workers=2), Signs()))
    until(lambda: sign.exists() and len(children(parent)) == 2)  # a busy machine names the second one late
    workers = children(parent)
    os.kill(parent, signal.SIGKILL)
    assert outcome(parent) == -signal.SIGKILL
    assert len(workers) == 2
    until(lambda: not any(_alive(pid) for pid in workers))
    assert any(store.folder(job.run).status()["step"] for job in jobs), "something was saved"
    assert sweep(jobs, store, Here(), Heard()).failures == ()
    assert bytes_of(store, jobs) == expected


def _alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


PRINTS = """
    import sys, threading, time

    def chatter():
        while True:
            print("hello from a mixer,", end=" ", flush=True)  # so that events come in the middle of a line
            time.sleep(0.01)

    if "worker" in " ".join(sys.orig_argv):
        print('{"hello": "before anything"}', flush=True)
        threading.Thread(target=chatter, daemon=True).start()
"""


MIXER = """
    import subprocess, sys
    import helper
    from torch import nn

    if "mecheval.sweep.worker" in sys.orig_argv:  # what a worker starts is as careful
        subprocess.run([sys.executable, "-c", "import queue"], check=True)

    class Mine(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.project = nn.Linear(d_model, d_model)

        def forward(self, x):
            return helper.half(self.project(x))
"""


def test_workers_import_nothing_from_the_folder_they_are_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, mixers = tmp_path / "here", tmp_path / "mixers"
    for folder in (hostile, mixers):
        folder.mkdir()
    for name in ("torch", "queue", "json", "mecheval", "sitecustomize", "helper"):
        (hostile / f"{name}.py").write_text("open(__file__ + '.executed', 'w').close()")
    (mixers / "mine.py").write_text(textwrap.dedent(MIXER))
    (mixers / "helper.py").write_text("def half(x):\n    return x / 2\n")
    monkeypatch.setenv("MECHEVAL_MIXERS", f"{mixers / 'mine.py'}:Mine")
    monkeypatch.setattr(MIXERS, "_classes", dict(MIXERS._classes))  # forgotten after this test
    usual = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f":{usual}::")  # an empty entry stands for the working folder
    monkeypatch.chdir(hostile)
    job = Job(tiny(mixer=Source.read(os.environ["MECHEVAL_MIXERS"]).name, steps=5))
    nice: set[int] = set()

    class Priorities(Heard):
        def event(self, event: Event) -> None:
            nice.update(os.getpriority(os.PRIO_PROCESS, child) for child in children(os.getpid()))

    swept = sweep([job], Store(tmp_path / "store"), LocalEngine(workers=1, nice=7), Priorities())
    assert swept.failures == ()
    assert list(hostile.glob("*.executed")) == []
    assert nice == {max(7, os.getpriority(os.PRIO_PROCESS, 0))}
    monkeypatch.setenv("PYTHONPATH", usual)
    words = [str(Path(sys.executable).with_name("mecheval")), "list", "tasks"]
    subprocess.run(words, check=True, capture_output=True)
    assert list(hostile.glob("*.executed")) == []


def test_a_run_that_is_held_comes_last_what_a_mixer_prints_is_no_event_and_two_threads_take_two_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(PRINTS))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    jobs, heard, store = [Job(tiny(threads=2, steps=2, seed=seed)) for seed in range(2)], Heard(), Store(tmp_path / "s")
    workers = set[int]()
    with ExitStack() as stack:
        stack.enter_context(store.folder(jobs[0].run).exclusive())

        class Releases(Heard):
            def event(self, event: Event) -> None:
                heard.event(event)
                workers.add(len(children(os.getpid())))
                if event.kind == "say":
                    assert [each.run for each in heard.of("end")] == [jobs[1].run]
                    stack.close()

        assert sweep(jobs, store, LocalEngine(workers=2), Releases()).failures == ()
    (said,) = heard.of("say")
    assert f"is in use by process {os.getpid()} on host" in said.message
    assert [each.run for each in heard.of("end")] == [jobs[1].run, jobs[0].run]
    assert {store.folder(job.run).status()["status"] for job in jobs} == {"done"}
    assert max(workers) == 1
    assert children(os.getpid()) == []


def test_engines_listen_to_signals_only_while_they_work() -> None:
    before = signal.getsignal(signal.SIGINT)
    LocalEngine(workers=1).run([], "nowhere", lambda event: None)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_low_priority_is_also_that_of_the_session_where_linux_schedules_sessions() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    group = Path(f"/proc/{process.pid}/autogroup")
    lower_priority(process.pid, 12)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 12
    if group.exists():
        assert group.read_text().split()[-1] == str(os.getpriority(os.PRIO_PROCESS, process.pid))
    process.communicate(b"\n")
