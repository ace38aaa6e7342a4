from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from mecheval.cli.show.studies import Listed, result_table, study_table
from mecheval.studies import STUDIES, Reading, StudyTable


def text(table: Any, width: int = 80) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width, color_system=None).print(table)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def chosen(study: str, readings: Sequence[Reading] = (), **columns: list[Any]) -> StudyTable:
    """The table of a study with these columns; all others are the same in every run."""
    n = len(next(iter(columns.values())))
    usual = {"mixer": "mamba", "d_model": 64, "lr": 1e-3, "seed": 0, "run": "0" * 12, "status": "done"}
    numbers = {"test_accuracy": 0.5, "original": 0.9, "corrupted": 0.1, "verdict": "induction"}
    frame = pd.DataFrame({name: [value] * n for name, value in {**usual, **numbers}.items()}).assign(**columns)
    axes = [name for name in ("d_conv", "mixer", "d_model", "lr", "seed") if name in frame]
    return StudyTable(STUDIES[study], tuple(axes), tuple(readings), frame)


def test_seeds_become_means_and_their_verdicts_are_counted() -> None:
    table = chosen(
        "ar", mixer=["based", "based", "h3"], seed=[0, 1, 0], test_accuracy=[0.5, 1.0, math.nan],
        verdict=["induction", "mixed", None], status=["done", "done", "diverged"],
    )  # fmt: skip
    assert text(result_table(table)) == [
        "       test",
        "mixer   acc original corrupted verdict",
        "based 0.750    0.900     0.100 1 induction, 1 mixed",
        "h3        –    0.900     0.100 diverged",
    ]


def test_below_a_verdict_stands_what_is_restored_most() -> None:
    table = chosen(
        "ar", mixer=["based", "based", "h3", "gla"], seed=[0, 1, 0, 0], run=["a", "b", "c", "d"],
        verdict=["induction", "induction", "mixed", "not_learnt"],
    )  # fmt: skip
    columns = {"role": ["value", "value", "key", "key"], "share": [0.9, 1.0, 0.5, 0.1]}
    ends = {"share_low": [0.8, 0.95, math.nan, 0.0], "share_high": [0.92, 1.01, math.nan, 0.2]}
    restored = pd.DataFrame({**columns, **ends}, index=["a", "b", "c", "d"])
    assert text(result_table(table, restored))[2:] == [
        "based 0.500    0.900     0.100 2 induction",
        "                               value 0.95 [0.80, 1.01]",
        "h3    0.500    0.900     0.100 mixed",
        "                               key 0.50",
        "gla   0.500    0.900     0.100 not_learnt",
    ]


def test_what_does_not_vary_is_left_out_and_options_are_said_in_words() -> None:
    reading = Reading("restored_next_key", "restored at next key", "blocks.1.input", "next_key")
    table = chosen("ar_mamba_conv", [reading], d_conv=[1, 0], restored_next_key=[0.25, 0.5])
    assert text(result_table(table)) == [
        "        test                          at",
        "d_conv   acc original corrupted next key verdict",
        "     1 0.500    0.900     0.100    0.250 induction",
        "  none 0.500    0.900     0.100    0.500 induction",
    ]


def test_axes_and_readings_come_from_the_table_and_not_from_the_order_of_columns() -> None:
    readings = STUDIES["ar_mamba_inside"].readings
    table = chosen("ar_mamba_inside", readings, lr=[1e-3, 3e-3], **{each.name: [0.25, 0.5] for each in readings})
    mixed = replace(table, frame=table.frame[sorted(table.frame.columns)])
    assert text(result_table(mixed)) == text(result_table(table))
    assert text(result_table(table))[0].split() == ["test", "conv", "0", "conv", "0", "conv", "1"]


def test_readings_of_dev_are_not_shown() -> None:
    readings = STUDIES["atr_holdout"].readings
    table = chosen("atr_holdout", readings, mixer=["h3", "mamba"], **{each.name: [0.2, 0.5] for each in readings})
    assert text(result_table(table))[1].split()[4:] == ["key", "value", "query", "verdict"]


@pytest.mark.parametrize("study", STUDIES)
def test_verdicts_fit_a_terminal_of_80_columns(study: str) -> None:
    readings = STUDIES[study].readings
    table = chosen(study, readings, mixer=["attention", "delta_net"], d_model=[128, 64], verdict=["not_learnt"] * 2,
                   **{each.name: [0.2, 0.5] for each in readings})  # fmt: skip
    lines = text(result_table(table))
    assert [line.endswith("not_learnt") for line in lines[-2:]] == [True, True]


def test_rates_are_shown_where_they_are_the_question() -> None:
    assert "lr" in text(result_table(chosen("ar_mamba_inside", lr=[1e-3, 3e-3])))[1]
    assert "lr" not in text(result_table(chosen("ar", lr=[1e-3, 3e-3])))[1]


def test_names_stay_text() -> None:
    table = chosen("ar", mixer=["[bold]x[/bold]", "y"])
    assert any("[bold]x[/bold]" in line for line in text(result_table(table)))


def test_the_list_says_what_is_left() -> None:
    lines = text(study_table([Listed(STUDIES["ar"], 28, 28, 0.0), Listed(STUDIES["atr"], 14, 3, 90.0)], "laptop"), 120)
    assert lines[1].split()[:4] == ["ar", "3", "28", "28"]
    assert lines[2].split()[:5] == ["atr", "7", "14", "3", "~1:30"]
