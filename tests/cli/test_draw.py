from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commands import Command
from mecheval.analysis.runs import probe
from mecheval.analysis.weights import weights_file
from mecheval.cli import drawings  # noqa: F401 (it adds its commands)
from mecheval.errors import UserError
from mecheval.figures import vegalite
from mecheval.figures.by_mechanism import mechanism_rows
from mecheval.figures.reads import reads as reads_figure
from mecheval.model.handmade import handmade
from mecheval.store import Store
from mecheval.store.schema import EFFECTS
from training.runs import tiny

PLACE = {"state": "last", "step": 60, "split": "test"}
INDUCTION = {"label": "induction", "layer": 1, "stored_by": 0, "stored_at": "value"}
DIRECT = {"label": "direct_retrieval", "layer": 0, "stored_by": None, "stored_at": None}


def write(path: Path, finding: dict[str, Any] | None, shares: dict[tuple[str, str], float], accuracy: float,
          likelihood: float = 0.5, **options: Any) -> str:  # fmt: skip
    """A run that says it was trained and found to be so."""
    config = tiny(**options)
    folder = Store(path).folder(config.id)
    numbers = {column.name: 0.5 for column in EFFECTS.columns if column.type == "DOUBLE"}
    effects = [
        {**PLACE, **numbers, "site": site, "role": role, "share": share, "n": 8}
        for (site, role), share in shares.items()
    ]
    with folder.exclusive():
        folder.write_files({"config.yaml": config.to_yaml().encode()})
        folder.write("effects", effects)
        told = {"agreement": 1.0, "summary": "", "evidence": ""}
        folder.write("verdicts", [{**PLACE, **finding, **told}] if finding else [])
        folder.set_status(
            status="done", task=config.task.name, mixer=config.mixer.name, d_model=config.model.d_model,
            n_layers=config.model.n_layers, lr=config.optimiser.lr, seed=config.seed, dev_accuracy=accuracy,
            dev_likelihood=likelihood, test_accuracy=accuracy, config=config.to_dict(),
        )  # fmt: skip
    return config.id


