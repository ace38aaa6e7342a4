from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from mecheval.training.progress import Bar, Lines, duration, numbers, progress
from mecheval.training.watch import Start, Watcher, Watchers

START = Start("0123456789ab", "ar · mamba · d 64 · lr 0.003 · seed 0", {}, step=0, steps=50016, parameters=148736)
HEADING = "ar · mamba · d 64 · lr 0.003 · seed 0  run 0123456789ab  148,736 parameters"
SCORES = {"dev_loss": 0.1, "dev_likelihood": 0.991, "dev_accuracy": 0.995}
TEST = {"test_likelihood": 0.990, "test_accuracy": 0.994}
HIDE, SHOW, UP = "\x1b[?25l", "\x1b[?25h", "\x1b[1A"


class Clock:
    def __init__(self) -> None:
        self.time, self.reads = 100.0, 0

    def __call__(self) -> float:
        self.reads += 1
        return self.time


def watch(terminal: bool, width: int = 80, seconds: float = 5.0) -> tuple[Watcher, Clock, io.StringIO]:
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, force_terminal=terminal, width=width, _environ={"TERM": "xterm-256color"})
    return progress(console, seconds, clock), clock, out


def row(step: int, loss: float = 6.3124) -> dict[str, float]:
    return {"step": step, "lr": 0.003, "loss": loss, "dev_loss": 6.4, "dev_likelihood": 0.061, "dev_accuracy": 0.058}


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def train(watcher: Watcher, clock: Clock, first: int, last: int, rate: float) -> None:
    for step in range(first, last + 1):
        clock.time += 1 / rate
        watcher.step(step, 6.25)


def test_a_log_has_plain_lines_and_not_too_many() -> None:
    watcher, clock, out = watch(terminal=False)
    watcher.begin(START)
    train(watcher, clock, 1, 400, rate=80)
    watcher.row(row(400))
    train(watcher, clock, 401, 600, rate=80)  # 2.5 s later: too soon
    watcher.row(row(600))
    watcher.say("[saved] :smile: at 600, in a line that is much longer than the eighty columns of a terminal are")
    train(watcher, clock, 601, 800, rate=80)
    watcher.row(row(800, loss=0.000312))
    train(watcher, clock, 801, 880, rate=80)
    watcher.row(row(880))
    watcher.end("done", SCORES | TEST)
    assert out.getvalue().splitlines() == [
        HEADING,
        "step 400/50016  loss 6.312  dev likelihood 0.061 accuracy 0.058  80 steps/s  10:20 left",
        "[saved] :smile: at 600, in a line that is much longer than the eighty columns of a terminal are",
        "step 800/50016  loss 3e-04  dev likelihood 0.061 accuracy 0.058  80 steps/s  10:15 left",
        "step 880/50016  loss 6.312  dev likelihood 0.061 accuracy 0.058  80 steps/s  10:14 left",
        "done  880/50016 steps  0:11  dev/test likelihood 0.991/0.990 accuracy 0.995/0.994",
    ]


