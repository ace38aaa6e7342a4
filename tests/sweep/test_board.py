from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import mecheval as me
from mecheval.errors import UserError
from mecheval.store import Store
from mecheval.sweep import Estimate, Event, Job
from mecheval.sweep.board import Board, Tally
from mecheval.training.progress import duration
from sweep.jobs import small_jobs
from training.runs import tiny


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def story(jobs: list[Job]) -> list[Event]:
    return [
        Event(jobs[0].run, "begin"),
        Event(jobs[1].run, "begin"),
        Event(jobs[0].run, "step", 30, 0.5),
        Event(jobs[1].run, "say", 10, message="[bold]its worker died[/bold]"),
        Event(jobs[0].run, "end", 60, 0.75, "done"),
        Event(jobs[1].run, "end", 20, None, "failed", "RuntimeError: [red]no luck[/red]"),
    ]


def shown(terminal: bool, store: Path) -> str:
    screen, clock, jobs = io.StringIO(), Clock(), small_jobs(3)
    console = Console(file=screen, force_terminal=terminal, width=100, color_system=None)
    watcher = Board(console, "ar (laptop)", clock)
    watcher.begin(jobs, jobs[:2], Store(store), 2)
    for event in story(jobs):
        clock.now += 1.0
        watcher.event(event)
    watcher.end()
    return screen.getvalue()


def test_a_log_file_gets_a_line_for_each_run_that_ends(tmp_path: Path) -> None:
    first, *lines = shown(terminal=False, store=tmp_path).splitlines()
    assert first.startswith("ar (laptop): 2 of 3 runs to do, 2 at once, about ")
    assert lines[0] == "[bold]its worker died[/bold]"
    assert lines[1].startswith(
        "done      ar · attention · d 16 · lr 0.003 · seed 0  dev acc 0.750  (2 of 3 runs · about"
    )
    assert lines[2] == (
        "failed    ar · mamba · d 16 · lr 0.003 · seed 1: RuntimeError: [red]no luck[/red]  (3 of 3 runs · 1 failed)"
    )
    assert "\x1b" not in "".join(lines)


def test_a_log_keeps_the_lines_of_all_sweeps_with_their_times(tmp_path: Path) -> None:
    log, screen = tmp_path / "sweep.log", io.StringIO()
    for _ in range(2):
        jobs = small_jobs(3)
        watcher = Board(Console(file=screen, width=100), "ar (laptop)", Clock(), log)
        watcher.begin(jobs, jobs[:2], Store(tmp_path), 2)
        for event in story(jobs):
            watcher.event(event)
        watcher.end()
    lines = log.read_text().splitlines()
    assert len(lines) == 10
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ", line) for line in lines)
    assert [line[21:] for line in lines[:4]] == screen.getvalue().splitlines()[:4]
    assert lines[4].endswith("ar (laptop): 3 of 3 runs · 1 failed")
    with pytest.raises(UserError, match=r"cannot write the log .*: No such file or directory"):
        Board(Console(file=screen), "ar", log=tmp_path / "nowhere" / "sweep.log")


def test_a_terminal_gets_a_live_table_and_what_failed_stays(tmp_path: Path) -> None:
    text = shown(terminal=True, store=tmp_path)
    assert "ar · attention · d 16 · lr 0.003 · seed 0" in text
    assert "30/60" in text
    assert "RuntimeError: [red]no luck[/red]" in text
    assert text.endswith("\x1b[?25h") or "\x1b[?25h" in text, "the cursor is back"


def test_a_done_sweep_draws_nothing(tmp_path: Path) -> None:
    screen = io.StringIO()
    watcher = Board(Console(file=screen, force_terminal=True), "ar")
    watcher.begin(small_jobs(2), [], Store(tmp_path), 2)
    watcher.end()
    assert screen.getvalue().replace("\x1b[?25h", "").strip() == ""


def test_time_left_falls_with_every_step_and_learns_from_runs_that_ended(tmp_path: Path) -> None:
    jobs = [job for job in small_jobs(8) if job.config.mixer.name == "attention"]
    tally = Tally(jobs, jobs, Store(tmp_path), 2)
    tally.event(Event(jobs[0].run, "begin"), 0.0)
    tally.event(Event(jobs[0].run, "step", 30), 50.0)
    before = tally.left(50.0)
    tally.event(Event(jobs[0].run, "end", 60, 1.0, "done"), 100.0)
    assert tally.left(100.0) == pytest.approx(3 * 100 / 2), "three more such runs on two workers"
    assert before != tally.left(100.0)


