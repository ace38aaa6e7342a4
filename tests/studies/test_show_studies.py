from __future__ import annotations

import io
import math
from typing import Any

import pandas as pd
from rich.console import Console

from mecheval.show_studies import Listed, result_table, study_table
from mecheval.studies import STUDIES


def text(table: Any, width: int = 80) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width, color_system=None).print(table)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def rows(**columns: list[Any]) -> pd.DataFrame:
    """Runs with these columns, in the order of a study's table."""
    n = len(next(iter(columns.values())))
    usual = {"mixer": ["mamba"] * n, "d_model": [64] * n, "lr": [1e-3] * n, "seed": [0] * n}
    axes = {name: columns.pop(name, usual.get(name)) for name in ("d_conv", *usual) if name in columns or name in usual}
    scores = {"run": ["0" * 12] * n, "status": ["done"] * n, "dev_accuracy": [0.5] * n, "test_accuracy": [0.5] * n}
    return pd.DataFrame({**axes, **scores, "verdict": ["induction"] * n, **columns})


def test_seeds_become_means_and_their_verdicts_are_counted() -> None:
    frame = rows(
        mixer=["based", "based", "h3"], seed=[0, 1, 0], test_accuracy=[0.5, 1.0, math.nan],
        verdict=["induction", "mixed", None], status=["done", "done", "diverged"],
    )  # fmt: skip
    assert text(result_table(STUDIES["ar"], frame)) == [
        "        test",
        "mixer    acc  verdict",
        "based  0.750  1 induction, 1 mixed",
        "h3         –  diverged",
    ]


def test_what_does_not_vary_is_left_out_and_options_are_said_in_words() -> None:
    frame = rows(d_conv=[1, 0], restored_next_key=[0.25, 0.5])
    assert text(result_table(STUDIES["ar_mamba_conv"], frame)) == [
        "         test        at",
        "d_conv    acc  next key  verdict",
        "     1  0.500     0.250  induction",
        "  none  0.500     0.500  induction",
    ]


def test_rates_are_shown_where_they_are_the_question() -> None:
    frame = rows(lr=[1e-3, 3e-3])
    assert "lr" in text(result_table(STUDIES["ar_mamba_inside"], frame))[1]
    assert "lr" not in text(result_table(STUDIES["ar"], frame[:1]))[1]


def test_names_stay_text() -> None:
    frame = rows(mixer=["[bold]x[/bold]", "y"])
    assert any("[bold]x[/bold]" in line for line in text(result_table(STUDIES["ar"], frame)))


def test_the_list_says_what_is_left() -> None:
    lines = text(study_table([Listed(STUDIES["ar"], 28, 28, 0.0), Listed(STUDIES["atr"], 14, 3, 90.0)], "laptop"), 120)
    assert lines[1].split()[:4] == ["ar", "3", "28", "28"]
    assert lines[2].split()[:5] == ["atr", "7", "14", "3", "~1:30"]