def trained(path: Path) -> str:
    """A run whose model does induction because its weights were set by hand, with its verdict."""
    config = tiny(d_model=48, n_layers=2, bias=True)
    folder = Store(path).folder(config.id)
    lm = handmade("induction", config.build_task(), d_model=48)
    with folder.exclusive():
        folder.write_files({"config.yaml": config.to_yaml().encode()})
        folder.write_files({"weights/last.safetensors": weights_file(config, "last", 60, lm.state_dict())})
        folder.set_status(
            status="done", task="ar", mixer="attention", d_model=48, n_layers=2, lr=0.003, seed=0, test_accuracy=1.0,
            config=config.to_dict(),
        )  # fmt: skip
    probe(folder)
    return config.id


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store with that run, which no test may change, and the id of the run."""
    path = tmp_path_factory.mktemp("draw") / "store"
    return path, trained(path)


def texts(path: Path, what: str) -> list[str]:
    """Words that stand for this, from top to bottom and from left to right."""
    rows = [row for rows in json.loads(path.read_text())["datasets"].values() for row in rows]
    rows.sort(key=lambda row: (row["y"], row["x"]))
    return [row["text"] for row in rows if row["what"] == what and "text" in row]


def test_a_grammar(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("draw", "grammar", "--preset", "laptop") == (0, "wrote grammar.svg\n", "")
    assert "<svg " in (tmp_path / "grammar.svg").read_text()
    words = ["--document", "3", "--seed", "2", "--split", "dev", "--max-rhs", "3", "--save", "tree.json"]
    assert command.prints("draw", "grammar", *words) == "wrote tree.json\n"
    sample = json.loads(
        command("sample", "atr", "-n", "4", "--seed", "2", "--split", "dev", "--max-rhs", "3", "--json")[1]
    )
    assert texts(tmp_path / "tree.json", "token") == sample["documents"][3]["symbols"]


def test_an_example(command: Command, shared: tuple[Path, str], tmp_path: Path) -> None:
    (store, run), picture = shared, tmp_path / "example.json"
    code, out, _ = command("draw", "example", run[:6], "--document", "3", "--save", str(picture), "--store", str(store))
    assert (code, out) == (0, f"wrote {picture}\n")
    words = ["--document", "3", "--site", "blocks.1.input", "--json", "--store", str(store)]
    data = json.loads(command("explain", run, *words)[1])
    read = data["document"]["symbols"][: data["document"]["predict_at"][0] + 1]
    assert texts(picture, "token")[: len(read)] == read
    title = json.loads(picture.read_text())["title"]
    assert title["text"] == ["ar · attention · d 48 · lr 0.003 · seed 0 · document 3 (test)"]
    likelihoods = texts(picture, "likelihood")
    assert likelihoods[:3] == [f"{each['p']:.2f}" for each in data["clean"]]


def test_what_layers_read(command: Command, shared: tuple[Path, str], tmp_path: Path) -> None:
    path, run = shared
    picture = tmp_path / "inside.json"
    code, out, _ = command("draw", "inside", run, "--store", str(path), "--save", str(picture))
    assert code == 0
    rows = {line.split()[0]: [float(share) for share in line.split()[1:]] for line in out.splitlines()[-2:]}
    assert list(rows) == ["0", "1"]
    assert rows["1"][3] > 0.9  # the value: the model does induction
    drawn = json.loads(picture.read_text())
    assert len(drawn["hconcat"]) == 2
    assert "layer 1 reads most from" in drawn["description"]


def test_a_ladder_of_difficulty(command: Command, shared: tuple[Path, str], tmp_path: Path) -> None:
    path, run = shared
    picture = tmp_path / "ladder.json"
    where = ["--store", str(path), "--save", str(picture)]
    code, out, _ = command("draw", "ladder", run[:6], run, "--by", "pairs", "--documents", "32", *where)
    assert (code, out) == (0, f"wrote {picture}\n")
    (rows,) = json.loads(picture.read_text())["datasets"].values()
    assert [(row["n"], row["accuracy"], row["high"]) for row in rows] == [(32, 1.0, 1.0)]  # the run once, by any name
    assert 0.8 < rows[0]["low"] < 1
    code, _, err = command("draw", "ladder", run, "--by", "size", *where)
    assert code == 2
    assert "unknown fact of ar 'size'. Choices: depth, distance, eligible, pairs." in err


def test_pairs_that_a_state_holds_are_drawn_below_it() -> None:
    pairs = pd.DataFrame({"layer": 0, "position": [0, 1, 2, 0, 1, 2], "pair": [0, 0, 0, 1, 1, 1],
                          "accuracy": [0.2, 1, 1, 0.2, 0.3, 1], "n": 9})  # fmt: skip
    chart = reads_figure(np.stack([np.eye(3)] * 2), ["a", "b", "c"], {"query": 2}, "title", pairs=pairs)
    rows = [row for rows in chart.spec["datasets"].values() for row in rows if "accuracy" in row]
    assert {(row["pair"], row["s"]) for row in rows if row["accuracy"] == 1} == {
        ("pair 1", 1),
        ("pair 1", 2),
        ("pair 2", 2),
    }
    assert "layer 1 has no state as a tensor" in chart.svg()


def test_tokens_of_any_name_are_labels_not_expressions() -> None:
    symbols = ["'] + alert(1) + ['", "a\\", "\n"]
    chart = reads_figure(np.eye(3)[None], symbols, {"query": 2}, "title")
    assert "alert" in chart.svg()
    norms = np.array([[1.0, 2.0, 4.0], [np.nan] * 3])
    both = reads_figure(np.stack([np.eye(3)] * 2), symbols, {"query": 2}, "title", norms, norms / 2)
    assert "alert" in both.svg()
    rows = [row for rows in both.spec["datasets"].values() for row in rows if "norm" in row]
    assert [(row["s"], row["norm"], row["change"]) for row in rows] == [(0, 1, 0.5), (1, 2, 1), (2, 4, 2)]
    assert "layer 1 has no state as a tensor" in both.svg()
    with pytest.raises(UserError, match="at most 80 tokens"):
        reads_figure(np.zeros((1, 81, 81)), ["x"] * 81, {}, "title")


def test_the_mechanisms_of_a_store(command: Command, shared: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(shared[0], tmp_path, dirs_exist_ok=True)
    write(tmp_path, DIRECT, {("blocks.1.input", "query"): 0.75}, 0.9, mixer="delta_net")
    picture = tmp_path / "found.json"
    code, out, _ = command("draw", "mechanisms", "--store", str(tmp_path), "--save", str(picture))
    assert (code, out) == (0, f"wrote {picture}\n")
    assert texts(picture, "mixer") == ["attention", "delta_net"]
    assert json.loads(picture.read_text())["title"]["text"] == ["Where each mixer stores the key-value link (AR)"]
    assert [text for text in texts(picture, "verdict") if " of " in text] == [
        "1 of 1 run: induction", "1 of 1 run: direct retrieval in layer 0",
    ]  # fmt: skip
    assert texts(picture, "share") == ["1.00", "0.75"]


def test_the_mechanisms_of_a_study_come_with_the_package(command: Command, tmp_path: Path) -> None:
    """Without any store, as the study's own figure does."""
    picture = tmp_path / "found.json"
    place = ("--store", str(tmp_path / "none"), "--save", str(picture))
    assert command("draw", "mechanisms", "--study", "ar", "--scale", "paper", *place)[0] == 0
    assert {"attention", "based", "delta_net", "mamba"} <= set(texts(picture, "mixer"))
    assert "None" not in " ".join(texts(picture, "verdict"))
    assert "3 seeds" in texts(picture, "about")  # of Mamba, without being asked for


def test_the_task_is_that_of_the_study(command: Command, tmp_path: Path) -> None:
    picture = tmp_path / "found.json"
    place = ("--store", str(tmp_path / "none"), "--save", str(picture))
    assert command("draw", "mechanisms", "--study", "atr", "--scale", "paper", *place)[0] == 0
    assert json.loads(picture.read_text())["title"]["text"] == ["Where each mixer stores the key-value link (ATR)"]


