from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from mecheval import figures
from mecheval.errors import UnknownName, UserError
from mecheval.figures.cells import cells
from mecheval.figures.layers import attributions
from mecheval.figures.learning import POINTS, arranged_curves, thinned
from mecheval.figures.matrix import QUANTITIES, row_axis
from mecheval.figures.style import HUES, mixer_marks

SVG = "{http://www.w3.org/2000/svg}"
HOLDOUT = [f"{split}attribution_{role}" for split in ("", "dev_") for role in ("key", "value", "query")]
AT_QUERY = [f"mixer{layer}_at_query" for layer in range(3)]
RESTORED = ["restored_key", "restored_value", "restored_query"]
INSIDE = ["conv0_at_value", "conv0_at_next_key", "conv1_at_value"]

Draw = Callable[[pd.DataFrame, str], Any]


def runs(readings: Sequence[str] = (), **axes: Sequence[Any]) -> pd.DataFrame:
    """All combinations, each a run that is done; all its numbers are 0.5."""
    usual: dict[str, Sequence[Any]] = {"mixer": ["mamba"], "d_model": [16], "lr": [1e-3], "seed": [0]}
    names = usual | axes
    rows = [dict(zip(names, values, strict=True)) for values in itertools.product(*names.values())]
    frame = pd.DataFrame(rows)
    frame["run"] = [f"{index:012x}" for index in range(len(frame))]
    frame = frame.assign(status="done", step=10, verdict="induction")
    scores = ["dev_accuracy", "dev_likelihood", "test_accuracy", "test_likelihood", "original", "corrupted", *readings]
    return frame.assign(**dict.fromkeys(scores, 0.5))


def without(frame: pd.DataFrame, status: str) -> pd.DataFrame:
    """The same runs with this status, and no numbers."""
    axes = ("d_model", "lr", "seed", "n_layers", "d_conv", "kernel_size", "step")
    numbers = [name for name in frame.columns if frame[name].dtype.kind == "f" and name not in axes]
    return frame.assign(status=status, **dict.fromkeys(numbers, math.nan))


def history(frame: pd.DataFrame, scores: Sequence[float] = (0.1, 0.4)) -> pd.DataFrame:
    return pd.DataFrame(
        [(run, 5 * (step + 1), score) for run in frame["run"] for step, score in enumerate(scores)],
        columns=["run", "step", "dev_accuracy"],
    )


def draw_curves(frame: pd.DataFrame, title: str) -> Any:
    return figures.curves(history(frame[frame["status"] != "missing"]), frame, title)


CHARTS: dict[str, tuple[Draw, dict[str, Any]]] = {
    "ar": (figures.panels, {"readings": RESTORED}),
    "ar_mamba_conv": (figures.panels, {"readings": RESTORED, "d_conv": [4, 0]}),
    "ar_mamba_inside": (figures.panels, {"readings": INSIDE, "lr": [1e-3, 3e-4]}),
    "ar_based_conv": (figures.accuracy, {"kernel_size": [-1, 1, 3]}),
    "position": (figures.accuracy, {"task": ["atr", "ar"], "positions": ["learned", "none"]}),
    "one_layer": (figures.accuracy, {"task": ["ar", "atr"], "n_layers": [1, 2]}),
    "sibling": (figures.accuracy, {"n_layers": [1, 2, 3]}),
    "atr_holdout": (figures.holdout, {"readings": HOLDOUT}),
    "depth": (figures.depth, {"readings": AT_QUERY, "n_layers": [1, 2, 3]}),
    "curves": (draw_curves, {"lr": [1e-3, 3e-4], "n_layers": [1, 2]}),
}
ODD = "<script>alert('&\"')</script>"


def words(chart: Any, folder: Path) -> list[str]:
    """All that the chart's picture says, and its words for those who do not see it first."""
    figures.save(chart, folder / "it.svg")
    svg = ElementTree.fromstring((folder / "it.svg").read_text())
    assert not list(svg.iter(f"{SVG}script"))
    return [svg.get("aria-label", ""), *(text.text or "" for text in svg.iter(f"{SVG}text"))]


