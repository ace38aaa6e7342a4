from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save, save_file

import mecheval as me
from mecheval.analysis.runs import load_run
from mecheval.analysis.weights import export, weights_file
from mecheval.errors import UserError
from mecheval.files import run_id
from mecheval.training import Interrupted, train
from mecheval.training.plan import plan
from training.runs import SignalAt, tiny


def test_an_exported_model_needs_no_other_file(tmp_path: Path) -> None:
    config = tiny(mixer="mamba", steps=10, every=4)
    folder = train(config, tmp_path / "store")
    tokens = config.build_task().sample(3, "test").tokens
    before = me.load_lm(folder.weights / "best.safetensors")(tokens)
    written = export(folder, tmp_path / "model", "best")
    assert sorted(path.name for path in written.iterdir()) == ["README.md", "config.yaml", "model.safetensors"]
    shutil.rmtree(tmp_path / "store")
    assert torch.equal(me.load_lm(written)(tokens), before)  # the very same calls
    (written / "config.yaml").unlink()
    assert torch.equal(me.load_lm(written)(tokens), before)


def test_the_card_tells_what_the_model_is_and_how_well_it_does(tmp_path: Path) -> None:
    config = tiny(steps=10, every=4)
    folder = train(config, tmp_path / "store")
    written = export(folder, tmp_path / "model")
    card = (written / "README.md").read_text()
    scores = me.Store(tmp_path / "store").evaluations().query("state == 'last' and split == 'test'").iloc[0]
    assert f"| test | {scores['likelihood']:.4f} | {scores['accuracy']:.4f} |" in card
    assert f"Run {config.id}" in card
    assert yaml.safe_load(card.split("```yaml\n")[1].split("```")[0]) == config.to_dict()
    assert me.RunConfig.load(written / "config.yaml") == config


def test_an_export_overwrites_nothing_and_names_what_there_is(tmp_path: Path) -> None:
    config = tiny(steps=60)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "store", [SignalAt(3, 2)])
    folder = me.Store(tmp_path / "store").find(config.id[:5])
    with pytest.raises(UserError, match="has no last weights; its status is interrupted"):
        export(folder, tmp_path / "model")
    train(config, tmp_path / "store")
    with pytest.raises(UserError, match=r"unknown state 'first'.* Choices: best, last"):
        export(folder, tmp_path / "model", "first")
    export(folder, tmp_path / "model")
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        export(folder, tmp_path / "model")


def test_loading_something_else_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot load weights from"):
        me.load_lm(tmp_path / "missing.safetensors")
    (tmp_path / "text.safetensors").write_text("no weights")
    with pytest.raises(UserError, match="cannot load weights from"):
        me.load_lm(tmp_path / "text.safetensors")
    (tmp_path / "long.safetensors").write_bytes((10_000_001).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match="its header has more than 10,000,000 bytes"):
        me.load_lm(tmp_path / "long.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="does not say which model it is"):
        me.load_lm(tmp_path / "other.safetensors")


def test_a_plan_trains_and_writes_nothing(tmp_path: Path) -> None:
    store = me.Store(tmp_path / "store")
    config = tiny(steps=1000, every=10)
    planned = plan(config, store)
    assert (planned.run, planned.status, planned.steps, planned.epochs) == (config.id, None, 1000, 80.0)
    assert planned.parameters == config.build_lm().n_parameters
    assert planned.seconds == pytest.approx(1000 * planned.step_seconds + 100 * planned.evaluation_seconds)
    assert not store.path.exists()
    with pytest.raises(Interrupted):
        train(config, store, [SignalAt(400, 2)])
    later = plan(config, store)
    assert (later.status, later.step) == ("interrupted", 400)
    assert later.seconds == pytest.approx(600 * later.step_seconds + 60 * later.evaluation_seconds)


def test_weights_that_are_not_what_they_say_are_refused(tmp_path: Path) -> None:
    config = tiny(steps=2, every=2)
    folder = train(config, tmp_path)
    path = folder.weights / "last.safetensors"
    whole = path.read_bytes()
    other = weights_file(tiny(seed=1), "last", 2, dict(tiny(seed=1).build_lm().state_dict()))
    for content in (whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:], other):
        path.write_bytes(content)
        with pytest.raises(UserError, match="does not match its checksum"):
            load_run(folder)
    path.write_bytes(whole)
    damaged = tmp_path / "copy.safetensors"  # outside a store, the file vouches for itself
    damaged.write_bytes(whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])
    with pytest.raises(UserError, match="its tensors do not match their checksum"):
        me.load_lm(damaged)
    with folder.exclusive():
        folder.write_files({"weights/last.safetensors": other})  # sealed, and a lie all the same
    with pytest.raises(UserError, match="it contains the last state of run"):
        load_run(folder)


def test_no_file_is_opened_for_a_grammar_in_a_header(tmp_path: Path) -> None:
    config = tiny()
    claimed: dict[str, Any] = config.to_dict() | {"task": {"name": "atr", "grammar": "/etc/passwd"}}
    origin = {"run": run_id(claimed), "state": "last", "step": 1, "config": claimed}
    path = tmp_path / "received.safetensors"
    path.write_bytes(save(dict(config.build_lm().state_dict()), metadata={"mecheval": json.dumps(origin)}))
    with pytest.raises(UserError, match="names a grammar file, which is not opened"):
        me.load_lm(path)


def test_a_model_without_scores_is_exported_all_the_same(tmp_path: Path) -> None:
    folder = train(tiny(steps=2, every=2), tmp_path)
    with folder.exclusive():
        folder.write("scores", [])
        folder.set_status(parameters=None)
    written = export(folder, tmp_path / "out")
    assert "Its scores are not in the store." in (written / "README.md").read_text()
