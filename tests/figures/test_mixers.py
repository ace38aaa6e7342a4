from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commands import Command
from mecheval.errors import UserError
from mecheval.figures.canvas import breadth
from mecheval.figures.mechanisms import VERDICTS, words
from mecheval.figures.mixers import HEIGHT, LETTER, MARKS, SIZE, WIDTH, mixers
from mecheval.mixers.options import BUILT_IN
from mecheval.paper.standings import COLUMNS


def table(pairs: dict[str, float], trees: dict[str, float], verdict: str = "induction") -> pd.DataFrame:
    rows = [
        {"task": task, "setting": name, "mixer": name, "option": "", "d_model": 32, "likelihood": value,
         "verdict": verdict if task == "ar" else "mixed", "runs": f"{task}-{name}"}
        for task, values in (("ar", pairs), ("atr", trees)) for name, value in values.items()
    ]  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def drawn(frame: pd.DataFrame) -> list[dict[str, Any]]:
    spec = mixers({"width 32": frame}, "Mixers").to_dict()
    return [row for rows in spec["datasets"].values() for row in rows if "label_x" in row]


def box(row: dict[str, Any]) -> tuple[float, float, float, float]:
    wide = 0.8 * breadth(row["name"], SIZE) / 2  # breadth is generous
    return row["label_x"] - wide, row["label_y"] - LETTER / 2, row["label_x"] + wide, row["label_y"] + LETTER / 2


def test_every_verdict_has_a_mark_of_its_own() -> None:
    assert list(MARKS) == list(VERDICTS)
    assert len({shape for _, shape in MARKS.values()}) == len({hue for hue, _ in MARKS.values()}) == len(MARKS)


def test_a_point_is_where_its_likelihoods_are_with_the_mechanisms_of_both_tasks() -> None:
    [one, two] = drawn(table({"attention": 0.25, "mamba": 1.0}, {"attention": 0.5, "mamba": 1.0}))
    assert (one["x"], one["y"]) == (0.25 * WIDTH, HEIGHT)  # the axis ends at the lowest likelihood on trees
    assert (two["x"], two["y"]) == (WIDTH, 0)
    assert (one["on_pairs"], one["on_trees"], one["runs"]) == ("induction", "mixed", "ar-attention, atr-attention")
    said = mixers({"width 32": table({"mamba": 1.0}, {"mamba": 1.0}, "conv_association")}, "Mixers").description
    assert f"Width 32: Mamba: pairs 100.0 % ({words('conv_association')}), trees 100.0 % (mixed)." in said


def test_mixers_without_a_run_on_trees_stand_in_a_strip_on_lines_of_their_own() -> None:
    rows = drawn(table({"attention": 0.9, "mamba": 0.9, "based": 0.1}, {"mamba": 0.8}))
    below = {row["name"]: row["y"] for row in rows if row["y"] > HEIGHT}
    assert set(below) == {"attention", "Based"}
    assert len(set(below.values())) == 2
    assert {row["on_trees"] for row in rows} == {"", "mixed"}


@pytest.mark.parametrize("seed", range(3))
def test_names_cover_neither_each_other_nor_marks_though_mixers_crowd(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = [*BUILT_IN, "attention+mamba", "gated_delta_net+attention"]
    pairs = dict(zip(names, np.clip(random.normal(0.93, 0.08, len(names)), 0, 1), strict=True))
    rows = drawn(table(pairs, dict(zip(names, random.normal(0.82, 0.05, len(names)), strict=True))))
    boxes = [box(row) for row in rows] + [(row["x"] - 7, row["y"] - 3, row["x"] + 7, row["y"] + 3) for row in rows]
    for one, other in combinations(range(len(boxes)), 2):
        if min(one, other) < len(rows):  # marks may touch each other: they are where the numbers are
            a, b = boxes[one], boxes[other]
            assert min(a[2], b[2]) <= max(a[0], b[0]) or min(a[3], b[3]) <= max(a[1], b[1]), (rows[one]["name"], b)


def test_without_runs_on_pairs_it_is_an_error_that_says_how_to_make_some() -> None:
    with pytest.raises(UserError, match="mecheval study newer"):
        mixers({"width 32": table({}, {})}, "Mixers")


def test_the_commands_show_the_published_mixers(command: Command, tmp_path: Path) -> None:
    store, path = ["--store", str(tmp_path / "none")], tmp_path / "mixers.json"
    assert command.prints("draw", "mixers", "--save", str(path), *store) == f"wrote {path}\n"
    rows = json.loads(command.prints("compare", "mixers", "--scale", "paper", "--json", *store))
    shown = {row["name"] for part in json.loads(path.read_text())["datasets"].values() for row in part}
    assert {"attention", "Mamba", "DeltaNet"} <= shown
    assert list(rows[0]) == list(COLUMNS)
    code, out, err = command("compare", "scales", *store)
    assert code == 0, err
    assert "who recalls" in out
    assert "Spearman" in err
    code, _, err = command("compare", "mixers", *store)
    assert code == 2
    assert "`mecheval study newer --scale laptop` makes some, and --scale paper shows the published ones." in err
    assert command("compare", "scales", "--seeds", "2")[0] == 2
