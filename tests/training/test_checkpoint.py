from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mecheval.analysis import score
from mecheval.store import RunFolder, Store
from mecheval.training import Interrupted, train
from mecheval.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from mecheval.training.state import Training, TrainingData, evaluation_set
from training.runs import Recorder, SignalAt, in_child, outcome, published, tiny

RUN = "0123456789ab"


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"a": torch.arange(1000.0) + step}, {"history": [{"loss": 0.1 + step}]})


def read(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    said: list[str] = []
    return read_checkpoint(folder, RUN, said.append), said


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == (None, [])
    for step in (5, 10, 100_000_000):
        write_checkpoint(tmp_path, RUN, checkpoint(step))
    assert names(tmp_path) == [
        "000000010.json", "000000010.safetensors", "100000000.json", "100000000.safetensors",
    ]  # fmt: skip
    found, said = read(tmp_path)
    assert found is not None
    assert (found.step, found.state, said) == (100_000_000, {"history": [{"loss": 100_000_000.1}]}, [])
    assert torch.equal(found.tensors["a"], torch.arange(1000.0) + 100_000_000)


@pytest.mark.parametrize("part", ["json", "safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "missing"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(part: str, damage: str, tmp_path: Path) -> None:
    for place in range(0, 100, 9):
        for step in (5, 10):
            write_checkpoint(tmp_path, RUN, checkpoint(step))
        path = tmp_path / f"000000010.{part}"
        content = bytearray(path.read_bytes())
        where = len(content) * place // 100
        if damage == "missing":
            path.unlink()
        else:
            content[where] ^= 1 << place % 8
            path.write_bytes(bytes({"truncated": content[:where], "flipped": content, "empty": b""}[damage]))
        found, said = read(tmp_path)
        assert found is not None
        assert found.step == 5
        if (part, damage) != ("json", "missing"):  # without its JSON it never was a checkpoint
            assert len(said) == 1
            assert said[0].startswith("checkpoint 10 of run 0123456789ab is damaged (")
            assert said[0].endswith("); resuming from step 5.")
            assert names(tmp_path) == ["000000005.json", "000000005.safetensors"]


def test_when_all_are_damaged_the_run_starts_anew_and_says_so(tmp_path: Path) -> None:
    for step in (5, 10):
        write_checkpoint(tmp_path, RUN, checkpoint(step))
        (tmp_path / f"{step:09d}.json").write_text("{}")
    found, said = read(tmp_path)
    assert found is None
    assert said[-1].endswith("starting from the beginning.")


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "ba9876543210", checkpoint(5))
    found, said = read(tmp_path)
    assert found is None
    assert "it belongs to run ba9876543210" in said[0]


@pytest.mark.parametrize("where", [0, 1])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(where: int, tmp_path: Path) -> None:
    config = tiny(steps=40)
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "cut", [SignalAt(22, 15)], checkpoint_seconds=0.0)
    folder = Store(tmp_path / "cut").folder(config.id)
    newest = sorted(folder.checkpoints.iterdir())[-2 + where]
    newest.write_bytes(newest.read_bytes()[:-3])
    recorder = Recorder()
    assert published(train(config, tmp_path / "cut", [recorder])) == published(whole)
    assert recorder.starts[0].step == 21
    assert "checkpoint 22 of run" in recorder.said[0]


def test_a_checkpoint_holds_all_that_changes() -> None:
    """Restored into a fresh state, it gives the same checkpoint again."""
    config = tiny(mixer="mamba")
    task = config.build_task()
    data, dev = TrainingData(config, task), evaluation_set(config, task, "dev")
    with torch.random.fork_rng():
        state = Training(config, task)
        for step in range(10):
            state.advance(data.batch(step))
            if step in (3, 6):
                state.record(score(state.lm, dev))
        saved = state.checkpoint()
        fresh = Training(config, task)
        fresh.restore(saved)
        again = fresh.checkpoint()
        assert (again.step, again.state) == (saved.step, json.loads(json.dumps(saved.state)))
        assert again.tensors.keys() == saved.tensors.keys()
        assert all(torch.equal(again.tensors[name], tensor) for name, tensor in saved.tensors.items())
        assert fresh.advance(data.batch(10)) == state.advance(data.batch(10))  # the very same calls


def test_a_torn_folder_without_status_is_begun_anew(tmp_path: Path) -> None:
    """Killed between making the folder and the first status."""
    config = tiny(steps=5)
    folder = RunFolder(tmp_path / "runs" / config.id)
    folder.path.mkdir(parents=True)
    (folder.path / ".config.yaml.abc.part").write_text("task")
    assert Store(tmp_path).ids() == []
    assert outcome(in_child(lambda: train(config, tmp_path))) == 0
    assert Store(tmp_path).runs()["status"].tolist() == ["done"]
