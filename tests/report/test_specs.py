from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
import pytest

from figures.test_study_charts import AT_QUERY, HOLDOUT, RESTORED, history, runs, together
from mecheval.figures import Chart, accuracy, curves, depth, heatmap, holdout, panels
from mecheval.figures.matrix import pairs
from mecheval.figures.mechanisms import COLUMNS, mechanisms_figure
from mecheval.figures.over_time import mechanism_over_time
from mecheval.figures.vegalite import WHITE_FROM, views
from mecheval.report.page import DARK, DARK_RAMP, FEWEST, PAINTED, field_texts, page_spec, thinned_rows
from mecheval.report.sections import quantities
from mecheval.studies import StudyTable
from places import located
from report.stores import ROLES, SITES, effect

TWO: dict[str, list[Any]] = {"mixer": ["mamba", "attention"], "d_model": [64, 128]}
TABLES: dict[str, Callable[[], StudyTable]] = {
    "panels": lambda: runs(RESTORED, **TWO),
    "rates": lambda: runs(RESTORED, d_model=[64, 128], lr=[1e-3, 3e-3]),
    "options": lambda: runs(RESTORED, d_conv=[0, 4], d_model=[64, 128]),
    "accuracy": lambda: runs(task=["ar", "atr"], mixer=["mamba", "h3"], positions=["none", "learned"]),
    "depth": lambda: runs(AT_QUERY, mixer=["mamba", "h3"], n_layers=[1, 2]),
    "holdout": lambda: runs(HOLDOUT, **TWO),
    "curves": lambda: runs(**TWO, lr=[1e-3, 3e-3]),
}
DRAW: dict[str, Callable[[StudyTable, str], Chart]] = {
    "panels": panels, "rates": panels, "options": panels, "accuracy": accuracy, "depth": depth, "holdout": holdout,
    "curves": lambda table, title: curves(table, history(table.frame), title),
}  # fmt: skip
AXES = {
    "panels": ["mixer", "d_model", "lr", "quantity"],
    "rates": ["d_model", "lr", "quantity"],
    "options": ["d_conv", "d_model", "lr"],
    "accuracy": ["task", "mixer", "positions", "d_model", "lr"],
    "depth": ["mixer", "n_layers", "d_model", "lr"],
    "holdout": ["mixer", "d_model", "lr", "quantity"],
    "curves": ["mixer", "d_model", "lr"],
}


@cache
def chart(name: str) -> Chart:
    """A chart of every kind."""
    if name in DRAW:
        return DRAW[name](TABLES[name](), "t")
    return {"mechanisms": mechanisms, "over time": over_time, "heatmap": one_map}[name]()


@cache
def drawn(name: str) -> dict[str, Any]:
    """What a page draws, with the signals of all axes."""
    return page_spec(chart(name), AXES[name])


def mechanisms() -> Chart:
    about = {"mixer": "mamba", "n_layers": 2, "d_model": 64, "seed": 0}
    finding = {"verdict": "induction", "layer": 1, "stored_by": 0, "stored_at": "value", "found_by": None}
    return mechanisms_figure(pd.DataFrame([{**dict.fromkeys(COLUMNS, 0.5), **about, **finding}]))


def one_map() -> Chart:
    return heatmap(
        located(pd.DataFrame([effect("last", 400, "test", site, role) for site in SITES for role in ROLES])), "t"
    )


def over_time() -> Chart:
    rows = [
        effect("training", step, "dev", site, role) | {"run": "a" * 12, "share_low": 0.1, "share_high": 0.9}
        for step in (0, 100)
        for site in SITES
        for role in ROLES
    ]
    about = {"run": "a" * 12, "task": "ar", "mixer": "mamba", "d_model": 64, "n_layers": 2, "lr": 1e-3, "seed": 0}
    frame = pd.DataFrame([about])
    return mechanism_over_time(located(pd.DataFrame(rows)), history(frame), "t", frame)


@pytest.mark.parametrize("name", [*DRAW, "mechanisms", "over time", "heatmap"])
def test_every_kind_of_chart_is_valid_vega_lite(name: str) -> None:
    from altair.vegalite.schema import core

    core.Root.validate(json.loads(chart(name).to_json()))
    with pytest.raises(Exception, match=r"'marks' was unexpected|is not valid"):
        core.Root.validate({"marks": 1})


@pytest.mark.parametrize("name", DRAW)
def test_every_view_with_rows_of_an_axis_listens_to_its_signal(name: str) -> None:
    axes, spec = AXES[name], drawn(name)
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

    axes = AXES[name]
    compiled = vl_convert.vegalite_to_vega(drawn(name), vl_version="6.4")
    assert {f"f_{axis}" for axis in axes} <= {each["name"] for each in compiled["signals"]}
    filters = [
        step["expr"] for part in compiled["data"] for step in part.get("transform", []) if step["type"] == "filter"
    ]
    assert any("f_d_model" in each for each in filters)


def test_rows_are_written_once() -> None:
    spec = drawn("panels")
    texts = [json.dumps(rows) for rows in spec["datasets"].values()]
    assert len(texts) == len(set(texts)) == len(TABLES["panels"]().titles)
    assert '"values":[{' not in json.dumps(spec, separators=(",", ":"))


def test_long_curves_keep_their_ends() -> None:
    rows = [{"run": "x", "step": list(range(1000)), "accuracy": [0.5] * 1000}] * 2000
    thin = thinned_rows(rows)
    assert FEWEST <= len(thin[0]["step"]) <= FEWEST + 1
    assert (thin[0]["step"][0], thin[0]["step"][-1]) == (0, 999)
    assert len(thin[0]["accuracy"]) == len(thin[0]["step"])
    assert thinned_rows(rows[:1]) == rows[:1]


def test_chips_of_quantities_know_their_columns() -> None:
    titles = TABLES["panels"]().titles
    assert quantities(TABLES["panels"](), drawn("panels")) == {title: [name] for name, title in titles.items()}
    table = TABLES["holdout"]()
    assert list(pairs(table)) == ["accuracy", "attribution at key", "attribution at value", "attribution at query"]
    assert quantities(table, drawn("holdout")) == {title: list(pair) for title, pair in pairs(table).items()}
    assert quantities(TABLES["depth"](), drawn("depth")) == {}


def test_cells_of_several_seeds_name_all_their_rates() -> None:
    seeds = (runs(d_model=[64, 128], lr=[rate], seed=[seed]) for seed, rate in enumerate((1e-3, 3e-3)))
    assert field_texts(page_spec(panels(together(*seeds), "t")), "rate") == ["1e-3, 3e-3"]


def luminance(hue: str) -> float:
    parts = [int(hue[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_on_the_dark_ramp_can_be_read() -> None:
    for step, hue in enumerate(DARK_RAMP):
        lighter, darker = (luminance(hue), 0.0) if step >= WHITE_FROM else (1.0, luminance(hue))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_dark_charts_leave_no_dark_ink() -> None:
    for spec in (*map(drawn, DRAW), page_spec(mechanisms()), page_spec(over_time())):
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
