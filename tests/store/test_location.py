from __future__ import annotations

from pathlib import Path

import pytest

from mecheval.store import Store, StoreError
from mecheval.store.location import marked, remove_stale
from mecheval.sweep import sweep
from sweep.jobs import Heard, Here
from training.runs import in_child, kill_self, outcome


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(tmp_path: Path) -> None:
    def die() -> None:
        with marked(tmp_path):
            kill_self()

    outcome(in_child(die))
    (stale,) = tmp_path.iterdir()
    with marked(tmp_path) as name:
        remove_stale(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert name != stale.name
    assert list(tmp_path.iterdir()) == []


def test_whoever_finishes_a_sweep_removes_it(tmp_path: Path) -> None:
    (tmp_path / ".sweep-0123456789abcdef").touch()
    sweep([], Store(tmp_path), Here(), Heard())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write .*file"), marked(tmp_path / "file" / "store"):
        pass
    remove_stale(tmp_path / "nowhere")