@pytest.mark.parametrize("study", CHARTS)
def test_every_chart_is_drawn_and_described(study: str, tmp_path: Path) -> None:
    draw, axes = CHARTS[study]
    frame = runs(**axes, seed=[0, 1])
    if study not in ("ar_mamba_conv", "ar_mamba_inside", "ar_based_conv"):
        frame = runs(**axes, seed=[0, 1], mixer=["mamba", ODD])
    chart = draw(frame, "a <b> & c")
    said, *texts = words(chart, tmp_path)
    assert said.startswith("a <b> & c. ")
    assert "50.0 %" in said
    assert "a <b> & c" in texts
    assert (ODD in texts) == (ODD in frame["mixer"].values)
    figures.save(chart, tmp_path / "it.json")
    assert json.loads((tmp_path / "it.json").read_text())["description"] == said
    if study == "depth":  # several views side by side; the other charts are pictures of the same program
        figures.save(chart, tmp_path / "it.png")
        assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("study", CHARTS)
def test_charts_of_runs_that_are_not_there_show_no_number(study: str, tmp_path: Path) -> None:
    draw, axes = CHARTS[study]
    said, *texts = words(draw(without(runs(**axes), "missing"), "T"), tmp_path)
    assert "no results" in said or "none" in said
    assert not {"0.0", "50.0"} & set(texts)


@pytest.mark.parametrize("study", CHARTS)
def test_a_single_run_has_a_chart(study: str) -> None:
    draw, axes = CHARTS[study]
    assert "50.0 %" in draw(runs(**axes)[:1], "T").description


@pytest.mark.parametrize("draw", [figures.panels, figures.accuracy, figures.depth, figures.holdout, draw_curves])
def test_a_table_without_rows_is_refused(draw: Draw) -> None:
    frame = runs([*RESTORED, *HOLDOUT, *AT_QUERY], n_layers=[1])
    with pytest.raises(UserError, match=r"there are no runs to show\."):
        draw(frame[:0], "")


