"""Models in one's own loop: the loss of a batch, files of `save`, compiled models, transforms of PyTorch."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import mecheval as me
from mecheval.errors import UserError
from mecheval.files import safetensors_header
from mecheval.mixers import BUILT_IN, MIXERS
from mecheval.training import train
from training.runs import tiny

TASK = me.build_task("ar", pairs=3, keys=8, values=8, queries=2)
BATCH = TASK.sample(8, "train")
QUESTIONS = BATCH.questions()


class Decay(nn.Module):
    def __init__(self, dim: int, rate: float = 0.9) -> None:
        super().__init__()
        self.inner, self.rate = nn.Linear(dim, dim), rate

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.inner(x).cumsum(1) * self.rate, None


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MIXERS, "_classes", dict(MIXERS._classes))
    monkeypatch.delenv("MECHEVAL_MIXERS", raising=False)


def model(mixer: Any = "attention", **given: Any) -> me.LM:
    return me.LM(TASK.vocab_size, 16, mixer=mixer, max_length=TASK.max_tokens, **given)


def test_the_loss_of_a_batch_is_that_of_its_questions() -> None:
    lm = model()
    assert torch.equal(lm.loss(BATCH), lm.loss(*QUESTIONS))
    with pytest.raises(UserError, match=r"^loss: give a batch of a task, or tokens"):
        lm.loss(QUESTIONS.tokens)


@pytest.mark.parametrize(
    "given",
    [
        {"mixer": "mamba", "n_layers": 3, "mixer_options": {"d_state": 4}},
        {"mixer": "2*mamba+attention", "mixer_options": {"mamba.d_state": 4}, "canon": "AC"},
        {"mixer": "attention", "positions": "rotary", "mlp": False},
        {"mixer": Decay, "mixer_options": {"rate": 0.5}},
        {"mixer": [Decay, "attention"]},
        {"mixer": partial(nn.GRU, num_layers=2)},
    ],
)
def test_a_saved_model_is_loaded_as_it_was(tmp_path: Path, given: dict[str, Any]) -> None:
    lm = model(**given).eval()
    lm.save(tmp_path / "lm.safetensors")
    loaded = me.load_lm(tmp_path / "lm.safetensors")
    assert not loaded.training
    assert (loaded.n_layers, loaded.positions) == (lm.n_layers, lm.positions)
    assert torch.equal(loaded(BATCH.tokens), lm(BATCH.tokens))
    assert loaded.sites() == lm.sites()
    again = tmp_path / "again.safetensors"
    loaded.save(again)
    assert again.read_bytes() == (tmp_path / "lm.safetensors").read_bytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["again.safetensors", "lm.safetensors"]


def test_the_type_of_the_weights_is_kept(tmp_path: Path) -> None:
    lm = model("mamba").double().eval()
    lm.save(tmp_path / "lm.safetensors")
    assert torch.equal(me.load_lm(tmp_path / "lm.safetensors")(BATCH.tokens), lm(BATCH.tokens))


def test_a_custom_mixer_of_another_process_must_be_named(tmp_path: Path) -> None:
    model(Decay).save(tmp_path / "lm.safetensors")
    MIXERS._classes = {name: cls for name, cls in MIXERS._classes.items() if "@" not in name}
    with pytest.raises(UserError, match=r"^mixer 'Decay@.*' is a custom mixer; to load it, set MECHEVAL_MIXERS="):
        me.load_lm(tmp_path / "lm.safetensors")


def test_what_cannot_be_saved_or_loaded_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^cannot write .*: No such file or directory\.$"):
        model().save(tmp_path / "nowhere" / "lm.safetensors")
    with pytest.raises(UserError, match=r"^save: options of mixers must be plain data"):
        model(Decay, mixer_options={"rate": torch.ones(())}).save(tmp_path / "lm.safetensors")
    with pytest.raises(UserError, match=r"^cannot load weights from .*: it is neither a run's folder nor has it"):
        me.load_lm(tmp_path)
    for old in (True, False):
        path = tmp_path / f"weights{old}.pt"
        torch.save(model().state_dict(), path, _use_new_zipfile_serialization=old)
        with pytest.raises(
            UserError, match=r"was written by torch.save and is not read, .*; save the model by lm.save"
        ):
            me.load_lm(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 10**9}, "its tensors are not those of the model that its header describes"),
        ({"n_layers": 500}, "its tensors are not those of the model that its header describes"),
        ({"max_length": 10**9}, "its tensors are not those of the model that its header describes"),
        ({"mlp": "yes"}, "its header does not contain the arguments of a model"),
        ({"more": 1}, "its header does not contain the arguments of a model"),
        ({"mixer": "attentoin"}, "unknown mixer 'attentoin'. Did you mean 'attention'?"),
        ({"mlp": False}, "does not fit its config"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "lm.safetensors"
    model().save(path)
    origin = safetensors_header(path.read_bytes())
    origin["lm"] |= change
    path.write_bytes(save(load(path.read_bytes()), metadata={"mecheval": json.dumps(origin)}))
    with pytest.raises(UserError, match=re.escape(message)):
        me.load_lm(path)


def test_a_runs_folder_is_loaded(tmp_path: Path) -> None:
    folder = train(tiny(steps=2, every=2), tmp_path)
    expected = me.load_lm(folder.weights / "last.safetensors").state_dict()
    for given in (folder, folder.path, str(folder.path)):
        assert all(torch.equal(weight, expected[name]) for name, weight in me.load_lm(given).state_dict().items())


def test_a_compiled_model_is_intervened_on_as_the_model_inside() -> None:
    lm = model("mamba", seed=0)
    compiled: Any = torch.compile(lm, backend="eager")
    corrupted = TASK.corrupt(BATCH)
    expected, found = (me.interchange(each, BATCH, corrupted) for each in (lm, compiled))
    assert found.equals(expected)
    site = "blocks.1.mixer.conv"
    assert torch.equal(me.capture(compiled, BATCH, [site])[site], me.capture(lm, BATCH, [site])[site])


@pytest.mark.parametrize("mixer", BUILT_IN)
def test_functional_gradients_are_those_of_autograd(mixer: str) -> None:
    lm = model(mixer, seed=0)

    def loss(weights: dict[str, Tensor]) -> Tensor:
        logits = functional_call(lm, weights, (QUESTIONS.tokens, QUESTIONS.at))
        return nn.functional.cross_entropy(logits.flatten(0, 1), QUESTIONS.targets.flatten())

    found = grad(loss)({name: weight.detach() for name, weight in lm.named_parameters()})
    lm.loss(BATCH).backward()
    for name, weight in lm.named_parameters():
        if weight.grad is not None:
            assert torch.allclose(found[name], weight.grad, atol=1e-5), name


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("mixer", ["attention", "mamba", "hyena"])
def test_a_model_is_exported_and_mapped(mixer: str) -> None:
    lm = model(mixer, seed=0).eval()
    expected = lm(BATCH.tokens)
    assert torch.allclose(torch.export.export(lm, (BATCH.tokens,)).module()(BATCH.tokens), expected, atol=1e-5)
    assert torch.allclose(vmap(lambda row: lm(row[None])[0])(BATCH.tokens), expected, atol=1e-5)


@pytest.mark.parametrize("built", [nn.GRU(8, 8, batch_first=True), nn.Linear(8, 8)])
def test_a_mixer_that_is_built_already_is_not_a_model(built: nn.Module) -> None:
    name = type(built).__name__
    with pytest.raises(UserError, match=rf"^the {name} given to evaluate is a mixer that is built already, "):
        me.evaluate(built)
    with pytest.raises(UserError, match=r"^LM: mixer is a mixer that is built already"):
        me.LM(9, 8, mixer=built)
