from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from mecheval.errors import UserError
from mecheval.figures.over_time import mechanism_over_time
from places import located

RUN, OTHER = "a" * 12, "b" * 12
CARRIERS = ("key", "value", "next_key", "query")


def effects(
    run: str = RUN, sites: tuple[str, ...] = ("blocks.0.input", "blocks.1.input"), top: float = 0.9
) -> pd.DataFrame:
    """At the last site, the value restores ever more; before anything is learnt there is no share."""
    made = located(pd.DataFrame([
        {"run": run, "state": "training", "step": step, "split": "dev", "site": site, "role": role,
         "share": math.nan if step == 0 else top * step / 200 if (site, role) == (sites[-1], "value") else 0.0}
        for step in (100, 0, 200) for site in sites for role in (*CARRIERS, "bos")
    ]))  # fmt: skip
    return made.assign(share_apart=made["share"])


def history(*runs: str) -> pd.DataFrame:
    return pd.DataFrame(
        [{"run": run, "step": step, "dev_accuracy": step / 400} for run in runs for step in (0, 100, 200)]
    )


def table(**columns: list[Any]) -> pd.DataFrame:
    usual = {"task": "ar", "mixer": "mamba", "d_model": 64, "n_layers": 2, "lr": 1e-3, "seed": 0}
    return pd.DataFrame({"run": [RUN, OTHER], **usual, **columns})


def panels(chart: Any) -> list[dict[str, Any]]:
    spec = chart.to_dict()
    named = spec["datasets"]
    made = []
    for panel in (panel for row in spec["vconcat"] for panel in row["hconcat"]):
        rows = [row for layer in panel["layer"] for row in named[layer["data"]["name"]]]
        made.append({"title": panel["title"]["text"], **{row["line"]: row for row in rows}})
    return made


def test_lines_are_shares_by_step_and_break_where_nothing_is_learnt() -> None:
    (panel,) = panels(mechanism_over_time(effects(), history(RUN), "t"))
    assert panel["title"] == [RUN, "input of layer 1"]
    assert (panel["value"]["step"], panel["value"]["share"]) == ([0, 100, 200], [None, 0.45, 0.9])
    assert panel["dev accuracy"]["share"] == [0.25, 0.5]  # a logarithmic axis has no step 0
    assert set(panel) == {"title", "dev accuracy", *CARRIERS}


def test_convolutions_are_shown_where_they_ever_restore_something() -> None:
    sites = ("blocks.1.input", "blocks.0.mixer.conv")
    shown = panels(mechanism_over_time(effects(sites=sites), history(RUN), "t"))
    assert [panel["title"][1] for panel in shown] == ["input of layer 1", "conv of layer 0"]
    (panel,) = panels(mechanism_over_time(effects(sites=sites, top=0.1), history(RUN), "t"))
    assert panel["title"][1] == "input of layer 1"


def test_a_model_of_one_layer_shows_what_its_mixer_gives() -> None:
    (panel,) = panels(
        mechanism_over_time(effects(sites=("blocks.0.input", "blocks.0.mixer.output")), history(RUN), "t")
    )
    assert panel["title"][1] == "mixer.output of layer 0".removeprefix("mixer.")


@pytest.mark.parametrize(("columns", "names"), [
    ({"mixer": ["mamba", "h3"]}, ["AR · mamba · d 64", "AR · h3 · d 64"]),
    ({"lr": [1e-3, 3e-3]}, ["AR · mamba · d 64 · 2 layers · lr 1e-3", "AR · mamba · d 64 · 2 layers · lr 3e-3"]),
])  # fmt: skip
def test_names_tell_runs_apart_and_are_no_longer_than_that(columns: dict[str, list[Any]], names: list[str]) -> None:
    both = pd.concat([effects(), effects(OTHER)])
    shown = panels(mechanism_over_time(both, history(RUN, OTHER), "t", table(**columns)))
    assert [panel["title"][0] for panel in shown] == names
    assert shown[0]["key"]["mixer"] == "mamba"


def test_intervals_are_shaded_where_they_are_known() -> None:
    wide = effects().assign(share_low=lambda frame: frame["share"] - 0.1, share_high=lambda frame: frame["share"] + 0.1)
    chart = mechanism_over_time(wide, history(RUN), "t")
    (panel,) = panels(chart)
    assert (panel["value"]["low"], panel["value"]["high"]) == ([None, 0.35, 0.8], [None, 0.55, 1.0])
    (layers,) = (part["layer"] for row in chart.to_dict()["vconcat"] for part in row["hconcat"])
    assert [layer["mark"]["type"] for layer in layers] == ["line", "area", "line"]
    assert "shaded: 95 % intervals" in chart.to_dict()["title"]["subtitle"][-1]


def test_every_run_has_a_line_of_panels() -> None:
    deeper = effects(OTHER, ("blocks.0.input", "blocks.1.input", "blocks.2.input"))
    chart = mechanism_over_time(pd.concat([effects(), deeper]), history(RUN, OTHER), "t")
    assert [len(row["hconcat"]) for row in chart.to_dict()["vconcat"]] == [1, 2]


def test_the_end_is_told_in_words() -> None:
    said = mechanism_over_time(effects(), history(RUN), "Title").description
    assert said.startswith("Title.")
    assert "at the end 90 % restored at value, accuracy 50 %" in said


def test_without_effects_on_the_way_it_says_how_to_get_them() -> None:
    with pytest.raises(UserError, match="--interchange-every"):
        mechanism_over_time(effects().assign(state="last"), history(RUN), "t")
