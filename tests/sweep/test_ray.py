from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mecheval.errors import UserError
from mecheval.store import RunFolder, Store, StoreError, location
from mecheval.sweep import pending, ray_join
from mecheval.sweep.job import Event, Job, work
from mecheval.sweep.ray_engine import RayEngine, fits
from mecheval.sweep.ray_guard import processes
from training.runs import left_over, published, tiny

pytest.importorskip("ray", reason="Ray is not installed; pip install 'mecheval[ray]' to test its engine, too")

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves the log files of its processes open

LONG = [Job(tiny(steps=1000, every=200, seed=seed)) for seed in range(2)]
"""Long enough to be killed in the middle."""
SHORT = [Job(tiny(steps=40, every=20, lr=lr, seed=seed)) for lr in (1e-3, 3e-3) for seed in range(2)]
JOBS = [*LONG, *SHORT[:2]]
DRIVER = """
import json, sys
from mecheval.store import Store
from mecheval.sweep import Job, Stopped, pending
from mecheval.sweep.ray_engine import RayEngine

given = json.loads(sys.argv[1])
jobs = pending([Job.read(job) for job in given["jobs"]], Store(given["store"]))
engine = RayEngine(given["address"], checkpoint_seconds=given["seconds"])
try:
    engine.run(jobs, given["store"], lambda event: print(json.dumps(event), flush=True))
except Stopped as stopped:
    sys.exit(100 + stopped.signal)
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What the runs are when one process works on one after the other."""
    store = tmp_path_factory.mktemp("plain")
    for job in JOBS:
        work(job, str(store), lambda event: None)
    found = {job.run: published(Store(store).folder(job.run)) for job in JOBS}
    assert all(len(files) == 6 for files in found.values())
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with one core, on which the driver is."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    before = ray_join.set_variables({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32})
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80_000_000}
    quick = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 4}
    unasked = {"prestart_worker_first_driver": False}  # workers for a driver without an environment, which ours has
    head = {**size, "include_dashboard": False, "_system_config": {**quick, **unasked}}
    started = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield started
    finally:
        started.shutdown()  # type: ignore[no-untyped-call]
        ray_join.set_variables(before)


@pytest.fixture
def second(cluster: Any) -> Iterator[Any]:
    """Another node with one core."""
    node = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    yield node
    if node in cluster.list_all_nodes():
        cluster.remove_node(node, allow_graceful=False)


def results(store: Store, jobs: Sequence[Job]) -> dict[str, dict[str, bytes]]:
    return {job.run: published(store.folder(job.run)) for job in jobs}


def some(expected: dict[str, dict[str, bytes]], jobs: Sequence[Job]) -> dict[str, dict[str, bytes]]:
    return {job.run: expected[job.run] for job in jobs}


def is_halfway(folder: RunFolder, node: Any) -> bool:
    """Whether a worker of this node has saved a checkpoint of a run and trains it."""
    if not list(folder.checkpoints.glob("*.json")):
        return False
    return str(json.loads((folder.path / "lock").read_text())["process"]) in workers(node)


def workers(node: Any) -> list[str]:
    [raylet] = node.all_processes["raylet"]
    own = raylet.process.pid
    return Path(f"/proc/{own}/task/{own}/children").read_text().split()


def power_off(cluster: Any, node: Any) -> None:
    """Kill a node with all its workers at once: Ray's own way leaves them the time to end their run."""
    [raylet] = node.all_processes["raylet"]
    raylet.process.send_signal(signal.SIGSTOP)
    for worker in workers(node):
        os.kill(int(worker), signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


def test_a_node_dies_and_every_run_ends_as_if_it_never_had(
    tmp_path: Path, cluster: Any, second: Any, expected: dict[str, dict[str, bytes]]
) -> None:
    heard: list[Event] = []
    store, elsewhere = Store(tmp_path), ExitStack()
    elsewhere.enter_context(store.folder(SHORT[0].run).exclusive())

    def listen(event: Event) -> None:
        heard.append(event)
        if "is in use by process" in event.message:
            assert sum(event.kind == "end" for event in heard) == len(JOBS) - 1, "only this one is left"
            elsewhere.close()
        if second in cluster.list_all_nodes() and any(is_halfway(store.folder(job.run), second) for job in LONG):
            power_off(cluster, second)

    engine = RayEngine(cluster.address, checkpoint_seconds=0.1)
    assert engine.workers == 2
    engine.run(JOBS, str(tmp_path), listen)
    assert [event.run for event in heard if event.kind == "say"][-1] == SHORT[0].run, "it was waited for"
    assert not any("requires no token" in event.message for event in heard)
    ends = [event for event in heard if event.kind == "end"]
    assert sorted(event.run for event in ends) == sorted(job.run for job in JOBS)
    assert {event.status for event in ends} == {"done"}
    again = [event for event in heard if event.kind == "say" and "its worker died" in event.message]
    assert len(again) == 1
    assert again[0].message.endswith("restarted from its checkpoint")
    resumed = [event.step for event in heard if event.kind == "begin" and event.run == again[0].run]
    assert len(resumed) == 2
    assert resumed[1] > 0
    assert store.ids() == sorted(job.run for job in JOBS)
    assert results(store, JOBS) == expected
    assert not any(left_over(store.folder(run)) for run in store.ids())
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


class Driver:
    """A sweep in another process."""

    def __init__(self, cluster: Any, store: Path, jobs: Sequence[Job], checkpoint_seconds: float) -> None:
        given = {"jobs": [job.to_dict() for job in jobs], "store": str(store), "address": cluster.address}
        given["seconds"] = checkpoint_seconds
        self.heard: list[Event] = []
        hostile = store.parent / "hostile"
        hostile.mkdir(exist_ok=True)
        for name in ("torch", "queue", "mecheval"):  # in the driver's folder: no worker may import them
            (hostile / f"{name}.py").write_text("raise SystemExit('a file that only lies there was executed')")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", DRIVER, json.dumps(given)],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=hostile,
        )  # fmt: skip

    def listen(self, until: Callable[[list[Event]], bool]) -> None:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.heard.append(Event(*json.loads(line)))
            if until(self.heard):
                break

    def finish(self) -> int:
        self.listen(lambda heard: False)
        assert self.process.stderr is not None
        with self.process:
            said = self.process.stderr.read()
        assert said == ""  # Ray prints nothing over our display
        return self.process.returncode

    def ended(self) -> set[str]:
        return {event.run for event in self.heard if event.kind == "end"}


