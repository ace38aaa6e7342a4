from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pandas as pd
import pytest

from mecheval.figures import accuracy, curves, depth, holdout, panels, style
from mecheval.figures.matrix import QUANTITIES
from mecheval.figures.mechanisms import COLUMNS, mechanisms_figure
from mecheval.figures.over_time import mechanism_over_time
from mecheval.figures.scatter import PAIRS
from mecheval.report.sections import quantities
from mecheval.report.specs import DARK, DARK_RAMP, FEWEST, PAINTED, field_texts, page_spec, thinned_rows, views
from report.stores import ROLES, SITES, effect

BASE = {
    "seed": 0,
    "status": "done",
    "step": 10,
    "dev_accuracy": 0.5,
    "test_accuracy": 0.5,
    "dev_likelihood": 0.5,
    "verdict": "mixed",
}
READ = dict.fromkeys(QUANTITIES, 0.5) | {name: 0.4 for pair in PAIRS.values() for name in pair}
LAYERS = {f"mixer{layer}_at_query": 0.3 for layer in range(2)}


def frame(**axes: list[Any]) -> pd.DataFrame:
    """Rows of a study: every combination of the axes, with all that any chart reads."""
    rows: list[dict[str, Any]] = [{}]
    for axis, values in axes.items():
        rows = [{**row, axis: value} for row in rows for value in values]
    return pd.DataFrame([
        {"mixer": "mamba", "d_model": 64, "lr": 1e-3, **row, "run": f"{i:012x}", **BASE, **READ, **LAYERS}
        for i, row in enumerate(rows)
    ])  # fmt: skip


def history(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        [{"run": run, "step": step, "dev_accuracy": step / 10} for run in table["run"] for step in range(10)]
    )


TWO: dict[str, list[Any]] = {"mixer": ["mamba", "attention"], "d_model": [64, 128]}
RATES = frame(**TWO, lr=[1e-3, 3e-3])
CHARTS = {
    "panels": (panels(frame(**TWO), "t"), ["mixer", "d_model", "lr", "quantity"]),
    "rates": (panels(frame(d_model=[64, 128], lr=[1e-3, 3e-3]), "t"), ["d_model", "lr", "quantity"]),
    "options": (panels(frame(d_conv=[0, 4], d_model=[64, 128]), "t"), ["d_conv", "d_model", "lr"]),
    "accuracy": (accuracy(frame(task=["ar", "atr"], mixer=["mamba", "h3"], positions=["none", "learned"]), "t"),
                 ["task", "mixer", "positions", "d_model", "lr"]),
    "depth": (depth(frame(mixer=["mamba", "h3"], n_layers=[1, 2]), "t"), ["mixer", "n_layers", "d_model", "lr"]),
    "holdout": (holdout(frame(**TWO), "t"), ["mixer", "d_model", "lr", "quantity"]),
    "curves": (curves(history(RATES), RATES, "t"), ["mixer", "d_model", "lr"]),
}  # fmt: skip


@cache
def drawn(name: str) -> dict[str, Any]:
    """What a page draws, with the signals of all axes."""
    return page_spec(*CHARTS[name])


def over_time() -> Any:
    rows = [
        effect("training", step, "dev", site, role) | {"run": "a" * 12}
        for step in (0, 100)
        for site in SITES
        for role in ROLES
    ]
    runs = pd.DataFrame(
        [{"run": "a" * 12, "task": "ar", "mixer": "mamba", "d_model": 64, "n_layers": 2, "lr": 1e-3, "seed": 0}]
    )
    return mechanism_over_time(pd.DataFrame(rows), history(runs), "t", runs)


@pytest.mark.parametrize("name", CHARTS)
def test_every_view_with_rows_of_an_axis_listens_to_its_signal(name: str) -> None:
    axes, spec = CHARTS[name][1], drawn(name)
    assert {param["name"]: param["value"] for param in spec["params"]} == {f"f_{axis}": None for axis in axes}
    heard = set()
    for view in views(spec):
        rows, filters = (
            spec["datasets"][view["data"]["name"]],
            [each.get("filter") for each in view.get("transform", [])],
        )
        for axis in axes:
            field = "rate" if axis == "lr" else axis
            wanted = f"f_{axis} === null || indexof(f_{axis}, datum.{field}) >= 0"
            assert (wanted in filters) == bool(rows and field in rows[0])
            heard |= {axis} if wanted in filters else set()
    assert heard == set(axes)


