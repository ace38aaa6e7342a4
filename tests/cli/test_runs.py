from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import mecheval as me
from commands import Command, forked
from mecheval.mixers import MIXERS
from mecheval.store import Store
from training.runs import outcome, published

TINY = [
    "--pairs", "3", "--keys", "8", "--values", "8", "--d-model", "16", "--batch-size", "8", "--steps", "20",
    "--every", "7", "--set", "data.documents=100", "--set", "evaluate.documents=16",
]  # fmt: skip


@pytest.mark.parametrize(("there", "slow"), [({}, True), ({"avx512_bf16": True}, False), ({"amx_bf16": True}, False)])
def test_bfloat16_is_an_option_that_is_named_where_it_is_slow(
    there: dict[str, bool], slow: bool, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", **there}, raising=False)
    words = ("train", *TINY, "--dry-run", "--json", "--store", str(tmp_path))
    code, out, err = command(*words, "--precision", "bf16")
    assert (code, json.loads(out)["config"]["machine"]["precision"]) == (0, "bf16")
    assert err == slow * "this processor has no instructions for bfloat16; it is faster with --precision full.\n"
    assert json.loads(command(*words, "--set", "precision=bf16")[1])["run"] == json.loads(out)["run"]
    assert json.loads(command.prints(*words))["run"] != json.loads(out)["run"]


def test_train_list_query_and_export(command: Command, tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store")]
    code, out, err = command("train", "--mixer", "mamba", "--lr", "3e-3", *TINY, *store)
    assert code == 0
    [run] = Store(tmp_path / "store").ids()
    assert run[:8] in out
    assert "20/20" in out
    assert err.splitlines()[0].startswith("ar · mamba · d 16 · lr 0.003 · seed 0")
    assert "done" in err
    code, again, err = command("train", "--mixer", "mamba", "--lr", "3e-3", *TINY, *store)
    assert (code, again, err) == (0, out, "")  # it is done: nothing happens, the same is shown

    assert command.prints("runs", *store) == out
    [row] = json.loads(command.prints("runs", "--json", *store))
    assert (row["run"], row["status"], row["mixer"], row["lr"]) == (run, "done", "mamba", 0.003)
    assert json.loads(command.prints("runs", "--status", "failed", "--json", *store)) == []
    asked = "select run, count(*) as rows, max(step) as last from history group by run"
    assert json.loads(command.prints("query", asked, "--json", *store)) == [{"run": run, "rows": 3, "last": 20}]
    assert command.prints("query", asked, "--csv", *store) == f"run,rows,last\n{run},3,20\n"
    assert "20" in command.prints("query", asked, *store)
    assert command.prints("export", run[:4], "--to", str(tmp_path / "model"), *store) == f"wrote {tmp_path / 'model'}\n"
    assert me.load_lm(tmp_path / "model").d_model == 16


OWN = """
from torch import nn

class Shift(nn.Module):
    def __init__(self, d_model, gain=1.0):
        super().__init__()
        self.linear, self.gain = nn.Linear(d_model, d_model), gain

    def forward(self, x):
        return self.gain * self.linear(nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])
"""


def test_a_hybrid_with_a_mixer_from_a_file_and_canon(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECHEVAL_MIXERS", "")
    monkeypatch.setattr(MIXERS, "_classes", dict(MIXERS._classes))  # forgotten after this test
    (tmp_path / "own.py").write_text(OWN)
    store = tmp_path / "store"
    words = ["train", "--mixer", f"{tmp_path / 'own.py'}:Shift,attention", "--Shift.gain", "0.5", "--canon", "a"]
    code, _, err = command(*words, *TINY, "--store", str(store))
    assert code == 0, err
    [row] = json.loads(command.prints("runs", "--json", "--store", str(store)))
    name, _, _ = str(row["mixer"]).partition("@")
    assert (name, row["mixer"][-10:], row["n_layers"]) == ("Shift", "+attention", 2)
    lm = me.load_lm(store / "runs" / row["run"] / "weights" / "last.safetensors")
    assert [site for site in lm.sites() if site.kind == "short_conv"] == ["blocks.0.canon_a", "blocks.1.canon_a"]
    mixer: Any = lm.blocks[0].mixer
    assert mixer.gain == 0.5
    out = command.prints("export", row["run"], "--store", str(store), "--to", str(tmp_path / "out"))
    assert out == f"wrote {tmp_path / 'out'}\n"


def test_a_config_file_then_options_over_it(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("task: {name: atr, max_length: 8}\nmixer: {name: h3, d_state: 4}\nmodel: {d_model: 8}\nseed: 3\n")
    words = ["train", "--config", str(file), "--set", "optimiser.lr=2e-3", "--d-model", "4", "--dry-run"]
    words += ["--steps", "10", "--set", "evaluate.documents=10", "--store", str(tmp_path / "store"), "--json"]
    planned = json.loads(command.prints(*words))
    config = planned["config"]
    assert (config["task"]["name"], config["task"]["max_length"], config["mixer"]["d_state"]) == ("atr", 8, 4)
    assert (config["model"]["d_model"], config["optimiser"]["lr"], config["seed"]) == (4, 0.002, 3)
    assert (planned["steps"], planned["status"]) == (10, None)
    assert not (tmp_path / "store").exists()
    shown = command.prints(*words[:-1])
    assert "max_length: 8" in shown
    assert f"parameters  {planned['parameters']:,}" in shown
    swapped = json.loads(command.prints(*words, "--mixer", "mamba"))["config"]["mixer"]
    assert swapped["name"] == "mamba"  # and no d_state: 4, which was H3's
    assert swapped["d_state"] == 16
    _, out, err = command(*words, "--mixer", "attention,mamba")
    assert json.loads(out)["config"]["mixer"]["name"] == "attention+mamba"
    assert err == "attention,mamba is one hybrid model; for separate runs, give one mixer at a time.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--mixer", "mambo"], "unknown mixer 'mambo'. Did you mean 'mamba'?"),
        (["train", "--mixer", "mamba", "--canon", "B", "--steps", "1"], "Letters that apply: A."),
        (["train", "--mixer", "none.py:My+mamba"], "cannot read none.py: No such file or directory."),
        (["train", "--mixer", "2*mamba+attention", "--n-layers", "2"], "not a multiple of the pattern's 3 layers"),
        (["train", "--lrr", "1"], "unknown option 'lrr'. Did you mean 'lr'?"),
        (["train", "--config", "missing.yaml"], "cannot read missing.yaml: No such file or directory."),
        (["train", "--set", "task.pairs"], "--set takes NAME=VALUE"),
        (["train", "--track", "mlflow"], "unknown tracker 'mlflow'. Choices: tensorboard, wandb, wandb-offline."),
        (["runs"], "there is no store at mecheval-store; `mecheval train` makes one."),
        (["runs", "--store", "."], "there is no store at .; `mecheval train` makes one."),
        (["export", "abc"], "there is no store at mecheval-store"),
        (["query", "select 1", "--store", "nowhere"], "there is no store at nowhere"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_continue(number: int, tmp_path: Path, command: Command) -> None:
    store = ["--store", str(tmp_path / "my store")]
    words = ["train", *TINY, "--steps", "200", "--every", "50"]
    child = forked([*words, *store, "--checkpoint-seconds", "0.05"], tmp_path / "said")
    runs = Store(tmp_path / "my store")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.02)
        if (tmp_path / "my store" / "runs").exists() and any(runs.folder(run).status()["step"] for run in runs.ids()):
            break
    os.kill(child, number)
    code, err = outcome(child), (tmp_path / "said").read_text()
    assert code == 128 + number, err
    assert "Traceback" not in err
    [run] = runs.ids()
    assert runs.folder(run).status()["status"] == "interrupted"
    folder = f"{tmp_path}/my store"
    again = f"mecheval train --config '{folder}/runs/{run}/config.yaml' --store '{folder}'"
    assert err.splitlines()[-1].strip() == again
    step = int(err.split("saved at step ")[1].split(";")[0])
    assert 0 < step < 200
    code, _, err = command("train", "--config", str(tmp_path / "my store" / "runs" / run / "config.yaml"), *store)
    assert code == 0, err
    whole = command("train", *words[1:], "--store", str(tmp_path / "whole"))
    assert whole[0] == 0
    assert published(runs.folder(run)) == published(Store(tmp_path / "whole").folder(run))


def test_a_store_without_permission_is_one_line(command: Command, tmp_path: Path) -> None:
    place = Path("/sys") if os.getuid() == 0 else tmp_path / "closed"  # not even root may make folders in /sys
    if os.getuid():
        place.mkdir(mode=0o555)
    elif not place.exists():
        pytest.skip("root may write everywhere here")
    code, out, err = command("train", *TINY, "--store", str(place / "store"))
    assert (code, out) == (2, "")
    assert err.startswith(f"mecheval: cannot write {place / 'store'}")
    assert re.search(r"(Permission denied|Operation not permitted|Read-only file system); what was saved", err)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("drop table runs", "only reads, and "),
        ("delete from runs", "only reads, and "),
        ("select 1; insert into runs from runs", "give one statement (got 2)"),
    ],
)
def test_a_query_only_reads(command: Command, sql: str, problem: str) -> None:
    code, out, err = command("query", sql)
    assert (code, out) == (2, "")
    assert err.startswith("mecheval: query")
    assert problem in err
    assert err.count("\n") == 1
