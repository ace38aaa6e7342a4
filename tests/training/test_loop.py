from __future__ import annotations

import errno
import json
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import mecheval as me
from mecheval.analysis import METRICS, score
from mecheval.analysis.runs import alone
from mecheval.analysis.weights import card
from mecheval.errors import UserError
from mecheval.mixers import MIXERS
from mecheval.store import Store, StoreError
from mecheval.store.upkeep import verify
from mecheval.tasks import TASKS
from mecheval.training import Interrupted, train
from mecheval.training.state import evaluation_set
from mecheval.training.watch import Quiet
from training.runs import Recorder, SignalAt, in_child, outcome, published, tiny


class Fuse(nn.Module):
    """A linear mixer that fails, or turns to NaN, at its n-th training step."""

    burnt: float | Exception = math.nan
    after = 20

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(d_model, d_model), 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.calls += self.training
        if self.calls <= Fuse.after or not self.training:
            return y
        if isinstance(Fuse.burnt, Exception):
            raise Fuse.burnt
        return y * Fuse.burnt


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> type[Fuse]:
    monkeypatch.setitem(MIXERS._classes, "fuse", Fuse)
    return Fuse


WHOLE = tiny(steps=60)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run publishes that nothing has stopped."""
    return published(train(WHOLE, tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("task", TASKS.names())
def test_the_same_config_gives_the_same_bytes_however_many_train_at_once(task: str, tmp_path: Path) -> None:
    """On one machine, where all make the same calls on the same shapes."""
    small = {"ar": {"pairs": 3}, "atr": {"max_length": 16}}
    options = small.get(task) or TASKS.get(task).presets["laptop"]
    base = {name: value for name, value in tiny(steps=12, every=5).to_dict().items() if name not in ("task", "mixer")}
    configs = [
        me.RunConfig.read({**base, "task": {"name": task, **options}, "mixer": m})
        for m in ("mamba", "delta_net")[: 2 if task in small else 1]
    ]
    for config in configs:
        train(config, tmp_path / "one")  # first, so that the children need not compile its kernels, each for itself
    children = [
        in_child(lambda config=config, store=store: train(config, tmp_path / store))  # type: ignore[misc]
        for config in configs
        for store in ("two", "other")
    ]
    assert [outcome(child) for child in children] == [0] * 2 * len(configs)
    for config in configs:
        found = [published(Store(tmp_path / store).folder(config.id)) for store in ("one", "two", "other")]
        assert found[0] == found[1] == found[2]
        assert len(found[0]) == 4


def test_a_metric_that_is_registered_is_scored_stored_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(logits_BV: Tensor, answers_B: Tensor) -> Tensor:
        """The place of the answer among the tokens, from 1 for the likeliest."""
        return 1.0 + (logits_BV > logits_BV.gather(1, answers_B[:, None])).sum(1)

    monkeypatch.setitem(METRICS._classes, "place", place)
    folder = train(tiny(steps=4, every=2), tmp_path / "store")
    store = Store(tmp_path / "store")
    wide, long = store.evaluations(), store.scores()
    assert len(long) == 4 * len(wide) == 16
    assert wide["place"].tolist() == long.query("metric == 'place'")["value"].tolist()
    assert wide["place"].ge(1).all()
    assert "| split | likelihood | accuracy | loss | place | answers |" in card(folder, tiny(steps=4, every=2), "last")
    assert [found.state for found in verify(store)] == ["ok"]


def test_history_evaluations_and_weights_fit_together(tmp_path: Path) -> None:
    config = tiny(steps=60, every=20)
    recorder = Recorder()
    folder = train(config, tmp_path, [recorder])
    store = Store(tmp_path)
    history, evaluations = store.history(), store.evaluations()
    assert recorder.steps == list(range(1, 61))
    assert history["step"].tolist() == [20, 40, 60]
    assert [row["step"] for row in recorder.rows] == [20, 40, 60]
    assert recorder.ends[0][0] == "done"
    assert set(zip(evaluations["state"], evaluations["split"], strict=True)) == {
        ("last", "dev"), ("last", "test"), ("best", "dev"), ("best", "test"),
    }  # fmt: skip
    task = config.build_task()
    for state in ("last", "best"):
        lm = me.load_lm(folder.weights / f"{state}.safetensors")
        for split in ("dev", "test"):
            with alone(config.machine.threads):  # as in training, so that all sums are the same
                scores = score(lm, evaluation_set(config, task, split))
            [row] = evaluations.query(f"state == '{state}' and split == '{split}'").to_dict("records")
            assert {name: row[name] for name in ("likelihood", "accuracy", "loss", "n")} == scores.to_dict()
    best = history.sort_values(["dev_accuracy", "dev_likelihood", "step"], ascending=[False, False, True]).iloc[0]
    status = folder.status()
    assert (status["best_step"], status["best_dev_accuracy"]) == (best["step"], best["dev_accuracy"])
    assert status["dev_loss"] == history["dev_loss"].iloc[-1]
    assert not folder.checkpoints.exists()


def test_the_rows_of_the_history_average_the_loss_and_name_the_rate(tmp_path: Path) -> None:
    losses: list[float] = []

    class Losses(Quiet):
        def step(self, step: int, loss: float) -> None:
            losses.append(loss)

    train(tiny(steps=20, every=8, lr=1e-2), tmp_path, [Losses()])
    history = Store(tmp_path).history()
    assert history["loss"].tolist() == pytest.approx([sum(losses[:8]) / 8, sum(losses[8:16]) / 8, sum(losses[16:]) / 4])
    assert history["lr"].tolist() == pytest.approx(
        [1e-2 * 0.5 * (1 + math.cos(math.pi * (step - 3) / 18)) for step in (8, 16, 20)]
    )


def test_the_step_is_adamws(tmp_path: Path) -> None:
    """Three steps against the formulas of the optimiser, written out.

    In double precision: a step divides a gradient by its own size, and with it the rounding of products, which are
    others here (of all positions) than in training (where there is loss). Errors of 1e-16 over eps = 1e-8 are left.
    """
    config = tiny(steps=3, every=3, warmup=0.0, decay="constant", weight_decay=0.1, dtype="float64")
    folder = train(config, tmp_path)
    task = config.build_task()
    lm, documents = config.build_lm(task).double(), task.sample(24, "train", 0)
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in lm.named_parameters()}
    lr, b1, b2 = config.optimiser.lr, 0.9, 0.999
    for t in (1, 2, 3):
        batch = documents[slice(8 * (t - 1), 8 * t)]
        lm.zero_grad()
        logits = lm(batch.tokens)[torch.arange(8), batch.predict_at[:, 0]]
        (-logits.log_softmax(-1)[torch.arange(8), batch.answers].mean()).backward()
        with torch.no_grad():
            for name, p in lm.named_parameters():
                g = torch.zeros_like(p) if p.grad is None else p.grad
                m, v = moments[name]
                m.mul_(b1).add_(g, alpha=1 - b1)
                v.mul_(b2).add_(g * g, alpha=1 - b2)
                p.mul_(1 - lr * 0.1).sub_(lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + 1e-8))
    trained = load_file(folder.weights / "last.safetensors")
    for name, p in lm.named_parameters():
        torch.testing.assert_close(trained[name], p.detach(), rtol=0, atol=1e-6 * lr)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    config = tiny(steps=5)
    folder = train(config, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    recorder = Recorder()
    train(config, tmp_path, [recorder])
    assert (recorder.starts, recorder.steps) == ([], [])
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_call_continues(number: int, tmp_path: Path, whole: dict[str, bytes]) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    watcher = SignalAt(23, number)
    with pytest.raises(Interrupted, match="saved at step 23; run the same command again to resume it") as stopped:
        train(WHOLE, tmp_path, [watcher])
    assert stopped.value.signal == number
    assert watcher.steps[-1] == 23
    assert watcher.ends == [("interrupted", {})]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    [status] = Store(tmp_path).runs()["status"]
    assert status == "interrupted"
    assert Store(tmp_path).history().empty
    recorder = Recorder()
    folder = train(WHOLE, tmp_path, [recorder])
    assert recorder.starts[0].step == 23
    assert recorder.steps == list(range(24, 61))
    assert published(folder) == whole
    assert folder.status()["status"] == "done"


def test_training_works_outside_the_main_thread(tmp_path: Path) -> None:
    thread = threading.Thread(target=train, args=(tiny(steps=3), tmp_path))
    thread.start()
    thread.join()
    assert Store(tmp_path).runs()["status"].tolist() == ["done"]


def test_divergence_is_a_result(fuse: type[Fuse], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "burnt", math.nan)
    recorder = Recorder()
    folder = train(tiny(mixer="fuse"), tmp_path, [recorder])
    status = folder.status()
    assert (status["status"], status["step"]) == ("diverged", 20)
    assert status["message"] == "the loss was not finite after step 20"
    assert recorder.ends[0][0] == "diverged"
    store = Store(tmp_path)
    assert store.history()["step"].tolist() == [7, 14]
    assert set(store.evaluations()["state"]) == {"best"}
    assert all(bool(tensor.isfinite().all()) for tensor in load_file(folder.weights / "best.safetensors").values())
    assert train(tiny(mixer="fuse"), tmp_path).status()["status"] == "diverged"


def test_a_rate_that_is_far_too_high_diverges_and_does_not_crash(tmp_path: Path) -> None:
    folder = train(tiny(lr=1e18, warmup=0.0), tmp_path)
    assert folder.status()["status"] == "diverged"


def test_a_failure_is_told_and_the_next_call_tries_again(
    fuse: type[Fuse], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuse, "burnt", RuntimeError("shapes do not fit"))
    recorder = Recorder()
    config = tiny(mixer="fuse")
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train(config, tmp_path, [recorder], checkpoint_seconds=0.0)
    status = Store(tmp_path).folder(config.id).status()
    assert (status["status"], status["step"], status["message"]) == ("failed", 20, "RuntimeError: shapes do not fit")
    assert recorder.ends == [("failed", {})]
    monkeypatch.setattr(fuse, "after", 1000)
    again = Recorder()
    assert train(config, tmp_path, [again]).status()["status"] == "done"
    assert again.starts[0].step == 20


def test_early_stops(tmp_path: Path) -> None:
    at_once = train(tiny(stop_at=1e-9, pairs=2, keys=2, values=2), tmp_path).status()
    assert (at_once["status"], at_once["step"], at_once["steps"]) == ("done", 7, 60)
    flat = train(tiny(patience=3, lr=1e-12), tmp_path)
    history = Store(tmp_path).query(f"select * from history where run = '{flat.id}' order by step")
    assert flat.status()["step"] == flat.status()["best_step"] + 3 * 7 == history["step"].iloc[-1]


def test_two_processes_do_not_train_the_same_run(tmp_path: Path) -> None:
    config = tiny(steps=100_000)
    child = in_child(lambda: train(config, tmp_path, checkpoint_seconds=0.0))
    folder = Store(tmp_path).folder(config.id)
    try:
        for _ in range(12_000):  # on a fresh clone the child compiles its kernels first
            if folder.status()["step"]:
                break
            time.sleep(0.01)
        with pytest.raises(UserError, match=rf"run {config.id} is in use by process {child} on host"):
            train(config, tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        outcome(child)
    assert folder.status()["status"] == "interrupted"


@pytest.mark.parametrize("what", ["store", "run", "status"])
def test_what_is_removed_while_it_is_trained_ends_the_run_and_leaves_no_ghost(what: str, tmp_path: Path) -> None:
    folder = Store(tmp_path / "store").folder(WHOLE.id)
    moved = {"store": tmp_path / "store", "run": folder.path, "status": folder.path / "status.json"}[what]

    class Moves(Quiet):
        def step(self, step: int, loss: float) -> None:
            if step == 30:
                moved.rename(tmp_path / "elsewhere")

    why = "status.json is missing" if what == "status" else f"run {WHOLE.id} was moved or removed meanwhile"
    with pytest.raises(StoreError, match=why):
        train(WHOLE, tmp_path / "store", [Moves()], checkpoint_seconds=0.0)
    assert moved.exists() is False
    if what == "store":
        assert Store(tmp_path / "elsewhere").folder(WHOLE.id).status()["step"] == 29


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_loses_nothing(
    code: int, tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny(steps=10)
    before = published(train(other, tmp_path))
    steps, fsync = 0, os.fsync

    class Count(Quiet):
        def step(self, step: int, loss: float) -> None:
            nonlocal steps
            steps = step

    def full(descriptor: int) -> None:
        if steps >= 30:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError) as raised:
        train(WHOLE, tmp_path, [Count()], checkpoint_seconds=0.0)
    monkeypatch.setattr(os, "fsync", fsync)
    assert os.strerror(code) in str(raised.value)
    assert "what was saved before is intact" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert published(Store(tmp_path).folder(other.id)) == before
    assert Store(tmp_path).folder(WHOLE.id).status()["status"] == "interrupted"
    recorder = Recorder()
    assert published(train(WHOLE, tmp_path, [recorder])) == whole
    assert recorder.starts[0].step == 29


def test_a_store_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*: Not a directory"):
        train(tiny(), tmp_path / "file" / "store")


def test_a_config_that_cannot_be_built_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="d_model=16 is not a multiple of num_heads=3"):
        train(tiny(num_heads=3), tmp_path / "store")
    with pytest.raises(UserError, match="device cuda:7: PyTorch sees"):
        train(tiny(device="cuda:7"), tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("mixer", MIXERS.names())
def test_every_mixer_trains_in_double_precision_too(mixer: str, tmp_path: Path) -> None:
    folder = train(tiny(mixer=mixer, dtype="float64", steps=3, every=3, clip=1.0), tmp_path)
    weights = load_file(folder.weights / "last.safetensors")
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.float64}
    assert json.loads((folder.path / "environment.json").read_text())["training from step 0"]["cores"] >= 1


def test_clipping_bounds_the_gradient(tmp_path: Path) -> None:
    free, clipped = (load_file(train(tiny(steps=2, **extra), tmp_path).weights / "last.safetensors") for extra in CLIPS)
    assert any(not torch.equal(free[name], clipped[name]) for name in free)


CLIPS: tuple[dict[str, Any], dict[str, Any]] = ({}, {"clip": 1e-9})