@pytest.mark.parametrize("name", ["options", "curves", "holdout"])
def test_vega_knows_the_signals(name: str) -> None:
    import vl_convert

    axes = CHARTS[name][1]
    compiled = vl_convert.vegalite_to_vega(drawn(name), vl_version="6.4")
    assert {f"f_{axis}" for axis in axes} <= {each["name"] for each in compiled["signals"]}
    filters = [
        step["expr"] for part in compiled["data"] for step in part.get("transform", []) if step["type"] == "filter"
    ]
    assert any("f_d_model" in each for each in filters)


def test_rows_are_written_once() -> None:
    spec = drawn("panels")
    texts = [json.dumps(rows) for rows in spec["datasets"].values()]
    assert len(texts) == len(set(texts)) == len(QUANTITIES)
    assert '"values":[{' not in json.dumps(spec, separators=(",", ":"))


def test_long_curves_keep_their_ends() -> None:
    rows = [{"run": "x", "step": list(range(1000)), "accuracy": [0.5] * 1000}] * 2000
    thin = thinned_rows(rows)
    assert FEWEST <= len(thin[0]["step"]) <= FEWEST + 1
    assert (thin[0]["step"][0], thin[0]["step"][-1]) == (0, 999)
    assert len(thin[0]["accuracy"]) == len(thin[0]["step"])
    assert thinned_rows(rows[:1]) == rows[:1]


def test_chips_of_quantities_know_their_columns() -> None:
    assert quantities(drawn("panels")) == {text: [name] for name, text in QUANTITIES.items()}
    assert quantities(drawn("holdout")) == {name: list(pair) for name, pair in PAIRS.items()}
    assert quantities(drawn("depth")) == {}


def test_cells_of_several_seeds_name_all_their_rates() -> None:
    seeds = frame(d_model=[64, 128]).assign(lr=1e-3), frame(d_model=[64, 128]).assign(lr=3e-3, seed=1)
    spec = page_spec(panels(pd.concat(seeds, ignore_index=True), "t", rows="mixer"))
    assert field_texts(spec, "rate") == ["1e-3, 3e-3"]


def luminance(hue: str) -> float:
    parts = [int(hue[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_on_the_dark_ramp_can_be_read() -> None:
    for step, hue in enumerate(DARK_RAMP):
        lighter, darker = (luminance(hue), 0.0) if step >= style.WHITE_FROM else (1.0, luminance(hue))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_dark_charts_leave_no_dark_ink() -> None:
    row = {
        "mixer": "mamba",
        "n_layers": 2,
        "d_model": 64,
        "seed": 0,
        "verdict": "induction",
        "layer": 1,
        "stored_by": 0,
        "stored_at": "value",
    }
    drawing = mechanisms_figure(pd.DataFrame([{**dict.fromkeys(COLUMNS, 0.5), **row}]))
    for spec in (*map(drawn, CHARTS), page_spec(drawing), page_spec(over_time())):
        for hue in _hues(spec):
            assert luminance(DARK.get(hue, hue)) > 0.02, hue


def _hues(node: Any, key: str = "", in_rows: bool = False) -> set[str]:
    """Colours of marks and texts in a specification; white is what they stand on."""
    if isinstance(node, dict):
        return {hue for name, value in node.items() for hue in _hues(value, name, in_rows or key == "datasets")}
    if isinstance(node, list):
        return {hue for value in node for hue in _hues(value, key, in_rows)}
    is_hue = isinstance(node, str) and re.fullmatch("#[0-9a-f]{6}", node) and (not in_rows or key in PAINTED)
    return {node} if is_hue and node != "#ffffff" else set()