def values(spec: dict[str, Any], part: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of a part of a chart."""
    rows: list[dict[str, Any]] = spec["datasets"][part["data"]["name"]]
    return rows


def shown(chart: Any, tmp_path: Path) -> list[str]:
    """Texts in the cells, panel by panel."""
    figures.save(chart, tmp_path / "it.svg")
    texts = ElementTree.fromstring((tmp_path / "it.svg").read_text()).iter(f"{SVG}text")
    return [text.text or "" for text in texts if text.get("aria-roledescription") == "text mark"]


def test_panels_are_laid_out_as_in_the_paper(tmp_path: Path) -> None:
    frame = runs(RESTORED, mixer=["mine", "attention", "h3", "mamba"], d_model=[128, 16])
    chart = figures.panels(frame, "")
    line = chart.to_dict()["vconcat"][0]["hconcat"]
    assert [" ".join(panel["title"]["text"]) for panel in line] == [
        "original", "corrupted", "restored at key", "restored at value", "restored at query"
    ]  # fmt: skip
    encoding = line[0]["layer"][0]["encoding"]
    assert encoding["y"]["sort"] == ["mamba", "h3", "attention", "mine"]
    assert encoding["x"]["sort"] == ["16", "128"]
    assert shown(chart, tmp_path) == ["50.0"] * (5 * 4 * 2)


def test_rows_are_what_varies() -> None:
    assert row_axis(runs(d_conv=[4, 0])) == "d_conv"
    assert row_axis(runs(kernel_size=[1])) == "kernel_size"
    assert row_axis(runs(lr=[1e-3, 1e-4])) == "lr"
    assert row_axis(runs(mixer=["mamba", "h3"])) == "mixer"
    assert row_axis(runs(n_layers=[1, 2])) == "mixer"
    one_rate_for_each_width = runs(d_model=[16, 32], lr=[1e-3, 1e-4]).iloc[[0, 3]]
    assert row_axis(one_rate_for_each_width) == "mixer"


def test_what_has_no_number_says_why_and_is_never_zero(tmp_path: Path) -> None:
    parts = [without(runs(mixer=[name]), status) for name, status in zip("bcdef", STATUSES, strict=True)]
    diverged_with_scores = runs(mixer=["a"]).assign(status="diverged", test_accuracy=0.0)
    frame = pd.concat([diverged_with_scores, *parts, runs(mixer=["h", "i"], d_model=[32, 64])[:3]])
    chart = figures.accuracy(frame[frame["d_model"] == 16], "")
    assert shown(chart, tmp_path) == ["div", "div", "fail", "…", "n/a", "–"]
    notes = " ".join(chart.to_dict()["title"]["subtitle"])
    assert notes == "div: diverged; fail: failed; …: not finished; n/a: not measured; –: not run"
    with_gap = cells(frame[frame["d_model"] != 16], {"test_accuracy": "q"}, ["mixer", "d_model"])
    assert [cell["label"] for cell in with_gap] == ["50.0", "50.0", "50.0", "–"]


STATUSES = ("diverged", "failed", "running", "done", "missing")


def test_seeds_become_a_mean_with_its_range_and_a_mark_where_they_differ() -> None:
    frame = runs(seed=[0, 1, 2], mixer=["mamba", "h3", "based"]).sort_values(["mixer", "seed"], ignore_index=True)
    frame["test_accuracy"] = [0.9, 0.95, 1.0, 0.2, 0.9, 0.1, 0.3, 0.3, math.nan]
    frame.loc[8, "status"] = "diverged"
    by_mixer = {cell["mixer"]: cell for cell in cells(frame, {"test_accuracy": "q"}, ["mixer", "d_model"])}
    based, h3, mamba = by_mixer["based"], by_mixer["h3"], by_mixer["mamba"]
    assert (based["value"], based["low"], based["high"]) == (pytest.approx(0.95), 0.9, 1.0)
    assert (based["label"], based["apart"], based["seeds"]) == ("95.0", False, "3 of 3")
    assert (h3["label"], h3["apart"], h3["range"]) == ("40.0", True, "10.0 to 90.0 %")
    assert (mamba["label"], mamba["seeds"], mamba["status"]) == ("30.0*", "2 of 3", "done, diverged")
    notes = " ".join(figures.accuracy(frame, "").to_dict()["title"]["subtitle"])
    expected = "means over seeds; *: some seeds have no result; marked corner: seeds differ by more than 10 points"
    assert notes == expected


def test_several_runs_of_one_seed_and_unknown_columns_are_refused() -> None:
    frame = runs(mixer=["mamba", "h3"], lr=[1e-3, 1e-4])
    with pytest.raises(UserError, match=r"several runs of one seed for mamba, d_model 16; choose one learning rate"):
        figures.accuracy(frame, "")
    with pytest.raises(UnknownName, match=r"unknown column of the study 'orignal'\. Did you mean 'original'"):
        figures.panels(runs(), "", {"orignal": "original"})


def test_the_description_holds_the_main_numbers() -> None:
    frame = runs(mixer=["mamba", "attention"], d_model=[16, 32], lr=[3e-4])
    frame["test_accuracy"] = [0.25, 0.9, -0.0001, math.nan]
    frame.loc[3, "status"] = "failed"
    said = figures.accuracy(frame, "Who?").to_dict()["description"]
    assert said == (
        "Who?. Heat maps of the accuracy (%) by mixer and d_model. test accuracy: largest 90.0 % (mamba, d_model 32), "
        "smallest 0.0 % (attention, d_model 16), 1 of 4 without a result."
    )


def test_tasks_with_widths_of_their_own_have_no_empty_panels() -> None:
    frame = pd.concat([runs(task=["atr"], n_layers=[1, 2], d_model=[64]), runs(task=["ar"], n_layers=[1, 2])])
    lines = figures.accuracy(frame, "").to_dict()["vconcat"]
    titles = [[panel["title"]["text"] for panel in line["hconcat"]] for line in lines]
    assert titles == [[["d_model 16"]], [["d_model 64"]]]
    assert [line["hconcat"][0]["layer"][0]["encoding"]["y"]["title"] for line in lines] == ["AR", "ATR"]


def test_only_layers_that_a_model_has_and_that_learnt_are_attributed() -> None:
    frame = runs(AT_QUERY, n_layers=[1, 3], mixer=["mamba", "h3"])
    frame.loc[frame["mixer"] == "h3", "original"] = 0.01  # which is not above the threshold
    found = {(cell["mixer"], cell["n_layers"], cell["layer"]): cell["label"] for cell in attributions(frame)}
    places = [("1 layer", "0"), *(("3 layers", layer) for layer in "012")]
    assert found == {(mixer, *place): text for mixer, text in (("mamba", "50.0"), ("h3", "low")) for place in places}


def test_held_out_scores_are_points_and_those_without_are_named() -> None:
    frame = runs(HOLDOUT, mixer=["mamba", "h3", "based"])
    frame["test_accuracy"], frame["attribution_key"] = [0.2, 0.4, math.nan], [-0.1, 0.3, math.nan]
    frame.loc[2, "status"] = "diverged"
    spec = figures.holdout(frame, "T").to_dict()
    points = values(spec, spec["hconcat"][0]["layer"][3])
    assert [(point["mixer"], point["x"], point["y"]) for point in points] == [("mamba", 0.5, 0.2), ("h3", 0.5, 0.4)]
    assert spec["title"]["subtitle"][-1] == "not shown: based 16 (diverged)"
    domains = {json.dumps(p["layer"][0]["encoding"][a]["scale"]["domain"]) for p in spec["hconcat"] for a in "xy"}
    assert domains == {"[-0.1, 1]"}
    assert (
        "accuracy: highest on test 40.0 % (h3, d_model 16; dev 50.0 %), largest fall 50.0 to 20.0 % (mamba"
        in (spec["description"])
    )


def test_of_the_rates_the_best_curve_is_strong_and_a_diverged_one_ends_in_a_cross() -> None:
    frame = runs(lr=[1e-4, 1e-3, 1e-2], mixer=["mamba", "h3"])
    frame["dev_accuracy"] = [0.7, 0.7, math.nan, 0.9, 0.9, math.nan]  # where they tie, the likelihood decides,
    frame["dev_likelihood"] = [0.2, 0.3, math.nan, 0.4, 0.4, math.nan]  # and then the order
    frame.loc[[2, 5], "status"] = ["diverged", "missing"]
    drawn = arranged_curves(history(frame[:5]), frame, "mixer", ["mixer", "lr", "d_model", "seed"])
    assert [curve["strong"] for curve in drawn] == [False, True, False, True, False, False]
    assert [len(curve["points"]) for curve in drawn] == [2, 2, 2, 2, 2, 0]
    spec = figures.curves(history(frame[:5]), frame, "T").to_dict()
    crosses = values(spec, spec["vconcat"][0]["hconcat"][0]["layer"][2])
    assert [(cross["run"], cross["step"], cross["accuracy"]) for cross in crosses] == [(frame["run"][2], 10, 0.4)]
    assert spec["description"].endswith("6 runs. Best at the end: mamba 70.0 %, h3 90.0 %.")
    assert " ".join(spec["title"]["subtitle"]).endswith("cross: diverged; 1 of 6 runs have no curve")


def test_where_only_rates_vary_they_have_the_colours() -> None:
    frame = runs(lr=[1e-4, 1e-2], d_model=[16, 32])
    spec = figures.curves(history(frame), frame, "").to_dict()
    strong = spec["vconcat"][0]["hconcat"][0]["layer"][1]
    assert strong["encoding"]["color"]["scale"]["domain"] == ["1e-2", "1e-4"]
    assert all(point["strong"] for point in values(spec, strong))


def test_long_curves_are_thinned_to_their_last_point() -> None:
    long = [(step, 0.0) for step in range(10 * POINTS + 2)]
    assert len(thinned(long)) <= POINTS + 1
    assert (thinned(long)[0], thinned(long)[-1]) == (long[0], long[-1])
    assert thinned(long[:POINTS]) == long[:POINTS]
    assert thinned([]) == []


def test_mixers_differ_in_colour_shape_and_dash_and_keep_theirs() -> None:
    marks = mixer_marks([*HUES, "mine"])
    for part in range(3):
        assert len({str(mark[part]) for mark in marks.values()}) == len(marks)
    assert mixer_marks(["mine", "based"])["based"] == marks["based"]


def test_likelihoods_have_panels_in_the_order_of_the_paper() -> None:
    assert list(QUANTITIES)[:2] == ["original", "corrupted"]
    assert {*RESTORED, *INSIDE} < set(QUANTITIES)
