from __future__ import annotations

import multiprocessing
from pathlib import Path

from mecheval.store import Store
from store.examples import write_many

WORKERS, RUNS, ROWS = 3, 4, 500


def test_a_reader_sees_whole_runs_while_others_write(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "runs").mkdir()
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=write_many, args=(tmp_path, worker, RUNS, ROWS)) for worker in range(WORKERS)]
    for writer in writers:
        writer.start()
    counts: list[int] = []
    try:
        while any(writer.is_alive() for writer in writers):
            assert set(store.runs()["status"]) <= {"running", "interrupted", "done"}
            history = store.history()
            assert (history.groupby("run").size() == ROWS).all()
            partial = store.query(f"select run from history group by run having count(*) <> {ROWS}")
            assert len(partial) == 0
            counts.append(history["run"].nunique())
    finally:
        for writer in writers:
            writer.join()
    assert [writer.exitcode for writer in writers] == [0] * WORKERS
    assert store.history()["run"].nunique() == len(store.evaluations()) / 2 == WORKERS * RUNS
    assert any(0 < count < WORKERS * RUNS for count in counts)  # it did read while they wrote
    assert not list(tmp_path.rglob("*.part"))