def test_the_last_row_is_not_printed_twice() -> None:
    watcher, clock, out = watch(terminal=False, seconds=0)
    watcher.begin(START)
    train(watcher, clock, 1, 2, rate=1)
    watcher.row(row(1))
    watcher.row(row(2))
    watcher.end("interrupted", {"dev_accuracy": 0.5, "test_likelihood": 0.25})
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()[1:]] == [
        "step 1/50016", "step 2/50016", "interrupted",
    ]  # fmt: skip
    assert out.getvalue().endswith("interrupted  2/50016 steps  0:02  dev accuracy 0.500  test likelihood 0.250\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_may_fail_before_its_first_step(terminal: bool) -> None:
    watcher, _, out = watch(terminal)
    watcher.say("before")
    watcher.begin(START)
    watcher.row(row(0))
    watcher.end("failed", {})
    watcher.say("after")
    lines = plain(out.getvalue()).splitlines()
    assert lines[:2] == ["before", HEADING]
    assert lines[-2:] == ["failed  0/50016 steps  0:00", "after"]
    assert "steps/s" not in out.getvalue()  # no rate without a step


def test_a_continued_run_counts_only_its_own_steps() -> None:
    watcher, clock, out = watch(terminal=False)
    watcher.begin(Start("0123456789ab", "ar", {}, step=40016, steps=50016, parameters=1000))
    train(watcher, clock, 40017, 40036, rate=4)
    watcher.row(row(40036))
    lines = out.getvalue().splitlines()
    assert lines[0] == "ar  run 0123456789ab  1,000 parameters  resumes at step 40016"
    assert lines[1].endswith("4 steps/s  41:35 left")


def test_the_rate_is_recent_and_leaves_out_the_evaluation_at_hand() -> None:
    watcher, clock, out = watch(terminal=False)
    watcher.begin(START)
    train(watcher, clock, 1, 20, rate=1)
    train(watcher, clock, 21, 420, rate=20)
    clock.time += 60
    watcher.row(row(420))
    assert "  20 steps/s  41:20 left" in out.getvalue()


def test_the_bar_shows_everything_within_80_columns_and_leaves_one_line() -> None:
    watcher, clock, out = watch(terminal=True)
    watcher.begin(START)
    train(watcher, clock, 1, 4000, rate=800)
    watcher.row(row(4000))
    train(watcher, clock, 4001, 20908, rate=800)
    train(watcher, clock, 20909, 21009, rate=8)
    top, below = plain(out.getvalue()).splitlines()[-2:]
    assert top.startswith("━━━━━")
    assert top.endswith("   42%  21009/50016  1:00:26 left")
    assert below.rstrip() == "loss 6.250  dev likelihood 0.061 accuracy 0.058  8 steps/s"
    watcher.say("checkpoint damaged")
    train(watcher, clock, 21010, 50016, rate=800)
    clock.time += 3600
    watcher.end("done", SCORES | TEST)
    text = out.getvalue()
    lines = re.split(r"[\r\n]", plain(text))
    assert HEADING in lines
    assert "checkpoint damaged" in lines
    assert max(map(cell_len, lines)) == 80
    after_the_bar = plain(text[text.rindex(UP) :]).strip()
    assert after_the_bar == "done  50016 steps  1:01:15  dev/test likelihood 0.991/0.990 accuracy 0.995/0.994"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_bar_fits_any_width(width: int) -> None:
    watcher, clock, out = watch(terminal=True, width=width)
    watcher.begin(Start("0123456789ab", "ar", {}, step=0, steps=1_000_000, parameters=1))
    heading_ends = len(out.getvalue().split("\n")[0]) + 1
    watcher.row(row(0))
    train(watcher, clock, 1, 20, rate=0.05)
    assert all(cell_len(line) <= width for line in re.split(r"[\r\n]", plain(out.getvalue()[heading_ends:])))


def test_the_bar_is_drawn_at_most_8_times_a_second_and_a_step_between_only_reads_the_clock() -> None:
    watcher, clock, out = watch(terminal=True)
    watcher.begin(START)
    reads, drawn, size = clock.reads, 0, len(out.getvalue())
    for step in range(1, 20001):
        clock.time += 1e-4  # 2 seconds of 10,000 steps a second
        watcher.step(step, 1.0)
        watcher.row(row(step))
        drawn += out.tell() > size
        size = out.tell()
    assert clock.reads - reads == 20000
    assert drawn == 16


def test_the_cursor_is_hidden_while_the_bar_is_there_and_comes_back_when_training_raises() -> None:
    bar, clock, out = watch(terminal=True)
    watchers = Watchers([bar])

    def run() -> None:
        watchers.begin(START)
        try:
            train(watchers, clock, 1, 50, rate=10)
            assert (out.getvalue().count(HIDE), out.getvalue().count(SHOW)) == (1, 0)
            raise KeyboardInterrupt
        finally:
            watchers.end("interrupted", {})

    with pytest.raises(KeyboardInterrupt):
        run()
    assert out.getvalue().rindex(SHOW) > out.getvalue().rindex(HIDE)
    assert plain(out.getvalue()).endswith("interrupted  50/50016 steps  0:05\n")


def test_the_shown_loss_is_smooth_and_starts_at_the_first() -> None:
    watcher, clock, out = watch(terminal=True)
    watcher.begin(START)
    watcher.step(1, 8.0)
    assert "loss 8.000" in plain(out.getvalue())
    for step in range(2, 1001):
        watcher.step(step, 1.0 if step % 2 else 3.0)
    clock.time += 1
    watcher.step(1001, 2.0)
    [*_, shown] = re.findall(r"loss (\S+)", plain(out.getvalue()))
    assert float(shown) == pytest.approx(2.0, abs=0.02)


def test_a_dumb_terminal_gets_lines() -> None:
    def display(term: str) -> Watcher:
        return progress(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": term}))

    assert isinstance(display("dumb"), Lines)
    assert isinstance(display("xterm"), Bar)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (42.4, "0:42"), (59.6, "1:00"), (597, "9:57"), (3723, "1:02:03"), (90000, "25:00:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(0.314, "0.31"), (3.21, "3.2"), (9.97, "10"), (82.6, "83"), (12345.6, "12346")]
)
def test_rates(rate: float, text: str) -> None:
    assert numbers(None, {}, rate) == f"{text} steps/s"


def test_a_diverged_loss_shows_as_it_is() -> None:
    assert numbers(float("nan"), {}, 0.0) == "loss nan"


@pytest.mark.parametrize("terminal", [True, False])
def test_time_for_interventions_is_told_after_the_end(terminal: bool) -> None:
    watcher, _, out = watch(terminal)
    watcher.begin(START)
    watcher.end("done", SCORES | {"interchange_seconds": 12.34})
    assert plain(out.getvalue()).rstrip().endswith("interventions during training took 12.3 s of that")
