"""Checkpoints on disk: made here with transformers, saved, and evaluated from their folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import mecheval as me
from commands import Command
from lazily import transformers
from mecheval.errors import UserError
from mecheval.evaluation.layers import sites_of
from mecheval.evaluation.trained import checkpoint_task, load_checkpoint
from mecheval.intervene.answering import Answering
from mecheval.tasks import Task, build_task

TASK: dict[str, Any] = {"pairs": 4, "keys": 12, "values": 12}
SIZES = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
HALF = {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "GPT2": {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "GPTNeoX": {"hidden_size": 16, "num_hidden_layers": 2, **HALF},
    "Llama": {"hidden_size": 16, "num_hidden_layers": 2, **HALF},
    "Mamba": {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    "Mamba2": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "state_size": 4,
        "num_heads": 4,
        "head_dim": 8,
        "n_groups": 1,
        "chunk_size": 8,
    },
}
CONVOLVING = ("Mamba", "Mamba2")


def saved(kind: str, folder: Path) -> Path:
    """A checkpoint of this kind with random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **CONFIGS[kind], initializer_range=0.5)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return folder


def small() -> Task:
    return build_task("ar", **TASK)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_checkpoint_is_evaluated_from_its_folder(kind: str, tmp_path: Path) -> None:
    folder, task = saved(kind, tmp_path / "checkpoint"), small()
    found = me.evaluate(folder, task, n=24, compare=False, report=tmp_path / "page.html")
    assert found.name == "checkpoint"
    assert found.verdict is not None
    assert found.verdict.label == "not_learnt"  # weights are random
    assert "guessing without recall has 0.25" in str(found.verdict)
    assert sorted(found.effects["block"].unique()) == [0, 1]
    assert found.effects["restored"].std() > 1e-4
    assert (tmp_path / "page.html").stat().st_size > 1000
    model = load_checkpoint(folder)
    depths = sites_of(Answering(model), None, (), None, task.sample(3).tokens).depths
    kinds = [site.kind for layer in depths.inside for site in layer]  # type: ignore[attr-defined]
    assert kinds.count("short_conv") == (2 if kind in CONVOLVING else 0)


def test_a_convolution_inside_mamba_can_be_replaced(tmp_path: Path) -> None:
    """Its module is never called, only its weights are used; the site is the result of the convolution all the same."""
    model, task = load_checkpoint(saved("Mamba", tmp_path / "mamba")), small()
    clean = task.sample(12, "test")
    sites = [f"backbone.layers.{i}.mixer.conv1d.output" for i in range(2)]
    found = me.interchange(model, clean, task.corrupt(clean), sites, ["key", "value", "bos"])
    restored = found.set_index(["site", "role"])["attribution"].abs()
    assert restored[sites[0], "key"] > 1e-4
    assert restored[sites[0], "bos"] < 1e-6


def test_the_command_line_evaluates_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = saved("GPT2", tmp_path / "gpt2"), tmp_path / "page.html"
    capsys.readouterr()
    settings = [word for option, value in TASK.items() for word in ("--set", f"{option}={value}")]
    words = ["evaluate", str(folder), "--task", "ar", *settings, "--no-compare", "--report", str(page)]
    code, out, err = Command(monkeypatch, capsys)(*words)
    assert code == 0, err
    assert "gpt2 on ar (test, 320 documents)" in out
    assert "Verdict: not learnt" in out
    assert page.exists()
    code, _, err = Command(monkeypatch, capsys)("evaluate", str(tmp_path), "--task", "ar", "--no-report")
    assert code == 2
    assert "has no config.json" in err


def test_a_task_about_text_gets_the_checkpoints_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Text:
        class Options:
            model_fields = {"tokenizer": None, "statements": None}  # noqa: RUF012

    monkeypatch.setattr("mecheval.evaluation.trained.TASKS.get", lambda name: Text)
    monkeypatch.setattr("mecheval.evaluation.trained.build_task", lambda name, **options: given.update(options))
    checkpoint_task("some/folder", "words", {"statements": 3})
    assert given == {"tokenizer": "some/folder", "statements": 3}


def test_what_is_wrong_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nowhere; a checkpoint is a folder with config.json"):
        me.evaluate(str(tmp_path / "nowhere"), small())
    with pytest.raises(UserError, match=r"is not a Hugging Face checkpoint: it has no config.json"):
        load_checkpoint(tmp_path)
    folder = saved("GPT2", tmp_path / "gpt2")
    weights = folder / "model.safetensors"
    (folder / "pytorch_model.bin").write_bytes(b"")
    kept = weights.read_bytes()
    weights.unlink()
    with pytest.raises(UserError, match=r"only pickles \(pytorch_model.bin\), which are not read; save"):
        load_checkpoint(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match="has no weights; save the model again"):
        load_checkpoint(folder)
    weights.write_bytes(kept[:1000])
    with pytest.raises(UserError, match="cannot load"):
        load_checkpoint(folder)
    weights.write_bytes(kept)
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "n_layer": 3}))
    with pytest.raises(UserError, match=r"is not a complete language model: it has no weights for transformer.h.2"):
        load_checkpoint(folder)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"checkpoints need transformers: pip install 'mecheval\[hf\]'"):
        load_checkpoint(folder)
