from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from mecheval import figures
from mecheval.errors import UnknownName, UserError
from mecheval.figures.cells import cells
from mecheval.figures.lines import POINTS, arranged_curves, thinned
from mecheval.figures.matrix import attributions, row_axis
from mecheval.figures.vegalite import HUES, mixer_marks
from mecheval.sites import Site
from mecheval.studies import STUDIES, Reading, Study, StudyTable

SVG = "{http://www.w3.org/2000/svg}"
RESTORED, INSIDE, HOLDOUT, AT_QUERY = (
    tuple(STUDIES[name].readings) for name in ("ar", "ar_mamba_inside", "atr_holdout", "depth")
)

Draw = Callable[[StudyTable, str], figures.Chart]


def runs(readings: Sequence[Reading] = (), **axes: Sequence[Any]) -> StudyTable:
    """All combinations, each a run that is done; all its numbers are 0.5."""
    usual: dict[str, Sequence[Any]] = {"mixer": ["mamba"], "d_model": [16], "lr": [1e-3], "seed": [0]}
    names = usual | axes
    rows = [dict(zip(names, values, strict=True)) for values in itertools.product(*names.values())]
    frame = pd.DataFrame(rows)
    frame["run"] = [f"{index:012x}" for index in range(len(frame))]
    frame = frame.assign(status="done", step=10, verdict="induction")
    scores = ["dev_accuracy", "dev_likelihood", "test_accuracy", "test_likelihood", "original", "corrupted"]
    frame = frame.assign(**dict.fromkeys([*scores, *(reading.name for reading in readings)], 0.5))
    splits = ("dev", "test")
    study = Study("made", "–", "A question?", points=lambda scale: [], readings=readings, splits=splits)
    return StudyTable(study, tuple(names), tuple(readings), frame)


def changed(table: StudyTable, **columns: Any) -> StudyTable:
    """The same runs with other values in some columns."""
    return replace(table, frame=table.frame.assign(**columns))


def together(*tables: StudyTable) -> StudyTable:
    """The runs of several tables with the same axes."""
    return replace(tables[0], frame=pd.concat([table.frame for table in tables], ignore_index=True))


def without(table: StudyTable, status: str) -> StudyTable:
    """The same runs with this status, and no numbers."""
    numbers = [name for name in table.frame.columns if table.frame[name].dtype.kind == "f" and name not in table.axes]
    return changed(table, status=status, **dict.fromkeys(numbers, math.nan))


def history(frame: pd.DataFrame, scores: Sequence[float] = (0.1, 0.4)) -> pd.DataFrame:
    return pd.DataFrame(
        [(run, 5 * (step + 1), score) for run in frame["run"] for step, score in enumerate(scores)],
        columns=["run", "step", "dev_accuracy"],
    )


def draw_curves(table: StudyTable, title: str) -> figures.Chart:
    return figures.curves(table, history(table.frame[table.frame["status"] != "missing"]), title)


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


ONE_MIXER = ("ar_mamba_conv", "ar_mamba_inside", "ar_based_conv")


@cache
def chart_of(study: str) -> figures.Chart:
    """The chart of runs with two seeds and, where the study compares mixers, a mixer with a hostile name."""
    draw, axes = CHARTS[study]
    mixers: dict[str, Any] = {} if study in ONE_MIXER else {"mixer": ["mamba", ODD]}
    return draw(runs(**axes, seed=[0, 1], **mixers), "a <b> & c")


def words(chart: figures.Chart) -> list[str]:
    """The description of the picture, and then all of its texts."""
    svg = ElementTree.fromstring(chart.svg())
    assert not list(svg.iter(f"{SVG}script"))
    return [svg.get("aria-label", ""), *(text.text or "" for text in svg.iter(f"{SVG}text"))]


@pytest.mark.parametrize("study", CHARTS)
def test_every_chart_is_drawn_and_described(study: str, tmp_path: Path) -> None:
    chart = chart_of(study)
    said, *texts = words(chart)
    assert said.startswith("a <b> & c. ")
    assert "50.0 %" in said
    assert "a <b> & c" in texts
    assert (ODD in texts) == (study not in ONE_MIXER)
    figures.save(chart, tmp_path / "it.json")
    assert json.loads((tmp_path / "it.json").read_text())["description"] == said
    if study == "depth":  # several views side by side; the other charts are pictures of the same program
        figures.save(chart, tmp_path / "it.png")
        assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("study", CHARTS)
