from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mecheval.config import RunConfig
from mecheval.errors import UnknownName, UserError
from mecheval.figures.vegalite import text_of
from mecheval.paper.claims import all_claims
from mecheval.report import report_data, write_report
from mecheval.report.documents import explored
from mecheval.report.runs import best_runs, flat, run_frame
from mecheval.report.sections import found_studies, mixers_charts
from mecheval.store import RESULTS, Store, StoreWarning
from mecheval.store.store import Snapshot
from mecheval.studies import STUDIES
from mecheval.studies.peers import placings
from mecheval.training import train
from report.stores import EVIL, FORGED, OWN, WORSE, forge, grid_points
from studies.disguise import NAME, disguised
from training.runs import tiny


@pytest.fixture(scope="session")
def page(written: Path) -> dict[str, Any]:
    """The data that the page holds."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', written.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_snapshot_answers_as_the_store_did_when_it_was_taken(tmp_path: Path) -> None:
    store, config = Store(tmp_path), tiny()
    forge(store, config.id, config.to_dict(), config, accuracy=0.5, on_the_way=True)
    taken = Snapshot(store, ("runs", "history", "evaluations", "effects", "verdicts"))
    for table in ("runs", "history", "evaluations", "verdicts"):
        pd.testing.assert_frame_equal(getattr(taken, table)(), getattr(store, table)())
    every = store.effects()
    pd.testing.assert_frame_equal(taken.effects(), every[every["state"] != "training"].reset_index(drop=True))
    assert taken.probed == {config.id}
    assert len(taken.on_the_way([config.id])) == (every["state"] == "training").sum() > 0
    later = tiny(seed=1)
    forge(store, later.id, later.to_dict(), later, accuracy=0.5)
    assert len(store.runs()) == 2
    assert len(taken.runs()) == len(taken.rows()) == 1
    with pytest.raises(UserError, match="disabled"):
        taken.query(f"from read_csv('{tmp_path}/x.csv')")


def test_the_chance_level_of_a_task_is_also_that_of_runs_whose_older_verdict_lacks_it(tmp_path: Path) -> None:
    store, config, other = Store(tmp_path), tiny(), tiny(pairs=2)
    for each in (config, replace(config, seed=1), other):
        forge(store, each.id, each.to_dict(), each, accuracy=0.5)
    folder = store.folder(config.id)
    with folder.exclusive():
        folder.write("verdicts", [{**folder.read("verdicts")[0], "chance": 0.25}])
        folder.seal(folder.status())
    found = run_frame(store).set_index("run")["chance"]
    assert found[config.id] == found[replace(config, seed=1).id] == 0.25
    assert found.isna().sum() == 1  # another task


def test_a_damaged_file_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    store, config = Store(tmp_path), tiny()
    forge(store, config.id, config.to_dict(), config, accuracy=0.5)
    other = tiny(seed=1)
    forge(store, other.id, other.to_dict(), other, accuracy=0.5)
    store.folder(config.id).table("effects").write_bytes(b"PAR1 not really")
    with pytest.warns(StoreWarning, match=f"run {config.id} is left out: .*effects.parquet"):
        data, _ = report_data(store, "laptop")
    maps = dict(zip(data["runs"]["run"], data["runs"]["map"], strict=True))
    assert maps[config.id] is None
    assert maps[other.id] is not None


def test_studies_have_the_seeds_that_are_there(taken: Snapshot) -> None:
    [found] = found_studies(taken, "laptop")  # the run that ar_mamba_inside has is one of ar's
    assert (found.table.study.name, found.seeds) == ("ar", [0, 1])
    assert len(found.table.frame) == 2 * 28
    assert found.table.frame["status"].value_counts().to_dict() == {"missing": 48, "done": 8}


def test_a_seed_far_away_is_found_and_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (point, *_) = grid_points(seeds=(10**12,))
    forge(store, point.config.id, point.config.to_dict(), point.config, accuracy=0.5)
    for found in found_studies(Snapshot(store), "laptop"):
        assert found.seeds == [10**12]


def test_every_mixer_that_has_runs_is_in_the_summary(taken: Snapshot, page: dict[str, Any]) -> None:
    runs = page["runs"]
    named = {runs["mixer"][place] for place in page["summary"]["best"]}
    assert named == {"attention", "mamba", OWN, EVIL, None} == {*page["about"]["mixers"], None}  # one cannot be read
    best = best_runs(run_frame(taken))
    of_study = best[best["run"].isin({point.config.id for point in grid_points((0, 1))})]
    assert set(of_study["lr"]) == {3e-3}  # the better rate of every width and seed
    assert len(of_study) == 4


def test_runs_are_columns_of_one_length(page: dict[str, Any], store: Store) -> None:
    runs = page["runs"]
    n = len(store.ids())
    lengths = {name: len(column) for name, column in runs.items() if name not in ("config", "layouts", "done")}
    assert set(lengths.values()) == {n}
    assert page["about"]["runs"] == n


def test_configs_come_back(page: dict[str, Any], taken: Snapshot) -> None:
    configs = {row["run"]: row["config"] for row in taken.rows()}
    for place, run in enumerate(page["runs"]["run"]):
        base, apart = page["runs"]["config"]["runs"][place]
        assert {**page["runs"]["config"]["bases"][base], **apart} == flat(configs[run] or {})


def test_maps_have_a_number_for_each_site_and_role(page: dict[str, Any], store: Store) -> None:
    place = page["runs"]["run"].index(FORGED[0])
    layout, is_share, original, corrupted, values = page["runs"]["map"][place]
    sites, roles = page["runs"]["layouts"][layout]["sites"], page["runs"]["layouts"][layout]["roles"]
    assert (is_share, original, corrupted) == (1, 0.9, 0.1)
    assert roles == ["key", "value", "next_key", "query"]
    shown = {
        (tuple(site), role): values[i * len(roles) + j] for i, site in enumerate(sites) for j, role in enumerate(roles)
    }
    assert shown[(1, "input"), "value"] == 1
    assert shown[(0, "mixer.conv"), "query"] == 0.25
    assert page["runs"]["restored"][place] == ["value", 1]


def test_the_page_looks_into_runs_with_weights_and_says_why_not_into_others(page: dict[str, Any]) -> None:
    loaded = [run for run in page["documents"] if "documents" in run]
    problems = {run["run"]: run["problem"] for run in page["documents"] if "problem" in run}
    assert len(loaded) == 2
    assert "no last weights" in problems[FORGED[0]]
    for run in loaded:
        cells = [len(run["layout"]["sites"]) * len(shown["columns"]) for shown in run["documents"]]
        assert cells == [len(shown["values"]) for shown in run["documents"]]
        assert cells == [len(shown["patched"]) for shown in run["documents"]]
    handmade = next(run for run in loaded if run["documents"][0]["tree"] is None)
    shown = handmade["documents"][0]
    assert shown["columns"] == [[place] for place in range(shown["roles"]["query"] + 1)]
    layer_1 = handmade["layout"]["sites"].index([1, "input"]) * len(shown["columns"])
    at = {role: shown["values"][layer_1 + shown["roles"][role]] for role in ("key", "value")}
    assert at["value"] > 0.9 > 0.1 > at["key"]  # induction, as its weights were set
    for shares in shown["reads"]:
        assert [sum(row) for row in shares] == pytest.approx([100] * len(shown["columns"]), abs=2)  # rounded
    assert shown["reads"][1][shown["roles"]["query"]][shown["roles"]["value"]] > 90
    name, p = shown["answers"][0][:2]
    assert (handmade["names"][name], p) == (shown["answer"], pytest.approx(1000, abs=100))
    tree = next(run for run in loaded if run["documents"][0]["tree"] is not None)["documents"][0]
    assert tree["tree"]["parents"][tree["roles"]["key"]] == tree["roles"]["value"]


def test_explored_runs_are_spread_and_those_that_learnt_come_first() -> None:
    rows = [(f"{task}{mixer}{d}", task, mixer, label) for task in ("ar", "atr") for mixer in ("a", "b") for d, label in
            enumerate(("not_learnt", "induction", "induction"))]  # fmt: skip
    best = pd.DataFrame(rows, columns=["run", "task", "mixer", "label"]).assign(status="done")
    assert explored(best, 4) == ["ara1", "arb1", "atra1", "atrb1"]
    assert explored(best, 9)[-1] == "ara0"
    assert len(explored(best)) == 12
    assert explored(best.assign(status="failed")) == []


def test_mechanisms_over_time_are_of_runs_that_have_them(page: dict[str, Any]) -> None:
    assert (page["training"]["runs"], page["training"]["shown"]) == (5, 5)
    assert [chip["axis"] for chip in page["training"]["chips"]] == ["mixer", "d_model"]


def test_the_comparison_names_the_scale_and_judges_claims(page: dict[str, Any]) -> None:
    study, *_ = page["comparison"]["studies"]
    assert study["study"] == "ar"
    claims, counted = page["comparison"]["claims"], page["comparison"]["counted"]
    outcomes = Counter(claim["outcome"] for claim in claims)
    assert "not tested" not in outcomes
    said = {word: int(number) for number, word in re.findall(r"(\d+) (\w+ ?\w+)(?=[,.])", counted.partition(": ")[2])}
    assert {outcome: said.get(outcome, 0) for outcome in outcomes} == dict(outcomes)
    assert sum(said.values()) == len(all_claims())  # as many as the command judges
    assert None not in study["cells"]["ours"]
    assert page["about"]["scale"] == "laptop"


def test_texts_stay_inside_their_elements(written: Path) -> None:
    text = written.read_text()
    assert EVIL not in text
    assert WORSE not in text
    assert "<title>Our &lt;runs&gt; &amp; more</title>" in text
    assert "default-src 'none'" in text
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text[: text.index('id="data"')])


def test_a_store_without_studies_still_has_a_report(tmp_path: Path) -> None:
    store, config = Store(tmp_path / "store"), tiny()
    forge(store, config.id, config.to_dict(), config, accuracy=0.5)
    data, specs = report_data(store, "laptop")
    assert text_of([data, specs]) == text_of(list(report_data(store, "laptop")))  # the same store gives the same page
    assert data["studies"] == data["comparison"]["studies"] == []
    assert (data["training"]["runs"], len(specs)) == (0, 2)
    assert data["summary"]["findings"] == [{"task": "AR", "text": "Attention recalls by induction at this small size."}]


def test_the_page_speaks_of_the_best_run_of_each_mixer_and_marks_custom_ones(page: dict[str, Any]) -> None:
    texts = {found["task"]: found["text"] for found in page["summary"]["findings"]}
    assert texts["AR"] == "All four mixers recall at this small size, all by induction."
    runs = page["runs"]
    assert {mixer for mixer, own in zip(runs["mixer"], runs["own"], strict=True) if own} == {OWN}
    first = page["summary"]["best"][0]
    assert runs["mixer"][first] == OWN  # a reader's own mixer stands first
    assert all("missing" not in study["table"]["status"] for study in page["studies"])


def test_mistakes_are_one_line(tmp_path: Path, store: Store) -> None:
    with pytest.raises(UserError, match="there is no store"):
        write_report(Store(tmp_path / "none"), tmp_path / "x.html")
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    with pytest.raises(UserError, match="has no runs"):
        write_report(Store(tmp_path / "empty"), tmp_path / "x.html")
    with pytest.raises(UserError, match=r"\.html or \.htm"):
        write_report(store, tmp_path / "x.pdf")
    with pytest.raises(UserError, match="no such folder"):
        write_report(store, tmp_path / "gone" / "x.html")
    with pytest.raises(UnknownName, match="laptop, paper"):
        write_report(store, tmp_path / "x.html", scale="huge")
    assert list(tmp_path.glob("*.html")) == []


def test_a_study_whose_runs_belong_to_others_is_not_shown(tmp_path: Path) -> None:
    store = Store(tmp_path)
    shared = next(point for point in STUDIES["ar"].points("laptop") if point.axes["d_model"] == 128)
    one_layer = next(point for point in STUDIES["one_layer"].points("laptop") if point.axes["n_layers"] == 1)
    put(store, shared.config)
    assert [found.table.study.name for found in found_studies(store, "laptop")] == ["ar"]
    put(store, one_layer.config)
    put(store, replace(shared.config, seed=1))
    found = found_studies(store, "laptop")
    assert [(each.table.study.name, each.seeds) for each in found] == [("ar", [0, 1]), ("one_layer", [0])]


def test_runs_without_interventions_make_a_report_too(tmp_path: Path) -> None:
    train(tiny(steps=2), tmp_path / "store")
    data, _ = report_data(Store(tmp_path / "store"), "laptop")
    assert data["runs"]["map"] == [None]


def put(store: Store, config: RunConfig) -> None:
    folder = store.folder(config.id)
    with folder.exclusive():
        folder.set_status(status="running", task=config.task.name, mixer=config.mixer.name, config=config.to_dict())


def test_a_custom_mixer_at_the_papers_size_opens_the_page(tmp_path: Path) -> None:
    store = disguised(tmp_path, "ar", "based", (3e-3,))
    [place] = placings(store)
    data, specs = report_data(store, "paper")
    [found] = data["summary"]["findings"]
    assert found["text"] == place.sentence(NAME)
    assert found["rows"] == place.cells()
    assert found["own"] == [int(own) for own in place.frame["own"]]
    drawn = text_of([specs[number] for number in data["summary"]["charts"]])
    assert len(data["summary"]["charts"]) == 2
    assert "Mine" in drawn
    assert "delta_net" in drawn, "the picture has the published mixers, too"


def test_all_mixers_are_drawn_where_two_have_runs_of_both_tasks(tmp_path: Path) -> None:
    [spec] = mixers_charts(Store(RESULTS), "paper")
    names = {row.get("name") for rows in spec["datasets"].values() for row in rows}
    assert {"attention", "Mamba", "Hyena"} <= names
    assert mixers_charts(Store(tmp_path), "laptop") == []
