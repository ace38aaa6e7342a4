"""`me.evaluate` of a model that was trained elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mecheval as me
from evaluation.models import (
    TASK,
    Base,
    Direct,
    Earlier,
    Elementwise,
    Elsewhere,
    Fails,
    FewLogits,
    FewPlaces,
    FewTokens,
    Future,
    GivesNaN,
    Idle,
    Later,
    MiddleOnly,
    Named,
    Noisy,
    Object,
    Pair,
    Placed,
    Shared,
    Skips,
    Together,
    Tokens,
)
from mecheval.errors import UserError
from mecheval.evaluation.layers import find_layers
from mecheval.model.handmade import handmade
from mecheval.studies import scales
from mecheval.sweep import HereEngine, Job

N = 24


NAMES = {
    "blocks.0.input": "h.0.input", "blocks.0.output": "h.0.output", "blocks.0.mixer.output": "h.0.attn.output",
    "blocks.1.input": "h.1.input", "blocks.1.output": "h.1.output", "blocks.1.mixer.output": "h.1.attn.output",
}  # fmt: skip


@pytest.mark.parametrize("name", ["induction", "guesser", "mixture"])
def test_the_numbers_and_the_verdict_are_those_of_the_language_model(tmp_path: Path, name: str) -> None:
    lm = handmade(name, TASK)
    clean = TASK.sample(N, "test")
    expected = me.interchange(lm, clean, TASK.corrupt(clean), sites=list(NAMES))
    own = me.verdict(lm, clean, TASK.corrupt(clean))
    mixers = ["h.0.attn", "h.1.attn"]
    found = me.evaluate(Elsewhere(lm), TASK, mixers=mixers, n=N, store=tmp_path)
    assert found.verdict is not None
    expected["site"] = [NAMES[site] for site in expected["site"]]
    a, b = (frame.set_index(["site", "role"]).sort_index() for frame in (expected, found.effects))
    assert list(a.index) == list(b.index)
    for column in ("original", "corrupted", "restored"):
        assert b[column].to_numpy() == pytest.approx(a[column].to_numpy(), abs=2e-5)
    assert found.verdict.finding == own.finding
    assert found.table["restored_value"][0] == pytest.approx(a.loc[("h.1.input", "value"), "restored"], abs=2e-5)
    assert found.table["d"][0] == lm.d_model


def test_an_lm_is_evaluated_at_its_own_sites(tmp_path: Path) -> None:
    lm = handmade("conv_direct", TASK)
    clean = TASK.sample(N, "test")
    expected = me.verdict(lm, clean, TASK.corrupt(clean))
    found = me.evaluate(lm, TASK, n=N, store=tmp_path, name="mine")
    assert str(found.verdict) == str(expected)
    assert found.table["mixer"][0] == "mine"
    with pytest.raises(UserError, match="an LM knows its layers and mixers; leave out layers= and mixers="):
        me.evaluate(lm, TASK, n=N, layers=["blocks.0"], store=tmp_path)


def test_a_short_convolution_is_found_whether_it_is_named_or_not(tmp_path: Path) -> None:
    model, layers = Direct(), ["h.0", "h.1"]
    plain = me.evaluate(model, TASK, layers=layers, n=N, store=tmp_path)
    named = me.evaluate(model, TASK, layers=layers, n=N, store=tmp_path, sites=["h.0.conv.output"])
    assert plain.verdict is not None
    assert named.verdict is not None
    assert plain.verdict.label == "conv_association"
    assert named.verdict.label == "conv_association"


@pytest.mark.parametrize("cls", [Object, Named])
def test_logits_may_be_inside_a_larger_answer(tmp_path: Path, cls: type[nn.Module]) -> None:
    expected = me.evaluate(Base(), TASK, n=N, store=tmp_path)
    found = me.evaluate(cls(), TASK, n=N, store=tmp_path)
    assert found.effects.equals(expected.effects)  # the very same calls


def test_modes_are_restored_part_by_part(tmp_path: Path) -> None:
    model = Base()
    model.h[1].eval()
    before = [module.training for module in model.modules()]
    modes: list[bool] = []
    model.h[0].register_forward_hook(lambda module, *_: modes.append(module.training))
    me.evaluate(model, TASK, n=N, store=tmp_path)
    assert not any(modes)
    assert [module.training for module in model.modules()] == before
    assert True in before
    assert False in before


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [
        (Tokens, {}, "Tokens gives (5, 13) for tokens (5, 13); logits are (5, 13, V)."),
        (Pair, {}, "the model must return logits (n, L, V), or an object with .logits (got tuple of 2)."),
        (GivesNaN, {}, "GivesNaN gives NaN at position 3 of document 0."),
        (Future, {}, "Future is not causal: changing the token at position"),
        (Noisy, {}, "Noisy gives two answers to the same tokens in evaluation mode."),
        (Together, {}, "Together gives document 0 another answer alone than in a batch of 5; documents come first"),
        (Earlier, {}, "Earlier gives document 1 another answer alone than in a batch of 5; documents come first"),
        (Later, {}, "Later gives document 0 another answer alone than in a batch of 5; documents come first"),
        (MiddleOnly, {}, "MiddleOnly gives document 2 another answer alone than in a batch of 5;"),
        (Placed, {}, "Placed gives document 1 another answer alone than in a batch of 5; documents come first"),
        (FewTokens, {}, "the vocabulary is too small: wte has 9 rows, and ar has 27 tokens."),
        (FewLogits, {}, "FewLogits has logits of 9 tokens; ar has 27."),
        (FewPlaces, {}, "wpe has 5 rows and is asked for row 12; documents of ar have up to 13 tokens."),
        (Fails, {}, "Fails failed on tokens (5, 13): RuntimeError: no such thing"),
        (Skips, {}, "one run of the model never passes through h.1.input; interventions need exactly once."),
        (Shared, {}, "one run of the model passes 2 times through h.0.input; interventions need exactly once."),
        (Elementwise, {}, "h.0.input has shape (13, 5, 8) for 5 documents of 13 tokens; documents must come first"),
        (Base, {"layers": ["h.0", "h.2"]}, "unknown submodule 'h.2'. Did you mean 'h.1'?"),
        (Base, {"layers": ["h.1", "h.0"]}, "layers: name them in the order in which they run"),
        (Base, {"layers": ["h.0", "h.0"]}, "layers: each once (got h.0, h.0)."),
        (Base, {"layers": []}, "layers: name at least one submodule."),
        (Base, {"mixers": ["h.0.atn"]}, "unknown submodule 'h.0.atn'. Did you mean 'h.0.attn'?"),
        (Base, {"sites": ["h.0.nothing"]}, "unknown site 'h.0.nothing'"),
        (Base, {"split": "tset"}, "unknown split 'tset'. Did you mean 'test'?"),
        (Base, {"n": 0}, "ar: the number of documents must be positive"),
        (Base, {"task": "arr"}, "unknown task 'arr'. Did you mean 'ar'?"),
        (Base, {"report": "page.pdf"}, "cannot write a report as 'page.pdf'"),
        (Base, {"scale": "paper"}, "evaluate: scale is for mixer classes, and this is a trained model. Choices:"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path: Path, cls: type[nn.Module], given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        me.evaluate(cls(), **{"task": TASK, "n": N, "store": tmp_path, **given})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_layers_are_found_where_they_are_obvious() -> None:
    assert find_layers(Base()) == ["h.0", "h.1"]
    assert find_layers(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == ["0", "1"]
    many_heads = nn.ModuleDict({"h": nn.ModuleList([nn.ModuleList([nn.Linear(2, 2)])])})
    assert find_layers(many_heads) == ["h.0"], "the outermost list"
    two = nn.ModuleDict({"a": nn.ModuleList([Idle()]), "b": nn.ModuleList([Idle(), Idle()])})
    with pytest.raises(UserError, match=r"layers=\['blocks.0', ...\]; lists in this model: a \(1\), b \(2\)."):
        find_layers(two)
    with pytest.raises(UserError, match="lists in this model: h"):
        find_layers(Direct())
    with pytest.raises(UserError, match="its parts: x"):
        find_layers(nn.ModuleDict({"x": Idle()}))


def test_the_row_stands_beside_the_runs_on_the_same_task_and_nothing_is_trained(tmp_path: Path) -> None:
    base: dict[str, Any] = {
        "preset": "laptop", "d_model": 16, "batch_size": 8, "steps": 12, "evaluate.documents": 16, "evaluate.every": 6,
        "pairs": 4, "keys": 12, "values": 12, "queries": 1,
    }  # fmt: skip
    configs = [me.run_config("ar", mixer, **base, lr=lr) for mixer in ("mamba", "attention") for lr in (1e-3, 3e-3)]
    configs += [me.run_config("ar", "mamba", **base, d_conv=2), me.run_config("ar", "h3", **{**base, "pairs": 3})]
    HereEngine().run([Job(config) for config in configs], str(tmp_path), lambda event: None)
    runs = me.Store(tmp_path).runs()
    found = me.evaluate(Base(), TASK, n=N, store=tmp_path)
    assert list(found.table["mixer"]) == ["Base", "attention", "mamba"]
    plain = runs[(runs["mixer"] == "mamba") & (runs["run"] != configs[4].id)]
    best = plain.sort_values(["dev_accuracy", "dev_likelihood"]).iloc[-1]
    assert found.table["accuracy"][2] == best["test_accuracy"]
    assert list(me.evaluate(Base(), TASK, n=N, store=tmp_path, compare=False).table["mixer"]) == ["Base"]
    assert len(me.Store(tmp_path).ids()) == len(configs)
    assert set(scales.MIXERS) >= set(found.table["mixer"][1:])


def test_scores_are_over_all_queries(tmp_path: Path) -> None:
    task = me.build_task("ar", pairs=4, keys=12, values=12, queries=3)
    lm = handmade("induction", task)
    found = me.evaluate(lm, task, n=N, store=tmp_path)
    batch = task.sample(N, "test")
    with torch.no_grad():
        logits = lm(batch.tokens, at=batch.predict_at)
    likelihood = logits.softmax(-1).gather(-1, batch.targets[..., None]).mean()
    assert found.table["likelihood"][0] == pytest.approx(float(likelihood), abs=1e-6)
    assert found.table["accuracy"][0] == float((logits.argmax(-1) == batch.targets).double().mean())


def test_a_model_of_one_layer_has_no_middle(tmp_path: Path) -> None:
    lm = me.LM(TASK.vocab_size, 8, 1, "attention", max_length=TASK.max_tokens, seed=0)
    found = me.evaluate(Elsewhere(lm), TASK, n=N, store=tmp_path)
    assert found.table["restored_key"].isna().all()
    assert found.verdict is not None
    assert found.verdict.label == "not_learnt"


def test_the_page_has_table_verdict_and_map_as_data(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = me.evaluate(handmade("induction", TASK), TASK, n=N, store=tmp_path / "none", report=page, name="<b>sly</b>")
    text = page.read_text()
    assert found.report == page
    assert "&lt;b&gt;sly&lt;/b&gt;" in text
    assert "<b>sly" not in text
    assert "induction (layer 0 stores the key at the value" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert data["rows"][0][:2] == ["▸ <b>sly</b>", "induction"]
    assert data["own"] == [True]


def test_a_model_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `dev` brings transformers")
    config = transformers.GPT2Config(
        vocab_size=TASK.vocab_size, n_positions=TASK.max_tokens, n_embd=8, n_layer=2, n_head=1, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    found = me.evaluate(
        model, TASK, mixers=["transformer.h.0.attn"], sites=["transformer.h.1.attn.input"], n=N, store=tmp_path
    )
    sites = set(found.effects["site"])
    assert {"transformer.h.0.input", "transformer.h.1.output", "transformer.h.0.attn.output"} <= sites
    after = found.effects.set_index(["site", "role"])["restored"]
    for role in ("key", "value", "query"):  # the same tensor, seen from both sides
        assert after["transformer.h.0.output", role] == pytest.approx(after["transformer.h.1.input", role], abs=1e-6)
    assert after["transformer.h.0.input", "key"] == pytest.approx(float(found.effects["original"].iloc[0]), abs=1e-5)