def test_charts_of_runs_that_are_not_there_show_no_number(study: str) -> None:
    draw, axes = CHARTS[study]
    said, *texts = words(draw(without(runs(**axes), "missing"), "T"))
    assert "no results" in said or "none" in said
    assert not {"0.0", "50.0"} & set(texts)


@pytest.mark.parametrize("study", CHARTS)
def test_a_single_run_has_a_chart(study: str) -> None:
    draw, axes = CHARTS[study]
    table = runs(**axes)
    assert "50.0 %" in draw(replace(table, frame=table.frame[:1]), "T").description


@pytest.mark.parametrize("draw", [figures.panels, figures.accuracy, figures.depth, figures.holdout, draw_curves])
def test_a_table_without_rows_is_refused(draw: Draw) -> None:
    table = runs([*RESTORED, *HOLDOUT, *AT_QUERY], n_layers=[1])
    with pytest.raises(UserError, match=r"there are no runs to show\."):
        draw(replace(table, frame=table.frame[:0]), "")


def test_a_new_reading_has_a_panel_under_its_title() -> None:
    new = Reading("at_bos", "share at the first token", "blocks.1.input", "bos", "share")
    chart = figures.panels(runs([*RESTORED, new]), "T")
    titles = [" ".join(panel["title"]["text"]) for panel in chart.spec["vconcat"][0]["hconcat"]]
    assert titles[-1] == "share at the first token"
    assert "share at the first token: largest 50.0 % (mamba, d_model 16)" in chart.description
    assert "restored share (%)" in chart.description
    assert figures.draw(replace(runs([new]), study=replace(runs([new]).study, draw="panels")), "T").description
    on_dev = replace(new, name="dev_at_bos", title="share on dev", split="dev")
    pairs = figures.holdout(runs([new, on_dev]), "T").spec["hconcat"]
    assert [" ".join(panel["title"]["text"]) for panel in pairs] == ["accuracy", "share at the first token"]
    deeper = Reading("mixer7", "at layer 7", Site(7, "mixer.output"), "query", "attribution")
    assert {cell["layer"] for cell in attributions(runs([*AT_QUERY, deeper], n_layers=[8]))} == {"0", "1", "2", "7"}
    nowhere = replace(deeper, site="blocks.7.mixer.output")
    with pytest.raises(UserError, match=r"the site of reading mixer7 as Site\(block, part\)"):
        attributions(runs([*AT_QUERY, nowhere], n_layers=[8]))


