from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.registry import known_implementations

from mecheval.errors import UserError
from mecheval.store import RunFolder, Store, StoreError
from mecheval.store.location import Mirror, is_url, local_copy, open_store
from mecheval.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from store.examples import scores

RUN, OTHER = "0123456789ab", "ba9876543210"


class Cut(Exception):
    """The connection is gone."""


class Watched(Mirror):
    """Counts what travels, and is cut off before some write or removal."""

    def __init__(self, url: str, cut_at: int = -1) -> None:
        super().__init__(url)
        self.cut_at, self.sent, self.removed, self.read = cut_at, list[str](), list[str](), list[str]()

    def _write(self, path: Any, content: bytes) -> None:
        self._count()
        self.sent.append(path.name)
        super()._write(path, content)

    def _remove(self, path: Any) -> None:
        self._count()
        self.removed.append(path.name)
        super()._remove(path)

    def _read(self, path: Any) -> bytes | None:
        self.read.append(path.name)
        return super()._read(path)

    def _count(self) -> None:
        if len(self.sent) + len(self.removed) == self.cut_at:
            raise Cut


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file system of its own: one with folders, one of objects."""
    return f"file://{tmp_path}/far" if request.param == "file" else f"memory://{tmp_path.name}/far"


def checkpoint(folder: RunFolder, step: int) -> None:
    tensors = {"model/x": torch.full((3,), float(step))}
    write_checkpoint(folder.checkpoints, RUN, Checkpoint(step, tensors, {"history": []}))
    folder.set_status(status="running", step=step)


def begin(store: Path) -> RunFolder:
    folder = Store(store).folder(RUN)
    with folder.exclusive():
        folder.write_files({"config.yaml": b"seed: 0\n"})
        checkpoint(folder, 10)
    return folder


def finish(folder: RunFolder) -> None:
    folder.weights.mkdir()
    (folder.weights / "last.safetensors").write_bytes(b"weights")
    folder.write("scores", scores(state="last", step=20, split="dev", likelihood=0.5, accuracy=0.75, loss=1.0, n=4))
    folder.set_status(status="done", step=20)
    for path in folder.checkpoints.iterdir():
        path.unlink()


def pulled(url: str, store: Path) -> RunFolder:
    Mirror(url).pull(RUN, store)
    return Store(store).folder(RUN)


def contents(folder: RunFolder) -> dict[str, bytes]:
    files = [path for path in folder.path.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(folder.path).as_posix(): path.read_bytes() for path in files}


def test_what_is_pushed_is_pulled_and_nothing_travels_twice(url: str, tmp_path: Path) -> None:
    folder, mirror = begin(tmp_path / "a"), Watched(url)
    mirror.push(RUN, tmp_path / "a")
    tensors_then_what_vouches = ["000000010.safetensors", "config.yaml", "000000010.json", "status.json"]
    assert mirror.sent == tensors_then_what_vouches
    assert contents(pulled(url, tmp_path / "b")) == contents(folder)
    mirror.push(RUN, tmp_path / "a")
    assert mirror.sent == tensors_then_what_vouches
    finish(folder)
    mirror.push(RUN, tmp_path / "a")
    assert mirror.sent[4:] == ["scores.parquet", "last.safetensors", "status.json"]
    assert mirror.removed == ["000000010.json", "000000010.safetensors"]
    assert contents(pulled(url, tmp_path / "b")) == contents(folder)


def test_a_worker_that_pulled_does_not_send_it_back(url: str, tmp_path: Path) -> None:
    begin(tmp_path / "a")
    Mirror(url).push(RUN, tmp_path / "a")
    mirror = Watched(url)
    mirror.pull(RUN, tmp_path / "b")
    checkpoint(Store(tmp_path / "b").folder(RUN), 20)
    mirror.push(RUN, tmp_path / "b")
    assert mirror.sent == ["000000020.safetensors", "000000020.json", "status.json"]


@pytest.mark.parametrize("change", ["checkpoint", "finish"])
def test_a_push_that_is_cut_short_is_the_old_run_or_the_new(change: str, url: str, tmp_path: Path) -> None:
    """Wherever it is cut: training goes on from a good checkpoint, or the run is whole; and the next push mends it."""
    act: Callable[[RunFolder], None] = finish if change == "finish" else lambda folder: checkpoint(folder, 30)
    cut_at, whole = 0, False
    while not whole:
        here, there = tmp_path / str(cut_at), f"{url}/{change}-{cut_at}"
        folder = begin(here)
        checkpoint(folder, 20)
        mirror = Watched(there)
        mirror.push(RUN, here)
        act(folder)
        mirror.cut_at = len(mirror.sent) + len(mirror.removed) + cut_at
        try:
            mirror.push(RUN, here)
            whole = True
        except Cut:
            pass
        seen = pulled(there, tmp_path / f"seen-{cut_at}")
        if seen.status()["status"] == "done":
            assert seen.read("evaluations") == folder.read("evaluations")
            assert (seen.weights / "last.safetensors").read_bytes() == b"weights"
        else:
            said: list[str] = []
            found = read_checkpoint(seen.checkpoints, RUN, said.append)
            assert found is not None
            assert found.step in (20, 30)
            assert said == []
        Mirror(there).push(RUN, here)
        assert contents(pulled(there, tmp_path / f"mended-{cut_at}")) == contents(folder)
        cut_at += 1
    assert cut_at >= 5


def test_a_status_that_was_cut_short_is_not_believed(url: str, tmp_path: Path) -> None:
    begin(tmp_path / "a")
    mirror = Mirror(url)
    mirror.push(RUN, tmp_path / "a")
    fs, root = fsspec.core.url_to_fs(url)
    fs.pipe_file(f"{root}/runs/{RUN}/status.json", b'{"status": "do')
    seen = pulled(url, tmp_path / "b")
    assert not seen.exists()
    found = read_checkpoint(seen.checkpoints, RUN, pytest.fail)
    assert found is not None


def test_a_local_copy_has_everything_but_checkpoints(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = begin(tmp_path / "a")
    Mirror(url).push(RUN, tmp_path / "a")
    assert open_store(url).path == local_copy(url) == local_copy(f"{url}/")
    assert open_store(url).runs()["status"].tolist() == ["interrupted"]
    assert not Store(local_copy(url)).folder(RUN).checkpoints.exists()
    finish(folder)
    Mirror(url).push(RUN, tmp_path / "a")
    Mirror(url).pull_results(local_copy(url), [RUN])
    store = Store(local_copy(url))
    assert store.runs()["status"].tolist() == ["done"]
    assert store.evaluations()["accuracy"].tolist() == [0.75]
    again = Watched(url)
    again.pull_results(local_copy(url))
    assert again.read == []
    folder.write("scores", [])  # the status stays as it is, and yet the copy follows
    Mirror(url).push(RUN, tmp_path / "a")
    assert len(open_store(url).evaluations()) == 0


def test_runs_that_are_removed_there_are_removed_here(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    begin(tmp_path / "a")
    Mirror(url).push(RUN, tmp_path / "a")
    assert open_store(url).ids() == [RUN]
    fs, root = fsspec.core.url_to_fs(url)
    fs.rm(f"{root}/runs/{RUN}", recursive=True)
    assert open_store(url).ids() == []


def test_strange_names_become_no_paths(url: str, tmp_path: Path) -> None:
    begin(tmp_path / "a")
    Mirror(url).push(RUN, tmp_path / "a")
    fs, root = fsspec.core.url_to_fs(url)
    for name in (".hidden", "lock", ".status.json.x.part", "a/b/c", "a b"):
        if root.startswith("/") and "/" in name:
            fs.makedirs(f"{root}/runs/{RUN}/a/b", exist_ok=True)
        fs.pipe_file(f"{root}/runs/{RUN}/{name}", b"x")
    names = set(contents(pulled(url, tmp_path / "b")))
    assert names == {"config.yaml", "status.json", "checkpoint/000000010.safetensors", "checkpoint/000000010.json"}
    Mirror(url).pull_results(tmp_path / "c")
    assert set(contents(Store(tmp_path / "c").folder(RUN))) == {"config.yaml", "status.json"}


def test_a_damaged_note_of_what_was_seen_costs_only_time(url: str, tmp_path: Path) -> None:
    begin(tmp_path / "a")
    Mirror(url).push(RUN, tmp_path / "a")
    Mirror(url).pull_results(tmp_path / "b")
    (tmp_path / "b" / "mirror.json").write_text("[")
    Mirror(url).pull_results(tmp_path / "b")
    assert len(json.loads((tmp_path / "b" / "mirror.json").read_text())) == 2


def test_what_is_a_url() -> None:
    assert is_url("s3://bucket/x")
    assert is_url("file:///x")
    assert not is_url("/x/y")
    assert not is_url("mecheval-store")
    assert not is_url(Path("x"))
    assert local_copy("s3://a") != local_copy("s3://b")


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"unknown protocol 'nonsense'\. Choices include file, s3"):
        Mirror("nonsense://x")
    missing = {"class": "nowhere.FileSystem", "err": "Install nowhere to open this"}
    monkeypatch.setitem(known_implementations, "nowhere", missing)
    with pytest.raises(UserError, match="cannot open nowhere://x: Install nowhere to open this"):
        Mirror("nowhere://x")
    (tmp_path / "far").write_text("a file, not a folder")
    begin(tmp_path / "a")
    with pytest.raises(StoreError, match="cannot read file://") as caught:
        Mirror(f"file://{tmp_path}/far").push(RUN, tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_a_url_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "far").write_text("a file, not a folder")
    with pytest.raises(StoreError, match=r"cannot write file://.*/far: \w+Error: ") as caught:
        Mirror(f"file://{tmp_path}/far").check()
    assert "\n" not in str(caught.value)
    Mirror(f"file://{tmp_path}/new").check()
    assert list((tmp_path / "new" / "runs").iterdir()) == [], "the probe is removed"


def test_a_copy_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "a")
    Mirror(f"file://{tmp_path}/far").push(RUN, tmp_path / "a")
    (tmp_path / "cache").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(StoreError, match=r"cannot write .*cache/mecheval/\w+: Not a directory"):
        open_store(f"file://{tmp_path}/far")


def test_a_local_store_is_opened_as_it_is(tmp_path: Path) -> None:
    assert open_store(str(tmp_path)).path == tmp_path
