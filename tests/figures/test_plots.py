"""Tables of effects, verdicts and evaluations draw themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mecheval as me
from mecheval.errors import UserError
from mecheval.evaluation.result import COLUMNS, Evaluation
from mecheval.intervene import Verdict
from mecheval.model.handmade import handmade

TASK = me.build_task("ar", pairs=4, keys=16, values=16)


@pytest.fixture(scope="module")
def effects() -> pd.DataFrame:
    clean = TASK.sample(64, "test")
    return me.interchange(handmade("induction", TASK), clean, TASK.corrupt(clean))


@pytest.fixture(scope="module")
def found() -> Verdict:
    clean = TASK.sample(64, "test")
    return me.verdict(handmade("induction", TASK), clean, TASK.corrupt(clean))


def rows(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for part in spec["datasets"].values() for row in part]


def test_effects_are_a_plain_table(effects: pd.DataFrame) -> None:
    assert type(effects) is pd.DataFrame
    assert not effects.attrs
    chosen = effects[effects["role"].isin(["key", "value"])]
    assert {row["role"] for row in rows(me.heatmap(chosen).to_dict())} == {"key", "value"}


def test_what_is_no_table_of_effects_is_refused(effects: pd.DataFrame) -> None:
    with pytest.raises(UserError, match=r"heatmap: this is no table of effects; it lacks role, share\."):
        me.heatmap(effects.drop(columns=["role", "share"]))


def test_paths_have_a_panel_for_each_receiver() -> None:
    clean, receivers = TASK.sample(8, "test"), ["blocks.1.mixer.q", "blocks.1.mixer.k"]
    paths = me.path(
        handmade("induction", TASK), clean, TASK.corrupt(clean), ["blocks.0.mixer.output"], receivers, ["key", "value"]
    )
    chart = me.heatmap(paths)
    panels = {part["title"]["text"]: chart.spec["datasets"][part["data"]["name"]] for part in chart.spec["vconcat"]}
    assert list(panels) == [f"layer 0 → {receiver}" for receiver in receivers]
    cells = {(name, row["role"]): round(row["share"], 3) for name, rows in panels.items() for row in rows}
    assert [cell for cell, share in cells.items() if share] == [("layer 0 → blocks.1.mixer.k", "value")]
    assert "of blocks.0.mixer.output at value through blocks.1.mixer.k." in chart.description


def test_ablations_draw_the_drop() -> None:
    from mecheval.intervene import Zero

    drops = me.ablate(handmade("induction", TASK), TASK.sample(8, "test"), Zero(), ["blocks.1.input"])
    assert "drop of the likelihood" in me.heatmap(drops).description


def test_a_verdict_draws_its_shares_with_intervals(found: Verdict) -> None:
    chart = found.plot()
    assert chart.description.startswith(f"{found.finding}. Shares with intervals")
    drawn = {(row["role"], row["kind"]): (row["low"], row["share"], row["high"]) for row in rows(chart.to_dict())}
    table = found.shares.set_index(["role", "corruption", "direction"])[["low", "share", "high"]]
    assert len(drawn) == len(table)
    assert drawn["value", "key: restored"] == pytest.approx(tuple(table.loc["value", "key", "restore"]))
    assert drawn["between", "key: destroyed"] == pytest.approx(tuple(table.loc["between", "key", "destroy"]))
    assert ">between<" in chart.svg()


def test_a_verdict_without_shares_says_so() -> None:
    clean = TASK.sample(64, "test")
    unlearnt = me.verdict(handmade("guesser", TASK), clean, TASK.corrupt(clean))
    with pytest.raises(UserError, match="looks at no share that could be drawn: not learnt"):
        unlearnt.plot()


def test_an_evaluation_draws_its_effects_and_means_over_seeds(effects: pd.DataFrame, found: Verdict) -> None:
    one = Evaluation("mine on ar", "mine", pd.DataFrame(columns=list(COLUMNS)), found, effects)
    assert one.plot().to_dict() == me.heatmap(effects, "mine on ar").to_dict()
    twice = pd.concat([effects.assign(seed=0), effects.assign(seed=1, share=effects["share"] + 0.5)])
    both = Evaluation("mine on ar", "mine", pd.DataFrame(columns=list(COLUMNS)), found, twice)
    [value] = [row for row in rows(both.plot().to_dict()) if (row["site"], row["role"]) == ("blocks.1.input", "value")]
    assert value["share"] == pytest.approx(1.25, abs=1e-3)


def test_a_chart_saves_itself_and_texts_cannot_leave_its_page(
    effects: pd.DataFrame, tmp_path: Path, browser: Any
) -> None:
    chart = me.heatmap(effects, "</script><script>document.title = 'broken'</script> & <b>")
    chart.save(tmp_path / "map.json")
    assert json.loads((tmp_path / "map.json").read_text()) == chart.to_dict()
    chart.save(tmp_path / "map.html")
    page = browser.new_page()
    try:
        page.goto((tmp_path / "map.html").as_uri())
        page.wait_for_selector("#chart svg")
        assert page.title() == "</script><script>document.title = 'broken'</script> & <b>"
        assert "mixer.input" in page.inner_text("#chart")
    finally:
        page.close()
