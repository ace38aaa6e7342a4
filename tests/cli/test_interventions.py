from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor

import mecheval as me
from commands import Command
from mecheval import figures
from mecheval.analysis import score
from mecheval.analysis.weights import weights_file
from mecheval.config import RunConfig
from mecheval.intervene.edits import EDITS
from mecheval.model.handmade import handmade
from mecheval.store import Store
from mecheval.training.state import evaluation_set
from mecheval.types import ALL_ROLES
from training.runs import tiny

DOCUMENTS = 16
VERDICT = "Verdict: induction: layer 0 stores the key at the value, layer 1 retrieves"


@pytest.fixture
def store(tmp_path: Path) -> list[str]:
    """A store with one finished run, whose model does induction because its weights were set by hand."""
    config = tiny(d_model=48, n_layers=2, bias=True)
    task = config.build_task()
    lm = handmade("induction", task, d_model=48)
    folder = Store(tmp_path / "store").folder(config.id)
    scores = score(lm, evaluation_set(config, task, "test"))
    with folder.exclusive():
        folder.write_files({"config.yaml": config.to_yaml().encode()})
        folder.write_files({"weights/last.safetensors": weights_file(config, "last", 60, lm.state_dict())})
        folder.write("scores", scores.rows("last", 60, "test"))
        folder.set_status(status="done", task="ar", mixer="attention", step=60, steps=60, config=config.to_dict())
    return ["--store", str(tmp_path / "store")]


def run_of(store: list[str]) -> str:
    [run] = Store(store[1]).ids()
    return run


def test_the_map_of_heads_is_shown_and_stored_beside_the_others(command: Command, store: list[str]) -> None:
    data = json.loads(command("intervene", run_of(store), "--sites", "heads", "--json", *store)[1])
    shares = {(row["site"], row["role"]): row["share"] for row in data["effects"]}
    assert {site for site, _ in shares} == {"blocks.0.mixer.heads.0", "blocks.1.mixer.heads.0"}
    assert shares["blocks.0.mixer.heads.0", "value"] == pytest.approx(1, abs=0.01)
    assert shares["blocks.1.mixer.heads.0", "query"] == pytest.approx(1, abs=0.01)
    assert "verdict" not in data
    folder = Store(store[1]).folder(run_of(store))
    heads = folder.read("effects")
    assert {(row["site"], row["role"]): row["share"] for row in heads} == shares
    assert {row["kind"] for row in heads} == {"head"}
    command("intervene", run_of(store), *store)
    whole = [row for row in folder.read("effects") if row["kind"] != "head"]
    assert whole
    assert [row for row in folder.read("effects") if row["kind"] == "head"] == heads
    command("intervene", run_of(store), "--sites", "heads", *store)
    assert [row for row in folder.read("effects") if row["kind"] != "head"] == whole
    query = "select site, block, part, kind, role, share, restored from effects where kind = 'head'"
    chart = me.heatmap(Store(store[1]).query(query))
    assert "2 sites by depth" in chart.description


def test_a_run_is_judged_again_by_another_rule_without_its_weights(command: Command, store: list[str]) -> None:
    run = run_of(store)
    code, _, err = command("verdict", run, *store)
    assert (code, err.count("\n")) == (2, 1)
    assert f"`mecheval intervene {run}` measures it" in err
    command("intervene", run, *store)
    before = {path.name: path.read_bytes() for path in Store(store[1]).folder(run).path.glob("*.*")}
    (Store(store[1]).folder(run).weights / "last.safetensors").unlink()
    code, out, _ = command("verdict", run, *store)
    assert code == 0
    assert VERDICT in out
    out = command("verdict", run, "--documents", str(DOCUMENTS + 1), *store)[1]
    assert "last state, test, with documents 17" in out
    assert "Verdict: undetermined: a verdict needs 17 documents (got 16)" in out
    data = json.loads(command("verdict", run, "--trace", "0", "--json", *store)[1])
    assert data["rule"] == {"trace": 0}
    assert data["verdict"]["label"] == "mixed"  # every place takes part
    assert {path.name: path.read_bytes() for path in Store(store[1]).folder(run).path.glob("*.*")} == before
    assert command("verdict", run, "--trace", "2", *store)[0] == 2


