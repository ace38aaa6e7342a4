"""Roles that a task declares under names of its own: everything that reads roles reads their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mecheval as me
from commands import Command
from intervene.post import Clerk, Post, PostOptions
from mecheval import figures
from mecheval.analysis.runs import load_run, probe, probe_otherwise, probe_states
from mecheval.errors import UserError
from mecheval.figures.by_mechanism import mechanism_rows
from mecheval.intervene import smallest_set, state_sweep
from mecheval.intervene.explain import explain
from mecheval.intervene.places import named_between, positions
from mecheval.report.documents import explored_data
from mecheval.store import RunFolder, Store
from mecheval.tasks import TASKS
from mecheval.types import NOWHERE


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS._classes, "post", Post)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    options = {"evaluate.documents": 24, "d_model": 16, "steps": 3, "interchange_every": 3}
    return me.train(me.run_config("post", "attention", "laptop", **options), tmp_path_factory.mktemp("store"))


def test_positions_follow_the_declared_meaning() -> None:
    clean = Post(PostOptions()).sample(60, "test")
    address, ask = clean.roles["address"], clean.roles["ask"]
    where = positions(clean, ["between", "question", "body", "content+1", "address-1", "ask-1", "random"])
    assert torch.equal(where["question"], ask)
    assert torch.equal(where["content+1"], clean.roles["content"] + 1)
    assert torch.equal(where["address-1"], torch.where(address[:, 0] > 0, address[:, 0] - 1, NOWHERE))
    for row in range(60):
        between = [place for place in where["between"][row].tolist() if place != NOWHERE]
        assert between == list(range(int(address[row, 1]) + 1, int(ask[row, 0])))
        drawn = int(where["random"][row])
        assert 0 <= drawn < int(ask[row, 0])
        assert drawn not in [*address[row].tolist(), int(clean.roles["content"][row])]
    assert list(named_between(clean)) == [
        "content",
        *("content+1", "content+2", "content+3", "content-1"),
        *("address+1", "address+2", "address+3"),
    ]
    with pytest.raises(UserError, match=r"unknown role 'key'.* Choices: .*address, ask, between"):
        positions(clean, ["key"])


def test_the_verdict_on_a_known_model_speaks_the_tasks_words(tmp_path: Path) -> None:
    task = Post(PostOptions())
    found = me.evaluate(Clerk(), task, n=96, compare=False, report=tmp_path / "page.html")
    assert found.verdict is not None
    finding = found.verdict.finding
    assert (finding.label, finding.stored_by, finding.layer, finding.stored_at) == ("induction", 0, 1, "content")
    assert str(finding) == "induction: layer 0 stores the address at the content, layer 1 retrieves"
    assert "positions between address and ask 1.00" in str(found.verdict)
    assert list(found.effects["role"].unique()) == ["address", "content", "ask", "random"]
    row = found.table.iloc[0]
    assert row["restored_value"] > 0.9 > row["restored_key"]
    assert "content" in (tmp_path / "page.html").read_text()


def test_a_task_without_recall_has_no_verdict_and_says_why() -> None:
    task = Post(PostOptions(recall=False))
    clean = task.sample(40, "test")
    found = me.evaluate(Clerk(), task, n=40, compare=False)
    assert str(found.verdict).startswith("undetermined: this task asks for no recall that could be named")
    assert found.effects["share"].max() > 0.9
    with pytest.raises(UserError, match="the documents of this task have no value"):
        task.corrupt(clean, kind="value")


def test_a_run_on_it_is_probed_drawn_and_explored(run: RunFolder, tmp_path: Path) -> None:
    trained = load_run(run)
    clean = trained.task.sample(6, "test")
    corrupted = trained.task.corrupt(clean)
    effects = me.interchange(trained.lm, clean, corrupted, direction="both")
    assert list(effects["role"].unique()) == ["address", "content", "ask", "random"]
    assert set(effects["corruption"]) == {"key"}
    swept = state_sweep(trained.lm, clean, corrupted)
    assert list(swept["role"].unique()) == ["address", "ask-1", "ask"]
    cells = [("blocks.1.input", role) for role in ("address", "content", "question")]
    assert smallest_set(trained.lm, clean, corrupted, cells).cells
    explained = explain(trained.lm, trained.task, clean[:1], corrupted[:1], ["blocks.1.input"], ["address", "ask"])
    assert explained.role == "address"
    assert len(explained.key.split()) == len(explained.substitute.split()) == 2
    measured = probe(run)
    probe_otherwise(run, "query", "restore")
    probe_states(run, n=8)
    figures.save(figures.heatmap(measured.effects, "post"), tmp_path / "map.svg")
    assert "address" in (tmp_path / "map.svg").read_text()
    store = Store(run.path.parent.parent)
    [explored] = explored_data(store, [run.id])
    assert explored["layout"]["roles"] == ["address", "content", "ask"]
    document = explored["documents"][0]
    assert document["alike"] == {"address": "key", "content": "value", "ask": "query"}
    assert [len(document["roles"][role]) for role in ("address", "ask")] == [2, 2]
    spans = [places for places in document["columns"] if len(places) > 1]
    assert spans == [document["roles"]["address"], document["roles"]["ask"]]
    assert document["answer_at"] == []  # the answer is not written down
    assert mechanism_rows(store, "post")["mixer"].tolist() == ["attention"]


@pytest.mark.parametrize(
    "command",
    ["sample post -n 2", "sample post --json", "intervene {run}", "intervene {run} --site state", "explain {run}",
     "draw example {run} --save {folder}/example.svg", "report --out {folder}/report.html"],
)  # fmt: skip
def test_commands(
    command: str, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.format(run=run.id, folder=tmp_path).split()
    store = [] if words[0] == "sample" else ["--store", str(run.path.parent.parent)]
    code, out, err = Command(monkeypatch, capsys)(*words, *store)
    assert code == 0, err
    assert words[0] in ("draw", "report") or "address" in out or "not learnt" in out