def test_a_run_that_was_continued_says_nothing_about_whole_runs(tmp_path: Path) -> None:
    jobs = small_jobs(2)
    tally = Tally(jobs[:1], jobs[:1], Store(tmp_path), 1)
    tally.event(Event(jobs[0].run, "begin", 59), 0.0)
    tally.event(Event(jobs[0].run, "end", 60, 1.0, "done"), 1000.0)
    assert Estimate().seconds(jobs[0].config) == tally.estimate.seconds(jobs[0].config)


def test_an_estimate_takes_runs_of_the_same_shape_from_the_store() -> None:
    one, _, other, _ = small_jobs(4)  # two of attention that differ in the seed
    row = {"status": "done", "seconds": 12.5, "step": 50, "config": one.config.to_dict()}
    assert Estimate([row]).seconds(other.config) == 12.5
    assert Estimate([{**row, "status": "interrupted"}]).seconds(other.config) != 12.5


def test_a_mixer_that_was_timed_before_is_expected_to_take_that_long(tmp_path: Path) -> None:
    screen, [job] = io.StringIO(), small_jobs(1)
    watcher = Board(Console(file=screen, width=100), "ar", Clock(), paces=[(job.config, 2.0)])
    watcher.begin([job], [job], Store(tmp_path), 1)
    assert f"about {duration(2.0 * job.config.data.steps)}" in screen.getvalue()


def test_runs_of_a_busy_machine_do_not_count_once_there_are_quicker_ones(tmp_path: Path) -> None:
    store = Store(tmp_path)
    slow, quick, waits = (Job(tiny(seed=seed, steps=200)) for seed in range(3))
    other = Job(tiny(d_model=64, steps=200))
    for job, seconds in ((slow, 2400.0), (quick, 200.0), (other, 1000.0)):
        store.folder(job.run).path.mkdir(parents=True)
        store.folder(job.run).set_status(status="done", step=100, seconds=seconds, config=job.config.to_dict())
    estimate = Estimate(store.rows())
    assert estimate.seconds(waits.config) == pytest.approx(200.0), "by the quickest of its kind"
    estimate.learn(waits.config, 15.0, 5)
    assert estimate.seconds(waits.config) == pytest.approx(300.0), "by the pace of this sweep"
    assert estimate.seconds(other.config) == pytest.approx(1500.0), "which is half as much again"


def test_larger_runs_are_expected_to_take_longer() -> None:
    guess = Estimate().seconds
    small, deep, wide, many = (
        small_jobs(1, **options)[0].config for options in ({}, {"n_layers": 3}, {"d_model": 64}, {"steps": 600})
    )
    assert guess(small) < guess(deep)
    assert guess(small) < guess(wide)
    assert abs(guess(many) / guess(small) - 10) < 1e-6


def test_a_large_vocabulary_costs_time_only_where_there_are_predictions() -> None:
    """A run of the paper's AR model takes minutes, not the better part of an hour."""
    one, all_pairs = (me.run_config("ar", "attention", "paper", d_model=32, queries=queries) for queries in (1, 16))
    assert 120 < Estimate().seconds(one) < 600
    assert Estimate().seconds(all_pairs) > 2 * Estimate().seconds(one)


def test_the_pace_of_a_run_counts_for_others_of_its_kind_until_a_whole_one_is_known(tmp_path: Path) -> None:
    longer = tiny(steps=600)
    begun = {"status": "running", "seconds": 6.0, "step": 30, "config": tiny().to_dict()}
    assert Estimate([begun]).seconds(longer) == pytest.approx(600 * 6.0 / 30)
    assert Estimate([begun]).seconds(tiny(d_model=64, steps=600)) == Estimate().seconds(tiny(d_model=64, steps=600))
    early = {"status": "done", "seconds": 7.0, "step": 40, "config": tiny(steps=600, stop_at=0.99).to_dict()}
    assert Estimate([begun, early]).seconds(tiny(steps=600, stop_at=0.99, seed=5)) == pytest.approx(7.0), (
        "it stopped early"
    )


def test_the_pace_of_runs_under_way_counts_for_those_that_wait(tmp_path: Path) -> None:
    jobs = [Job(tiny(steps=steps)) for steps in (600, 1200)]
    tally = Tally(jobs, jobs, Store(tmp_path), 1)
    tally.event(Event(jobs[0].run, "begin"), 0.0)
    tally.event(Event(jobs[0].run, "step", 100), 50.0)
    assert tally.left(50.0) == pytest.approx(500 * 0.5 + 1200 * 0.5)


def test_mixers_that_scan_or_convolve_the_whole_document_are_expected_to_take_longer() -> None:
    def guess(mixer: str, **options: Any) -> float:
        return Estimate().seconds(tiny(mixer=mixer, **options))

    assert guess("mamba") == guess("h3") == guess("hyena") == guess("base_conv") > guess("attention")
    assert guess("base_conv", kernel_size=3) == guess("attention") == guess("based")