def values(spec: dict[str, Any], part: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of a part of a chart."""
    rows: list[dict[str, Any]] = spec["datasets"][part["data"]["name"]]
    return rows


def shown(chart: figures.Chart) -> list[str]:
    """Texts in the cells, panel by panel."""
    texts = ElementTree.fromstring(chart.svg()).iter(f"{SVG}text")
    return [text.text or "" for text in texts if text.get("aria-roledescription") == "text mark"]


def test_panels_are_laid_out_as_in_the_paper() -> None:
    table = runs(RESTORED, mixer=["mine", "attention", "h3", "mamba"], d_model=[128, 16])
    chart = figures.panels(table, "")
    line = chart.to_dict()["vconcat"][0]["hconcat"]
    assert [" ".join(panel["title"]["text"]) for panel in line] == [
        "original", "corrupted", "restored at key", "restored at value", "restored at query"
    ]  # fmt: skip
    encoding = line[0]["layer"][0]["encoding"]
    assert encoding["y"]["sort"] == ["attention", "h3", "mamba", "mine"]
    assert encoding["x"]["sort"] == ["16", "128"]
    assert shown(chart) == ["50.0"] * (5 * 4 * 2)


def test_rows_are_what_varies() -> None:
    assert row_axis(runs(d_conv=[4, 0])) == "d_conv"
    assert row_axis(runs(kernel_size=[1])) == "kernel_size"
    assert row_axis(runs(lr=[1e-3, 1e-4])) == "lr"
    assert row_axis(runs(mixer=["mamba", "h3"])) == "mixer"
    assert row_axis(runs(n_layers=[1, 2])) == "mixer"
    rates = runs(d_model=[16, 32], lr=[1e-3, 1e-4])
    assert row_axis(replace(rates, frame=rates.frame.iloc[[0, 3]])) == "mixer"  # one rate for each width


def test_what_has_no_number_says_why_and_is_never_zero() -> None:
    parts = [without(runs(mixer=[name]), status) for name, status in zip("bcdef", STATUSES, strict=True)]
    diverged_with_scores = changed(runs(mixer=["a"]), status="diverged", test_accuracy=0.0)
    chart = figures.accuracy(together(diverged_with_scores, *parts), "")
    assert shown(chart) == ["div", "div", "fail", "…", "n/a", "–"]
    notes = " ".join(chart.to_dict()["title"]["subtitle"])
    assert notes == "div: diverged; fail: failed; …: not finished; n/a: not measured; –: not run"
    gap = runs(mixer=["h", "i"], d_model=[32, 64])
    with_gap = cells(replace(gap, frame=gap.frame[:3]), {"test_accuracy": "q"}, ["mixer", "d_model"])
    assert [cell["label"] for cell in with_gap] == ["50.0", "50.0", "50.0", "–"]


STATUSES = ("diverged", "failed", "running", "done", "missing")


def test_seeds_become_a_mean_with_its_range_and_a_mark_where_they_differ() -> None:
    table = runs(mixer=["based", "h3", "mamba"], seed=[0, 1, 2])
    table = changed(
        table,
        test_accuracy=[0.9, 0.95, 1.0, 0.2, 0.9, 0.1, 0.3, 0.3, math.nan],
        status=["done"] * 8 + ["diverged"],
    )
    by_mixer = {cell["mixer"]: cell for cell in cells(table, {"test_accuracy": "q"}, ["mixer", "d_model"])}
    based, h3, mamba = by_mixer["based"], by_mixer["h3"], by_mixer["mamba"]
    assert (based["value"], based["low"], based["high"]) == (pytest.approx(0.95), 0.9, 1.0)
    assert (based["label"], based["apart"], based["seeds"]) == ("95.0", False, "3 of 3")
    assert (h3["label"], h3["apart"], h3["range"]) == ("40.0", True, "10.0 to 90.0 %")
    assert (mamba["label"], mamba["seeds"], mamba["status"]) == ("30.0*", "2 of 3", "done, diverged")
    fewer = changed(table, status=["done"] * 8 + ["missing"])
    with_fewer = {cell["mixer"]: cell for cell in cells(fewer, {"test_accuracy": "q"}, ["mixer", "d_model"])}
    assert (with_fewer["mamba"]["label"], with_fewer["mamba"]["seeds"]) == ("30.0", "2 of 3")
    notes = " ".join(figures.accuracy(table, "").to_dict()["title"]["subtitle"])
    expected = "means over seeds; *: some seeds have no result; marked corner: seeds differ by more than 10 points"
    assert notes == expected


def test_several_runs_of_one_seed_and_unknown_axes_are_refused() -> None:
    table = runs(mixer=["mamba", "h3"], lr=[1e-3, 1e-4])
    with pytest.raises(UserError, match=r"several runs of one seed for h3, d_model 16; choose one learning rate"):
        figures.accuracy(table, "")
    with pytest.raises(UnknownName, match=r"unknown axis 'd_modle'\. Did you mean 'd_model'"):
        cells(table, {"original": "original"}, ["d_modle"])


def test_the_description_holds_the_main_numbers() -> None:
    table = runs(mixer=["mamba", "attention"], d_model=[16, 32], lr=[3e-4])
    table = changed(table, test_accuracy=[0.25, 0.9, -0.0001, math.nan], status=["done"] * 3 + ["failed"])
    said = figures.accuracy(table, "Who?").to_dict()["description"]
    assert said == (
        "Who?. Heat maps of the accuracy (%) by mixer and d_model. test accuracy: largest 90.0 % (mamba, d_model 32), "
        "smallest 0.0 % (attention, d_model 16), 1 of 4 without a result."
    )


def test_tasks_with_widths_of_their_own_have_no_empty_panels() -> None:
    table = together(runs(task=["atr"], n_layers=[1, 2], d_model=[64]), runs(task=["ar"], n_layers=[1, 2]))
    lines = figures.accuracy(table, "").to_dict()["vconcat"]
    titles = [[panel["title"]["text"] for panel in line["hconcat"]] for line in lines]
    assert titles == [[["d_model 16"]], [["d_model 64"]]]
    assert [line["hconcat"][0]["encoding"]["y"]["title"] for line in lines] == ["AR", "ATR"]


def test_only_layers_that_a_model_has_and_that_learnt_are_attributed() -> None:
    table = runs(AT_QUERY, n_layers=[1, 3], mixer=["mamba", "h3"])
    table.frame.loc[table.frame["mixer"] == "h3", "original"] = 0.01  # which is not above the threshold
    found = {(cell["mixer"], cell["n_layers"], cell["layer"]): cell["label"] for cell in attributions(table)}
    places = [("1 layer", "0"), *(("3 layers", layer) for layer in "012")]
    assert found == {(mixer, *place): text for mixer, text in (("mamba", "50.0"), ("h3", "low")) for place in places}


def test_held_out_scores_are_points_and_those_without_are_named() -> None:
    scores = {"test_accuracy": [0.2, 0.4, math.nan], "attribution_key": [-0.1, 0.3, math.nan]}
    table = changed(runs(HOLDOUT, mixer=["mamba", "h3", "based"]), **scores, status=["done", "done", "diverged"])
    spec = figures.holdout(table, "T").to_dict()
    points = values(spec, spec["hconcat"][0])
    assert [(point["mixer"], point["x"], point["y"]) for point in points] == [("h3", 0.5, 0.4), ("mamba", 0.5, 0.2)]
    assert spec["title"]["subtitle"][-1] == "not shown: based 16 (diverged)"
    domains = {json.dumps(p["layer"][0]["encoding"][a]["scale"]["domain"]) for p in spec["hconcat"] for a in "xy"}
    assert domains == {"[-0.1, 1]"}
    assert (
        "accuracy: highest on test 40.0 % (h3, d_model 16; dev 50.0 %), largest fall 50.0 to 20.0 % (mamba"
        in (spec["description"])
    )


def test_of_the_rates_the_best_curve_is_strong_and_a_diverged_one_ends_in_a_cross() -> None:
    table = changed(
        runs(lr=[1e-4, 1e-3, 1e-2], mixer=["mamba", "h3"]),
        dev_accuracy=[0.7, 0.7, math.nan, 0.9, 0.9, math.nan],  # where they tie, the likelihood decides,
        dev_likelihood=[0.2, 0.3, math.nan, 0.4, 0.4, math.nan],  # and then the order
        status=["done", "done", "diverged", "done", "done", "missing"],
    )
    along = history(table.frame[:5])
    drawn = arranged_curves(table, along, "mixer")
    assert [curve["strong"] for curve in drawn] == [False, True, False, True, False, False]
    assert [len(curve["points"]) for curve in drawn] == [2, 2, 2, 2, 2, 0]
    spec = figures.curves(table, along, "T").to_dict()
    crosses = values(spec, spec["vconcat"][0]["hconcat"][0]["layer"][2])
    assert [(cross["run"], cross["step"], cross["accuracy"]) for cross in crosses] == [(table.frame["run"][2], 10, 0.4)]
    assert spec["description"].endswith("6 runs. Best at the end: mamba 70.0 %, h3 90.0 %.")
    assert " ".join(spec["title"]["subtitle"]).endswith("cross: diverged; 1 of 6 runs have no curve")


def test_where_only_rates_vary_they_have_the_colours() -> None:
    spec = draw_curves(runs(lr=[1e-4, 1e-2], d_model=[16, 32]), "").to_dict()
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


def test_notebooks_show_the_specification_and_a_picture() -> None:
    chart = chart_of("ar")
    bundle = chart._repr_mimebundle_()
    assert bundle["application/vnd.vegalite.v6+json"] == chart.spec == json.loads(chart.to_json())
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert bundle["text/plain"] == chart.description


def test_tasks_of_an_accuracy_chart_have_panels_of_their_own_where_nothing_else_has() -> None:
    """Of one width, so that the runs of both tasks would otherwise share their cells."""
    both = runs(task=["ar", "atr"], mixer=["attention", "mamba"], d_model=[32])
    chart = figures.accuracy(changed(both, test_accuracy=[0.1, 0.2, 0.3, 0.4]), "Title")
    rows = [row for part in chart.to_dict()["datasets"].values() for row in part]
    values = {(row["task"], row["mixer"]): row["value"] for row in rows}
    assert values == {
        ("AR", "attention"): 0.1, ("ATR", "attention"): 0.2, ("AR", "mamba"): 0.3, ("ATR", "mamba"): 0.4
    }  # fmt: skip