def test_a_driver_that_is_stopped_or_killed_goes_on_where_it_was(
    tmp_path: Path, cluster: Any, expected: dict[str, dict[str, bytes]]
) -> None:
    tmp_path /= "store"  # on one core, the short run comes first and is done when the long one begins
    long, jobs, store = LONG[0].run, [SHORT[0], LONG[0], SHORT[1]], Store(tmp_path)
    stopped = Driver(cluster, tmp_path, jobs, checkpoint_seconds=1000)
    stopped.listen(lambda heard: heard[-1].run == long and heard[-1].step > 0)
    stopped.process.terminate()
    assert stopped.finish() == 100 + signal.SIGTERM
    saved = store.folder(long).status()
    assert saved["status"] == "interrupted"
    assert saved["step"] > 0  # saved for the signal: the next checkpoint was far away
    assert not any(store.folder(run).is_held() for run in store.ids())

    killed = Driver(cluster, tmp_path, jobs, checkpoint_seconds=0.1)
    killed.listen(lambda heard: heard[-1].run == long and heard[-1].step > saved["step"])
    killed.process.kill()
    assert killed.finish() == -signal.SIGKILL
    assert next(event.step for event in killed.heard if event.run == long) == saved["step"]
    done = stopped.ended() | killed.ended()
    times = {run: (store.folder(run).path / "status.json").stat().st_mtime_ns for run in done}
    assert done == {SHORT[0].run}
    assert len(list(tmp_path.glob(".sweep-*"))) == 1, "the killed one could not remove its file"

    heard: list[Event] = []
    RayEngine(cluster.address, checkpoint_seconds=0.1).run(pending(jobs, store), str(tmp_path), heard.append)
    assert list(tmp_path.glob(".sweep-*")) == [], "its successor did"
    assert done.isdisjoint(event.run for event in heard)
    assert {run: (store.folder(run).path / "status.json").stat().st_mtime_ns for run in done} == times
    assert results(store, jobs) == some(expected, jobs)


def test_a_run_that_fails_is_not_tried_again(
    tmp_path: Path, cluster: Any, expected: dict[str, dict[str, bytes]]
) -> None:
    jobs, bad = SHORT[:1], Job(SHORT[2].config, splits=("nonsense",))
    heard: list[Event] = []
    RayEngine(cluster.address, checkpoint_seconds=0.1).run([bad, *jobs], str(tmp_path), heard.append)
    ends = {event.run: event for event in heard if event.kind == "end"}
    assert {run: event.status for run, event in ends.items()} == {bad.run: "failed", jobs[0].run: "done"}
    assert "nonsense" in ends[bad.run].message
    assert sum(event.kind == "begin" and event.run == bad.run for event in heard) == 1
    assert results(Store(tmp_path), jobs) == some(expected, jobs)


PRIVATE = """
import os, signal, sys, threading
from mecheval.errors import UserError
from mecheval.sweep import Job
from mecheval.sweep.ray_engine import RayEngine
from mecheval.sweep.ray_guard import processes
from training.runs import tiny

engine = RayEngine(None)
from ray._private.worker import _global_node as node
print(node.session_name, flush=True)

def hear(event):
    if event.kind == "step":
        if sys.argv[2] == "head":
            [head] = [each.process for each in node.all_processes["gcs_server"]]
            head.kill()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

try:
    engine.run([Job(tiny(steps=10**6, every=10**5))], sys.argv[1], hear)
except UserError as error:
    print(error, flush=True)
"""