def test_the_map_and_the_verdict_of_a_run(command: Command, store: list[str]) -> None:
    run = run_of(store)
    code, out, err = command("intervene", run[:5], *store)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "ar · attention · d 48 · lr 0.003 · seed 0"
    assert lines[1] == f"run {run}, last state, test: accuracy 1.000, likelihood 0.993"
    assert max(map(len, lines)) <= 80
    cells = {}
    for line in lines[: lines.index(VERDICT)]:
        if line.startswith("layer "):
            layer = line.strip()
        elif line.startswith(" ") and re.search(r"\d\.\d\d ", line):
            name, *numbers = line.split()
            cells[layer, name] = dict(zip(ALL_ROLES, numbers, strict=True))
    assert len(cells) == 12
    assert (cells["layer 0", "input"]["key"], cells["layer 0", "input"]["value"]) == ("1.00", "0.00")
    assert (cells["layer 1", "input"]["key"], cells["layer 1", "input"]["value"]) == ("0.00", "1.00")
    assert (cells["layer 1", "output"]["query"], cells["layer 1", "output"]["value"]) == ("1.00", "0.00")
    assert re.fullmatch(rf"154 interventions on {DOCUMENTS} documents took \d+\.\d s\n", err)
    assert Store(store[1]).verdicts()["label"].tolist() == ["induction"]
    chart = figures.heatmap(Store(store[1]).effects(), "from the store").to_dict()
    assert chart["description"].startswith("from the store. Heat map of the restored share: 22 sites by depth")


