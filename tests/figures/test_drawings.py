from __future__ import annotations

import itertools
import math
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from mecheval import figures
from mecheval.errors import UserError
from mecheval.figures import canvas
from mecheval.figures.example import ROOM, example_figure, visible
from mecheval.figures.grammar import LARGEST, derivation_of, grammar_figure
from mecheval.figures.mechanisms import (
    ASSOCIATES,
    BOTH,
    COLUMNS,
    RETRIEVES,
    SHARES,
    Arrow,
    Spot,
    carries,
    grouped,
    mechanisms_figure,
    way,
)
from mecheval.intervene.explain import Answer, Explanation, Patched
from mecheval.intervene.finding import Finding
from mecheval.sites import Site
from mecheval.tasks import ATR, build_task
from places import site as place

NASTY = "<b>&\"'${x}\x07名"
"""A name that must stay text wherever it stands."""
INDUCTION = Finding("induction", 1, 0, "value")


def atr(**options: Any) -> ATR:
    task = build_task("atr", "laptop", **options)
    assert isinstance(task, ATR)
    return task


def shapes(chart: Any, what: str) -> list[dict[str, Any]]:
    """All rows of data that stand for this."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows if row["what"] == what]


def words(chart: Any, what: str) -> list[str]:
    return [row["text"] for row in shapes(chart, what) if "text" in row]


def strokes(chart: Any, what: str) -> list[list[tuple[float, float]]]:
    rows = sorted(shapes(chart, what), key=lambda row: (row.get("stroke", -1), row.get("order", -1)))
    lines = [row for row in rows if "stroke" in row]
    return [[(row["x"], row["y"]) for row in line] for _, line in itertools.groupby(lines, lambda row: row["stroke"])]


def run(mixer: str, finding: Finding, **columns: Any) -> dict[str, Any]:
    place = {"n_layers": 2, "d_model": 64, "seed": 0, "agreement": 1.0, "test_accuracy": 0.9}
    names = ("layer", "stored_by", "stored_at", "found_by")
    found = {"verdict": finding.label, **{name: getattr(finding, name) for name in names}}
    found["places"] = ", ".join(finding.places) or None
    return {**dict.fromkeys(SHARES, math.nan), "mixer": mixer, **place, **found, **columns}


def explained(substitute: str = "k9") -> tuple[dict[str, Any], Explanation]:
    document = {
        "symbols": ["BOS", "k1", "v1", "k2", "v2", "EOS", "k1", "v1", "EOS"], "predict_at": [6],
        "roles": {"bos": 0, "key": 1, "value": 2, "next_key": 3, "divider": 5, "query": 6},
    }  # fmt: skip
    right, wrong = (
        (Answer("v1", 0.9, True), Answer("v2", 0.1, False)),
        (Answer("v2", 0.8, False), Answer("v1", 0.01, True)),
    )
    patched = [Patched(Site(1, "input"), role, place, said)
               for role, place, said in (("key", 1, wrong), ("value", 2, right), ("query", 6, wrong))]  # fmt: skip
    return document, Explanation(
        "k1", substitute, right, wrong, (*patched, Patched(Site(1, "input"), "mine", None, ()))
    )


@cache
def charts() -> dict[str, Any]:
    name = NASTY.replace("\x07", "�")  # a grammar has no others
    grammar = {"terminals": ["a", name], "nonterminals": {"S" + name: {"rules": [["a", name, "a"]]}}}
    return {
        "grammar": grammar_figure(atr(grammar=grammar)),
        "example": example_figure(*explained(NASTY), "blocks.1.input", 2, "run " + NASTY),
        "mechanisms": mechanisms_figure(pd.DataFrame([run(NASTY, INDUCTION, share_value=0.8)])),
    }


@pytest.mark.parametrize("name", ["grammar", "example", "mechanisms"])
def test_every_drawing_is_written_in_every_form_and_names_stay_text(name: str, tmp_path: Path) -> None:
    chart = charts()[name]
    for suffix in ("svg", "png", "json"):
        figures.save(chart, tmp_path / f"drawing.{suffix}")
    svg = ElementTree.parse(tmp_path / "drawing.svg").getroot()
    texts = [text.text or "" for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert any("<b>&\"'${x}�名" in text for text in texts)  # as it is, but for what no picture can hold
    assert "<b>&\"'${x}�名" in svg.get("aria-label", "")
    wide, high = struct.unpack(">II", (tmp_path / "drawing.png").read_bytes()[16:24])
    drawn = chart.to_dict()
    [size] = drawn["vconcat"]
    assert wide >= figures.SCALE * size["width"]
    assert high >= figures.SCALE * size["height"]
    for rows in drawn["datasets"].values():
        assert all(0 <= row["x"] <= size["width"] and 0 <= row["y"] <= size["height"] for row in rows)


@pytest.mark.parametrize(
    "options", [{}, {"head": "left"}, {"query": "grandparent"}, {"query": "sibling", "queries": 2}]
)
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_the_tree_has_n_minus_1_edges_and_stands_in_document_order(number: int, options: dict[str, Any]) -> None:
    task = atr(max_length=25, **options)
    drawn, chart = derivation_of(task, number), grammar_figure(task, number)
    n = len(drawn.terminals)
    nodes = [row for row in shapes(chart, "node") if "text" in row]
    assert len(strokes(chart, "edge")) == len(drawn.edges) == n - 1
    assert [row["text"] for row in sorted(nodes, key=lambda row: row["x"])] == list(drawn.symbols[1 : n + 1])
    row = [row for row in shapes(chart, "token") if "text" in row]
    assert [each["text"] for each in row] == list(drawn.symbols)
    column = {each["x"] for each in row}
    assert {node["x"] for node in nodes} < column  # each above its token
    for (x0, y0), *_, (x1, y1) in strokes(chart, "edge"):
        assert {x0, x1} <= column
        assert y1 > y0
        assert (x1 < x0) == (task.grammar.head == "right")
    marked = [edge for edge in shapes(chart, "edge") if edge["width"] == 3 and edge["order"] == 0]
    assert len(marked) == len(drawn.asked())
    assert len(marked) in {"grandparent": {2}, "sibling": {0, 2}, "parent": {1}}[task.options.query[0]]


def test_boxes_of_one_row_do_not_overlap() -> None:
    for chart in (grammar_figure(atr(), 2), example_figure(*explained(), "blocks.1.input", 2, "")):
        boxes = [row for what in ("token", "node") for row in shapes(chart, what) if "x2" in row]
        for one, other in itertools.combinations(boxes, 2):
            across = one["x"] < other["x2"] and other["x"] < one["x2"]
            assert not (across and one["y"] < other["y2"] and other["y"] < one["y2"])


def test_rules_are_those_of_the_nonterminals_that_are_used_with_their_probabilities() -> None:
    task, number = atr(), 1
    drawn, chart = derivation_of(task, number), grammar_figure(task, number)
    owners = [name for name, rules in task.grammar.rules.items() for _ in rules]
    used = {owners[rule] for rule in drawn.rules if rule >= 0}
    assert {name for name in words(chart, "nonterminal") if name} == used
    assert set(words(chart, "owner")) == used
    expected = [" ".join([*rule.children, "[head]"]) for name in used for rule in task.grammar.rules[name]]
    assert sorted(words(chart, "rule")) == sorted(expected)
    numbers = [f"{rule.probability:.2f}" for name in used for rule in task.grammar.rules[name]]
    assert sorted(text for text in words(chart, "text") if text[:1].isdigit()) == sorted(numbers)


def test_many_rules_stand_in_columns_that_split_no_nonterminal() -> None:
    task = atr(max_length=40)
    numbers = range(200)
    number = max(numbers, key=lambda i: len({rule for rule in derivation_of(task, i).rules if rule >= 0}))
    rules = shapes(grammar_figure(task, number), "rule")
    columns = {row["x"] for row in rules}
    assert len(columns) > 1
    heads = {row["x"] for row in shapes(grammar_figure(task, number), "nonterminal") if row["text"]}
    tops = [min(row["y"] for row in rules if row["x"] == x) for x in columns]
    assert len(set(tops)) == 1
    assert len(heads) == len(columns)


def test_which_document_is_drawn() -> None:
    lengths = [len(derivation_of(atr(), i).terminals) for i in range(20)]
    first = next(i for i, n in enumerate(lengths) if 6 <= n <= 16)
    assert derivation_of(atr()).number == first
    short = atr(grammar={"terminals": 3, "nonterminals": {"S": {"rules": [["t0", "t1"]]}}})
    assert len(derivation_of(short).terminals) == 3  # there is no other
    assert derivation_of(atr(), 3, "test", 1) != derivation_of(atr(), 3, "test", 2)
    with pytest.raises(UserError, match=r"there is no document -1; they count from 0\."):
        derivation_of(atr(), -1)
    with pytest.raises(UserError, match=rf"has 5\d terminals, and trees of more than {LARGEST} cannot be read"):
        derivation_of(atr(min_length=50, max_length=59), 0)


def test_an_example_shows_what_is_read_patched_and_said() -> None:
    chart = example_figure(*explained(), "blocks.1.input", 2, "a run")
    assert words(chart, "row") == ["clean", "corrupted", "patched at key", "patched at value", "patched at query"]
    read = ["BOS", "k1", "v1", "k2", "v2", "EOS", "k1"]
    corrupted = [*read[:1], "k9", *read[2:]]
    assert words(chart, "token") == read + 4 * corrupted
    lengths = [row["x2"] - row["x"] for row in shapes(chart, "likelihood") if "x2" in row]
    unit = lengths[0] / 0.9
    expected = [0.9, 0.1, 0.8, 0.01, 0.8, 0.01, 0.9, 0.1, 0.8, 0.01]
    assert lengths == pytest.approx([max(1, p * unit) for p in expected])
    centres = [(row["x"] + row["x2"]) / 2 for row in shapes(chart, "patch")]
    place = [row["x"] for row in shapes(chart, "token") if "text" in row][:7]
    assert centres == pytest.approx([place[1], place[2], place[6]])
    said = "clean: 0.90, corrupted: 0.01, patched at key: 0.01, patched at value: 0.90, patched at query: 0.01."
    assert chart.to_dict()["description"].endswith(f"Likelihood of the right answer v1: {said}")
    with pytest.raises(UserError, match=r"nothing was patched at site 'x'\. Sites: blocks\.1\.input\."):
        example_figure(*explained(), "x", 2, "")


def test_the_dot_stands_below_in_or_above_its_layer() -> None:
    document, found = explained()
    heights = {}
    for site in ("blocks.0.input", "blocks.0.mixer.conv", "blocks.0.output", "blocks.1.input", "blocks.1.output"):
        moved = Explanation(**{**vars(found), "patched": (Patched(place(site), "key", 1, found.clean),)})
        chart = example_figure(document, moved, site, 2, "")
        [dot] = shapes(chart, "patch")
        floor = max(row["y"] for row in shapes(chart, "layer") if "y2" in row)
        heights[site] = round(floor - dot["y"], 6)
    in_order = list(heights.values())
    assert in_order == sorted(in_order)
    assert heights["blocks.0.output"] == heights["blocks.1.input"]
    assert len(set(in_order)) == 4


def test_of_a_long_document_the_surroundings_of_the_roles_are_shown() -> None:
    assert visible(7, {1, 6}) == list(range(7))
    shown = visible(40, {20, 21, 38, 39})
    assert shown.count(None) == 2
    assert len([i for i in shown if i is not None]) == ROOM
    assert {20, 21, 38, 39} < set(shown)
    assert shown[0] is None
    assert shown[-1] == 39


def test_ways_of_the_verdicts() -> None:
    shares = {**dict.fromkeys(SHARES, math.nan), "share_value": 0.9, "share_key": 0.8, "share_query": 0.7}
    value = Spot("value", 1)
    stored, retrieved = Arrow(Spot("key", 0), value, ASSOCIATES, 0.9), Arrow(value, Spot("query", 2), RETRIEVES, 0.9)
    assert way(INDUCTION, shares) == ([stored, retrieved], {value: 0.9})
    first = Arrow(Spot("key", 0), Spot("query", 1), BOTH, 0.7)
    assert way(Finding("direct_retrieval", 0, None, None), shares) == ([first], {Spot("query", 1): 0.7})
    last = Arrow(Spot("key", 1), Spot("query", 2), BOTH, 0.8)
    assert way(Finding("direct_retrieval", 1, None, None), shares) == ([last], {Spot("key", 1): 0.8})
    assert carries([last], 3) == [(Spot("key", 0), Spot("key", 1)), (Spot("query", 2), Spot("query", 3))]
    by_convolution = Finding("conv_association", 0, None, None)
    for value_share, next_share, expected in ((0.4, 0.3, 2), (0.02, 0.6, 1), (0.05, 0.04, 1), (math.nan, math.nan, 2)):
        arrows, inside = way(by_convolution, shares | {"conv_value": value_share, "conv_next_key": next_share})
        assert (len(arrows), len(inside)) == (2 * expected, expected)
        assert {arrow.end for arrow in arrows if arrow.colour == ASSOCIATES} == set(inside)
    there = {Spot("key", 1): 0.8, value: 0.9, Spot("query", 1): 0.7}
    parts: Any = ("mixed", there), ("undetermined", there), ("not_learnt", {}), ("something else", {})
    for verdict, places in parts:
        assert way(Finding(verdict), shares) == ([], places)
    assert way(Finding("induction", 1, 0, "value-1"), shares) == ([], there)
    deep = way(Finding("induction", 3, 0, "next_key"), shares)[0]
    assert carries(deep, 4) == [(Spot("next_key", 1), Spot("next_key", 3))]


def test_mixers_by_verdict_and_name_with_counts() -> None:
    direct, not_learnt = Finding("direct_retrieval", 0, None, None), Finding("not_learnt", None, None, None)
    rows = [
        run("z", INDUCTION, seed=seed, share_value=0.5 + seed / 10, test_accuracy=0.9 + seed / 50) for seed in range(3)
    ]
    rows += [run("y", direct), run("b", not_learnt), run("x", INDUCTION, share_value=1.0)]
    rows += [run("x", not_learnt, seed=seed) for seed in (1, 2)]
    frame = pd.DataFrame(rows).sample(frac=1, random_state=0)
    groups = grouped(frame)
    assert [group.mixer for group in groups] == ["x", "z", "y", "b"]
    assert groups[0].said == [
        "1 of 3 runs: induction", "layer 0 stores the key at the value, layer 1 retrieves", "test accuracy 0.900",
        "2 of 3: not learnt",
    ]  # fmt: skip
    assert groups[1].shares["share_value"] == pytest.approx(0.6)
    assert groups[1].said[2] == "test accuracy 0.900 to 0.940"
    chart = mechanisms_figure(frame)
    assert words(chart, "mixer") == ["x", "z", "y", "b"]
    assert words(chart, "share") == ["1.00", "0.60"]
    assert words(chart, "legend") == ["associates", "retrieves", "associates and retrieves at once"]
    assert len(strokes(chart, "way")) == 2 + 2 + 1
    widths = {row["width"] for row in shapes(chart, "way") if "order" in row and row["colour"] == RETRIEVES}
    assert sorted(widths) == pytest.approx([2.2, 3.0])  # stronger where more is restored


def test_numbers_of_layers_are_kept_apart() -> None:
    one = run("a", Finding("direct_retrieval", 0, None, None), n_layers=1)
    chart = mechanisms_figure(pd.DataFrame([one, run("a", INDUCTION, n_layers=3)]))
    assert words(chart, "layer") == ["layer 0", "layer 1", "layer 2", "layer 0"]


def test_the_place_is_named_where_all_runs_have_the_same() -> None:
    after, at = (Finding("conv_association", 0, places=(place,)) for place in ("next_key", "value"))
    said = [
        grouped(pd.DataFrame([run("a", one), run("a", two, seed=1)]))[0].said
        for one, two in ((after, after), (after, at))
    ]
    assert [each[0] for each in said] == ["2 of 2 runs: short convolution in layer 0"] * 2
    assert said[0][1] == "layer 0 joins key and value at the position after the value, then retrieves"
    assert said[1][1] == "layer 0 joins key and value at several positions, then retrieves"


def test_layers_are_named_where_they_are_known() -> None:
    """A pointer has two; a verdict of an earlier version may have none."""
    frame = pd.DataFrame([run("a", Finding("pointer", 1, found_by=0)), run("b", Finding("conv_association"))])
    pointer, unknown = sorted(grouped(frame), key=lambda group: group.mixer)
    assert pointer.said[:2] == ["1 of 1 run: pointer", "layer 0 finds the pair, layer 1 fetches its value"]
    assert unknown.said[0] == "1 of 1 run: short convolution"
    assert "None" not in " ".join(unknown.said)


def test_where_nothing_is_learnt_there_are_words_and_no_arrows() -> None:
    chart = mechanisms_figure(pd.DataFrame([run("a", Finding("not_learnt", None, None, None), test_accuracy=math.nan)]))
    assert words(chart, "verdict") == [
        "1 of 1 run: not learnt",
        "nothing is recalled beyond chance",
        "test accuracy –",
    ]
    assert not shapes(chart, "way") + shapes(chart, "legend") + shapes(chart, "share")
    assert "Number:" not in str(chart.to_dict()["title"])


def test_tables_that_cannot_be_drawn() -> None:
    whole = pd.DataFrame([run("a", INDUCTION)])
    with pytest.raises(UserError, match=r"the table has no column 'verdict'; it needs mixer, "):
        mechanisms_figure(whole.drop(columns="verdict"))
    with pytest.raises(UserError, match=r"there are no runs to show\."):
        mechanisms_figure(whole.iloc[:0])
    assert set(whole.columns) == set(COLUMNS)


def test_names_of_roles_do_not_touch() -> None:
    sheet = canvas.Canvas(200, 200)
    bottoms = sheet.label_roles({"value": 40.0, "next_key": 70.0, "divider": 70.0, "query": 100.0}, 0)
    [rows] = sheet.words.values()
    for one, other in itertools.combinations(rows, 2):
        apart = (canvas.breadth(one["text"], one["size"]) + canvas.breadth(other["text"], other["size"])) / 2
        assert abs(one["x"] - other["x"]) > apart or abs(one["y"] - other["y"]) >= canvas.LEADING
    assert bottoms["divider"] > bottoms["next_key"] > bottoms["value"]


def luminance(colour: str) -> float:
    light = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in light]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_can_be_read_on_everything_it_stands_on() -> None:
    drawn = [grammar_figure(atr(), 1), example_figure(*explained(), "blocks.1.input", 2, "")]
    drawn.append(mechanisms_figure(pd.DataFrame([run("a", INDUCTION, share_value=1.0)])))
    for chart in drawn:
        rows = [row for each in chart.to_dict()["datasets"].values() for row in each]
        boxes = [row for row in rows if "fill" in row]
        for text in (row for row in rows if "text" in row):
            below = [
                box["fill"] for box in boxes if box["x"] < text["x"] < box["x2"] and box["y"] < text["y"] < box["y2"]
            ]
            for ground in ["#ffffff", *below]:
                dark, light = sorted((luminance(text["colour"]), luminance(ground)))
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_drawings_do_not_wait_for_torch() -> None:
    code = "import sys; from mecheval.figures import example, grammar, by_mechanism, mechanisms\n"
    code += "assert not {'torch', 'altair', 'pandas', 'vl_convert'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