def test_of_learning_rates_the_best_on_dev_counts(tmp_path: Path) -> None:
    write(tmp_path, DIRECT, {}, 0.8, lr=1e-3)
    write(tmp_path, DIRECT, {}, 0.9, 0.6, lr=2e-3)
    best = write(tmp_path, INDUCTION, {("blocks.1.input", "value"): 0.9}, 0.9, 0.7, lr=3e-3)
    write(tmp_path, None, {}, 1.0, lr=4e-3)  # nobody intervened on it
    other = write(tmp_path, DIRECT, {}, 0.1, seed=1)
    frame = mechanism_rows(Store(tmp_path), "ar")
    assert set(frame["run"]) == {best, other}
    row = frame.set_index("run").loc[best]
    assert (row["verdict"], row["layer"], row["stored_at"], row["share_value"]) == ("induction", 1, "value", 0.9)
    assert math.isnan(row["share_key"])


def test_a_mixer_is_named_with_the_options_that_set_its_runs_apart(tmp_path: Path) -> None:
    for d_conv in (0, 4):
        write(tmp_path, DIRECT, {}, 0.9, mixer="mamba", d_conv=d_conv)
    write(tmp_path, DIRECT, {}, 0.9, mixer="attention")
    assert set(mechanism_rows(Store(tmp_path), "ar")["mixer"]) == {"attention", "mamba · d_conv 0", "mamba · d_conv 4"}


def test_shares_are_read_where_the_verdict_says(tmp_path: Path) -> None:
    inside = {"label": "conv_association", "layer": 1, "stored_by": None, "stored_at": None}
    cells = {("blocks.1.input", "key"): 0.8, ("blocks.2.input", "key"): 0.1}
    for layer, site, value, next_key in ((0, "conv", 0.9, 0.9), (1, "q_conv", 0.3, 0.4), (1, "k_conv", 0.0, 0.6)):
        cells |= {
            (f"blocks.{layer}.mixer.{site}", "value"): value,
            (f"blocks.{layer}.mixer.{site}", "next_key"): next_key,
        }
    write(tmp_path, inside, cells, 0.9, n_layers=3)
    [row] = mechanism_rows(Store(tmp_path), "ar").to_dict("records")
    assert (row["share_key"], row["conv_value"], row["conv_next_key"]) == (0.8, 0.3, 0.4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["grammar", "--save", "a.gif"], "cannot write a figure as 'a.gif'; choose .html, .json, .pdf, .png"),
        (["grammar", "--max-rsh", "4"], "unknown option of atr 'max_rsh'. Did you mean 'max_rhs'?"),
        (["grammar", "--preset", "desk"], "unknown preset of atr 'desk'."),
        (["grammar", "--split", "tset"], "unknown split 'tset'. Did you mean 'test'?"),
        (["grammar", "--document", "-1"], "there is no document -1; they count from 0."),
        (["example", "zzz", "--store", "STORE"], "no run starts with 'zzz'. There are: RUN."),
        (["example", "RUN", "--store", "STORE", "--document", "16"], "there is no document 16; the run is evaluated"),
        (["example", "RUN", "--store", "STORE", "--site", "blocks.9.input"], "unknown site 'blocks.9.input'."),
        (["example", "RUN", "--store", "STORE", "--save", "a"], "cannot write a figure as 'a'"),
        (["mechanisms", "--store", "STORE", "--study", "ar"], "no run of task 'ar' in STORE has a verdict on test; "),
        (["mechanisms", "--store", "STORE", "--study", "arr"], "unknown study 'arr'"),
        (["mechanisms", "--store", "nowhere"], "there is no store at nowhere; `mecheval train` makes one."),
        (["mechanisms", "--store", "STORE", "--task", "atr"], "no run of task 'atr' in STORE has a verdict on test; "
         "there are some of ar."),
        (["mechanisms", "--store", "STORE", "--save", "no/such/a.svg"], "cannot write no/such/a.svg: there is no such"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    words: list[str], message: str, command: Command, shared: tuple[Path, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    store, run = shared
    code, out, err = command("draw", *(word.replace("STORE", str(store)).replace("RUN", run) for word in words))
    assert (code, out) == (2, "")
    assert err.startswith(f"mecheval: {message.replace('STORE', str(store)).replace('RUN', run)}")
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("*.svg"))


def test_a_store_without_verdicts(command: Command, tmp_path: Path) -> None:
    write(tmp_path, None, {}, 1.0)
    code, _, err = command("draw", "mechanisms", "--store", str(tmp_path))
    assert (code, err) == (
        2, f"mecheval: no run of task 'ar' in {tmp_path} has a verdict on test; `mecheval intervene RUN` makes one.\n"
    )  # fmt: skip


def test_a_missing_renderer_is_told_before_anything_is_computed(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vegalite, "find_spec", lambda name: None)
    said = "mecheval: figures and reports need vl-convert; `pip install vl-convert-python`.\n"
    for words in (["study", "ar"], ["quickstart"], ["draw", "mechanisms"]):
        assert command(*words, "--store", str(tmp_path)) == (2, "", said)
    assert list(tmp_path.iterdir()) == []