def test_a_new_edit_is_one_class_and_goes_through_command_store_and_map(
    command: Command, store: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class Scale:
        factor: float

        def __call__(self, x: Tensor) -> Tensor:
            return self.factor * x

    monkeypatch.setitem(EDITS._classes, "scale", Scale)
    run, picture = run_of(store), tmp_path / "map.json"
    code, out, err = command("intervene", run, "--edit", "scale=0", "--save", str(picture), *store)
    assert (code, f"wrote {picture}" in err) == (0, True), err
    assert f"run {run}, last state, test, edit scale=0" in out
    assert "Verdict" not in out
    assert "Heat map of the drop of the likelihood: 12 sites" in picture.read_text()
    for words in (["--edit", "zero"], ["--edit", "zero", "--json"], ["--edit", "mean", "-n", "4"]):
        assert command("intervene", run, *words, *store)[0] == 0
    kept = Store(store[1]).ablations()
    assert kept.groupby("edit").size().to_dict() == {"scale=0": 154, "zero": 154}  # each once; -n is not kept
    drops = kept.pivot_table(index=["site", "role"], columns="edit", values="drop")
    assert drops["scale=0"].tolist() == drops["zero"].tolist()
    assert drops.loc[("blocks.1.input", "query"), "zero"] > 0.5
    assert Store(store[1]).query("select max(drop) as most from ablations")["most"][0] == pytest.approx(
        drops.max().max()
    )
    assert Store(store[1]).folder(run).problems() == []
    for edit, message in (
        ("other", "unknown edit 'other'. Choices: mean, noise, scale, zero."),
        ("zero=1", "edit 'zero=1' does not have the numbers that it needs; write zero."),
        ("noise", "edit 'noise' does not have the numbers that it needs; write noise=<std>."),
        ("noise=nan", "edit 'noise=nan' does not have the numbers that it needs; write noise=<std>."),
    ):
        code, _, err = command("intervene", run, "--edit", edit, *store)
        assert (code, message in err) == (2, True), err


def test_the_same_for_machines_and_as_a_picture(command: Command, store: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "map.json"
    words = ["intervene", run_of(store), "-n", "17", "--json", "--save", str(picture), *store]
    code, out, err = command(*words)
    assert code == 0
    assert f"wrote {picture}" in err
    data = json.loads(out)
    assert (data["title"], data["state"], data["split"]) == (
        "ar · attention · d 48 · lr 0.003 · seed 0",
        "last",
        "test",
    )
    assert len(data["effects"]) == 12 * len(ALL_ROLES)
    share = {(row["site"], row["role"]): row["share"] for row in data["effects"]}
    assert share["blocks.1.input", "value"] == pytest.approx(1, abs=0.02)
    assert {row["n"] for row in data["effects"] if row["role"] == "key"} == {17}
    verdict = data["verdict"]
    assert (verdict["label"], verdict["stored_by"], verdict["layer"]) == ("induction", 0, 1)
    assert verdict["places"] == ["value"]
    assert "value 1.00 [" in verdict["evidence"][2]
    assert {"site", "role", "corruption", "direction", "share", "low", "high"} == set(verdict["shares"][0])
    chart = json.loads(picture.read_text())
    assert chart["title"]["text"] == [f"{data['title']} ({data['run']}, last state, test)"]
    assert sum(map(len, chart["datasets"].values())) == len(data["effects"])
    everything = json.loads(command(*words[:5], "--sites", "all", *store)[1])
    assert len(everything["effects"]) == 22 * len(ALL_ROLES)


def test_one_document_explained(command: Command, store: list[str]) -> None:
    run = run_of(store)
    config = RunConfig.load(Store(store[1]).folder(run).path / "config.yaml")
    document = config.build_task().sample(DOCUMENTS, "test", config.evaluate.seed)[3:4]
    answer = config.build_task().symbol(int(document.answers))
    out = command.prints("explain", run, "--document", "3", "--site", "blocks.1.input", "--top", "1", *store)
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[4].startswith("3: BOS k")
    assert lines[8] == f"      clean: {answer} 0.99 ✓"
    head = lines.index("layer 1") - 1
    assert re.findall(r"(\w+) @\d+", lines[head]) == ["key", "value", "next_key", "query"]
    cells = re.findall(r"(\w+ \d\.\d\d)", lines[head + 2])
    assert [cell == f"{answer} 0.99" for cell in cells] == [False, True, False, False]  # the value alone restores it

    words = ["explain", run, "--document", "3", "--roles", "bos,value", "--json", *store]
    data = json.loads(command.prints(*words))
    assert data["document"]["index"] == 3
    assert data["document"]["tokens"] == document.tokens[0].tolist()
    assert (data["key"] == data["substitute"], data["clean"][0]["symbol"]) == (False, answer)
    assert {each["role"] for each in data["patched"]} == {"bos", "value"}
    ends = ["blocks.0.input", "blocks.0.output", "blocks.1.input", "blocks.1.output"]
    assert list(dict.fromkeys(each["site"] for each in data["patched"])) == ends


def test_a_run_that_learnt_nothing(command: Command, tmp_path: Path) -> None:
    folder = me.train(tiny(steps=1), tmp_path / "store")
    code, out, _ = command("intervene", folder.id, "--state", "best", "--store", str(tmp_path / "store"))
    assert code == 0
    assert "The task is not learnt" in out
    assert "Verdict: not learnt: a likelihood of 0.0" in out
    data = json.loads(command("intervene", folder.id, "--json", "--store", str(tmp_path / "store"))[1])
    assert {row["share"] for row in data["effects"]} == {None}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["intervene", "zzz"], "no run starts with 'zzz'. There are: RUN."),
        (["intervene", "RUN", "--state", "lst"], "unknown state 'lst'. Did you mean 'last'? Choices: best, last."),
        (["intervene", "RUN", "--state", "best"], "run RUN has no best weights; it has: last."),
        (
            ["intervene", "RUN", "--split", "tset"],
            "unknown split 'tset'. Did you mean 'test'? Choices: dev, test, train.",
        ),
        (
            ["intervene", "RUN", "--sites", "block"],
            "unknown choice of sites 'block'. Did you mean 'blocks'? Choices: all, blocks, heads.",
        ),
        (["intervene", "RUN", "-n", "0"], "-n: the number of documents must be positive (got 0)."),
        (
            ["intervene", "RUN", "--save", "map.gif"],
            "cannot write a figure as 'map.gif'; choose .html, .json, .pdf, .png, .svg at the end.",
        ),
        (["explain", "zzz"], "no run starts with 'zzz'. There are: RUN."),
        (["explore", ".", "--state", "best"], "--state is for runs; a checkpoint on disk has one state."),
        (["explore", "RUN", "--document", "16"], "there is no document 16; the run is evaluated on documents 0 to 15."),
        (["intervene", "RUN", "--sites", "heads", "--edit", "zero"], "--edit is about whole sites; leave out --sites"),
        (["explain", "RUN", "--document", "16"], "there is no document 16; the run is evaluated on documents 0 to 15."),
        (["explain", "RUN", "--document", "-1"], "there is no document -1; the run is evaluated on documents 0 to 15."),
        (["explain", "RUN", "--state", "first"], "unknown state 'first'."),
        (["explain", "RUN", "--split", "tset"], "unknown split 'tset'."),
        (
            ["explain", "RUN", "--site", "blocks.1.inptu"],
            "unknown site 'blocks.1.inptu'. Did you mean 'blocks.1.input'?",
        ),
        (["explain", "RUN", "--roles", "key,vlaue"], "unknown role 'vlaue'. Did you mean 'value'?"),
        (["explain", "RUN", "--top", "0"], "explain: top must be positive (got 0)."),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, command: Command, store: list[str]) -> None:
    run = run_of(store)
    code, out, err = command(*(word.replace("RUN", run) for word in words), *store)
    assert (code, out) == (2, "")
    assert err.startswith(f"mecheval: {message.replace('RUN', run)}")
    assert err.count("\n") == 1


def test_a_run_that_is_not_finished(command: Command, tmp_path: Path) -> None:
    config = tiny()
    folder = Store(tmp_path).folder(config.id)
    with folder.exclusive():
        folder.write_files({"config.yaml": config.to_yaml().encode()})
        folder.set_status(status="interrupted")
    for name in ("intervene", "explain"):
        code, out, err = command(name, config.id, "--store", str(tmp_path))
        assert (code, out) == (2, "")
        assert err == f"mecheval: run {config.id} has no last weights; its status is interrupted.\n"