@pytest.mark.parametrize("dies", ["head", "driver"])
def test_a_private_ray_ends_with_its_head_or_its_driver(dies: str, tmp_path: Path) -> None:
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    process = subprocess.Popen(
        [sys.executable, "-c", PRIVATE, str(tmp_path), dies],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=path,
    )  # fmt: skip
    out, err = process.communicate(timeout=120)
    session, *said = out.splitlines()
    assert process.returncode == (2 if dies == "head" else -signal.SIGKILL)
    if dies == "head":
        assert err == ""
        [line] = said
        assert re.fullmatch(r"the head of the Ray cluster at .* is gone; finished runs .* same command again\.", line)
    until = time.monotonic() + 20  # two seconds where nothing else computes; Ray's agents alone would take a minute
    while processes(session):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_worker_that_always_dies_is_given_up(tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mecheval.sweep import ray_engine

    def dies(*given: Any) -> str:
        os._exit(1)

    monkeypatch.setattr(ray_engine, "task", dies)
    monkeypatch.setattr(ray_join, "_asks_for_token", lambda head: False)
    heard: list[Event] = []
    RayEngine(cluster.address, tries=2).run(SHORT[:1], str(tmp_path), heard.append)
    assert [event.kind for event in heard] == ["say", "say", "end"]
    assert heard[0].message.startswith(
        f"the Ray cluster at {cluster.address} requires no token: anyone who can reach it"
    )
    assert heard[-1].status == "failed"
    assert heard[-1].message == "its worker died (WorkerCrashedError), 2 times"


def test_more_than_any_node_has_is_refused(tmp_path: Path, cluster: Any) -> None:
    with pytest.raises(UserError, match=r"no node .* has the 1 CPUs and 1 GPUs .*\(nodes have: 1 CPUs and 0 GPUs\)"):
        RayEngine(cluster.address, gpus=1)
    engine = RayEngine(cluster.address)
    with pytest.raises(UserError, match=r"no node .* has the 3 CPUs"):
        engine.run([Job(tiny(threads=3))], str(tmp_path), lambda event: None)


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match=r"cannot join the Ray cluster at 127.0.0.1:9: .*ray start --head"):
        RayEngine("127.0.0.1:9")
    with pytest.raises(UserError, match="auto or host:port"):
        RayEngine("ray://somewhere")
    assert time.monotonic() - began < 10
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'mecheval\[ray\]'"):
        RayEngine("auto")


def test_a_store_that_a_node_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "SHARED_SECONDS", 0.0)
    with pytest.raises(StoreError, match=r"not shared with node .*; use a folder that all nodes see"):
        location.check_shared(str(tmp_path), ".sweep-1")
    (tmp_path / ".sweep-1").touch()
    location.check_shared(str(tmp_path), ".sweep-1")


def test_a_ray_of_ones_own_answers_only_here_and_only_with_its_token(tmp_path: Path, cluster: Any) -> None:
    import ray

    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", ray_join.LOOPBACK)
    before = {name: os.environ.get(name) for name in names}
    engine = RayEngine(None)
    try:
        head = ray.get_runtime_context().gcs_address
        (node,) = ray.nodes()  # type: ignore[no-untyped-call]
        ports = {int(head.rpartition(":")[2]), node["NodeManagerPort"], node["ObjectManagerPort"]}
        heard_at = {address for address, port in listening() if port in ports}
        assert heard_at <= {"0100007F", "0000000000000000FFFF00000100007F"}, "127.0.0.1, also as IPv6 writes it"
        assert len(heard_at) > 0
        assert ray_join._asks_for_token(head)
        assert os.environ["RAY_AUTH_TOKEN"] != before["RAY_AUTH_TOKEN"], "a token of its own"
    finally:
        engine._connection.leave()
    assert {name: os.environ.get(name) for name in names} == before


def listening() -> list[tuple[str, int]]:
    """Addresses, as the kernel writes them, and ports of this machine to which one can connect."""
    lines = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    places = [words[1].split(":") for words in lines if words[3] == "0A"]
    return [(address, int(port, 16)) for address, port in places]


def test_a_cluster_that_answers_without_a_token_is_told_from_one_that_does_not() -> None:
    grpc = pytest.importorskip("grpc")

    def answer(call: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([Answers(answer)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert not ray_join._asks_for_token(f"127.0.0.1:{port}")
    finally:
        server.stop(None).wait()


class Answers:
    """A gRPC handler for all methods."""

    def __init__(self, service: Callable[[Any], Any]) -> None:
        self.service = service


def test_a_node_takes_as_many_jobs_as_fit() -> None:
    assert fits({"CPU": 8.0, "GPU": 2.0}, 1, 0) == 8
    assert fits({"CPU": 8.0, "GPU": 2.0}, 1, 1) == 2
    assert fits({"CPU": 8.0, "GPU": 2.0}, 3, 0.5) == 2
    assert fits({"CPU": 8.0}, 1, 1) == 0
