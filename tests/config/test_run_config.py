from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from mecheval.config import PRESETS, RunConfig, run_config
from mecheval.errors import UserError
from mecheval.mixers import MIXERS
from mecheval.store import RESULTS, Store
from mecheval.tasks import TASKS


@pytest.mark.parametrize("task", TASKS.names())
def test_a_config_comes_back_from_yaml_as_it_was(task: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for mixer, preset in itertools.product(MIXERS.names(), PRESETS):
        config = run_config(task, mixer, preset)
        path.write_text(config.to_yaml())
        again = RunConfig.load(path)
        assert again == config
        assert again.id == config.id
        if task == "ar" or mixer == "hyena":  # the one whose parameters are as long as a task's documents
            config.build_lm()


def test_the_defaults_are_the_papers() -> None:
    ar, atr = run_config("ar").to_dict(), run_config("atr").to_dict()
    assert ar["data"] == {"documents": 100_032, "batch_size": 32, "steps": 50_016, "shuffle": False}
    assert atr["data"]["steps"] == 100_032
    assert ar["optimiser"] | {"lr": None} == {
        "lr": None, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "clip": None,
    }  # fmt: skip
    assert ar["schedule"] == {"warmup": 0.1, "decay": "cosine"}
    assert ar["model"]["n_layers"] == 2
    assert ar["model"]["positions"] == "learned"
    assert run_config(mixer="mamba").model.positions == "none"
    assert (ar["evaluate"]["documents"], ar["evaluate"]["stop_at"], ar["evaluate"]["patience"]) == (320, None, None)
    assert ar["task"]["pairs"] == 16


SPELT: dict[str, Any] = {"optimiser.lr": 0.001, "data.epochs": 16.0}


def test_the_id_depends_on_meaning_and_not_on_spelling() -> None:
    base = run_config("ar", "mamba")
    same = [
        run_config("ar", "mamba", lr=1e-3, pairs=16, d_conv=4),
        run_config("ar", "mamba", steps=50_016),
        run_config("ar", "mamba", **SPELT),
        run_config("ar", "mamba", weight_decay=0),
        RunConfig.read({"mixer": "mamba", "data": {"epochs": 16}, "task": {"name": "ar", "values": 4096}}),
    ]
    assert {config.id for config in same} == {base.id}
    assert len({base, *same}) == 1
    other: list[dict[str, Any]] = [
        {"lr": 1.1e-3},
        {"pairs": 15},
        {"d_conv": 3},
        {"seed": 1},
        {"every": 499},
        {"threads": 2},
        {"epochs": 17},
    ]
    assert len({base.id, *(run_config("ar", "mamba", **change).id for change in other)}) == len(other) + 1


def test_ids_are_the_same_on_every_machine() -> None:
    assert [run_config("ar", "attention").id, run_config("atr", "h3").id] == ["572b188eb5f0", "9061a5f334e8"]


CANON_ID, HYBRID_ID, BF16_ID = "f56868060847", "6b0828274f11", "dfa55ee69b2f"


def test_canon_off_is_no_part_of_an_id_and_its_letters_are() -> None:
    plain = run_config("ar", "attention")
    assert run_config("ar", "attention", canon="").id == plain.id
    assert "canon" not in plain.to_dict()["model"]
    config = run_config("ar", "attention", canon="ca")
    assert config.id == run_config("ar", "attention", canon="AC").id == CANON_ID
    again = RunConfig.read(config.to_dict())
    assert (again, again.model.canon) == (config, "AC")
    assert "blocks.0.canon_c" in config.build_lm().sites()


def test_a_hybrid_has_one_id_however_it_is_written(tmp_path: Path) -> None:
    small: dict[str, Any] = {"mamba.d_state": 8}
    config = run_config("ar", "mamba+attention", **small)
    assert (config.mixer.name, config.model.n_layers, config.model.positions) == ("mamba+attention", 2, "learned")
    assert config.mixer.options == {
        "mamba.d_state": 8, "mamba.d_conv": 4, "mamba.expand": 2, "attention.num_heads": 1, "attention.bias": False,
        "attention.rotary": False,
    }  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text("task: ar\nmixer: {name: [mamba, attention], mamba.d_state: 8}\ndata: {epochs: 16}\n")
    same = [
        run_config("ar", "mamba,attention", d_state=8),
        run_config("ar", "mamba + 1*attention", n_layers=2, d_state=3, **small),
        run_config("ar", mixer=["mamba", "attention"], d_state=8),
        RunConfig.load(path),
        RunConfig.read(config.to_dict()),
    ]
    assert {each.id for each in (config, *same)} == {HYBRID_ID}
    deeper = run_config("ar", "mamba+attention", n_layers=4)
    assert deeper.id == run_config("ar", "mamba+attention+mamba+attention").id
    assert (deeper.mixer.name, deeper.build_lm().n_layers) == ("mamba+attention", 4)
    assert run_config("ar", "3*mamba").id == run_config("ar", "mamba", n_layers=3).id
    long = run_config("ar", "hyena+attention", pairs=2000, positions="rotary").mixer.options
    assert (long["hyena.l_max"], long["attention.rotary"]) == (4005, True)


def test_precision_is_part_of_an_id_unless_it_is_full() -> None:
    plain, rounded = run_config("ar", "attention"), run_config("ar", "attention", precision="bf16")
    assert run_config("ar", "attention", precision="full").id == plain.id == "572b188eb5f0"
    assert "precision" not in plain.to_dict()["machine"]
    assert RunConfig.read(rounded.to_dict()).id == rounded.id == BF16_ID
    assert rounded.machine.precision == "bf16"


def test_published_runs_keep_their_ids() -> None:
    rows = Store(RESULTS).rows()
    assert len(rows) > 100
    assert all(RunConfig.read(row["config"]).id == row["run"] for row in rows)


def test_an_option_that_was_added_later_changes_no_stored_id() -> None:
    plain, signs = run_config("ar", "delta_net"), run_config("ar", "delta_net", allow_neg_eigval=True)
    assert plain.id == run_config("ar", "delta_net", allow_neg_eigval=False).id == "4d8f5524a0fd"
    assert run_config("atr", "delta_net", num_heads=2).id == "acfcc08a759a"
    assert "allow_neg_eigval" not in plain.mixer.options
    assert signs.id != plain.id
    assert RunConfig.read(signs.to_dict()).id == signs.id


def test_filters_reach_over_the_longest_document() -> None:
    assert run_config("ar", "hyena").mixer.options["l_max"] == 1024
    assert run_config("ar", "hyena", pairs=2000).mixer.options["l_max"] == 4005  # 2 * 2000 + 5
    assert run_config("ar", "hyena", l_max=64).mixer.options["l_max"] == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lrr": 1.0}, "unknown option 'lrr'. Did you mean 'lr'?"),
        ({"optimizer.lr": 1.0}, "unknown part of a run config 'optimizer'. Did you mean 'optimiser'?"),
        ({"optimiser.lrr": 1.0}, "unknown option of optimiser 'lrr'. Did you mean 'lr'? Choices: betas, clip, eps, lr"),
        ({"documents": 3}, "option 'documents' could be data.documents or evaluate.documents: say which."),
        ({"lr": "fast"}, "optimiser: lr: input should be a valid number (got 'fast')"),
        ({"lr": -1.0}, "optimiser: lr: input should be greater than 0 (got -1.0)"),
        ({"pairs": "8"}, "ar: pairs: input should be a valid integer (got '8')"),
        ({"task.pears": 8}, "unknown option of ar 'pears'. Did you mean 'pairs'?"),
        ({"task": "arr"}, "unknown task 'arr'. Did you mean 'ar'? Choices: ar, atr,"),
        ({"mixer": "mamb"}, "unknown mixer 'mamb'. Did you mean 'mamba'?"),
        ({"preset": "lap"}, "unknown preset 'lap'. Did you mean 'laptop'? Choices: laptop, paper."),
        ({"data.documents": None, "epochs": 2}, "a stream of fresh documents has no epochs; give steps."),
        ({"epochs": 0}, "data.epochs: must be a positive number of at most 1e+12 (got 0)."),
        ({"epochs": 1, "steps": 1}, "data: give steps or epochs, not both."),
        ({"seed": 1.5}, "seed: must be a whole number from 0 to 2**63 - 1 (got 1.5)."),
        ({"seed.x": 1}, "unknown part of a run config 'seed'."),
        ({"device": "tpu"}, "machine: device: should be cpu, cuda, cuda:0, cuda:1, ... or mps (got 'tpu')"),
        ({"precision": "half"}, "machine: precision: input should be 'full' or 'bf16' (got 'half')"),
        (
            {"precision": "bf16", "dtype": "float64"},
            "machine: precision bf16 is for dtype float32, device cpu (got float64, cpu).",
        ),
        ({"precision": "bf16", "device": "cuda"}, "dtype float32, device cpu (got float32, cuda)."),
        ({"dtype": "half"}, "machine: dtype: input should be 'float32' or 'float64' (got 'half')"),
        ({"decay": "step"}, "schedule: decay: input should be 'cosine', 'linear' or 'constant' (got 'step')"),
        ({"canon": "AE"}, "model: canon: give some of the letters A, B, C, D, each once (got 'AE')."),
        ({"canon": 3}, "model: canon: input should be a valid string (got 3)"),
        ({"mixer": "mamba+atention"}, "unknown mixer 'atention'. Did you mean 'attention'?"),
        ({"mixer": "mamba+"}, "mixer: write layers as mamba+attention or 3*mamba+attention (got 'mamba+')."),
        ({"mixer": "2*mamba+attention", "n_layers": 4}, "n_layers=4 is not a multiple of the pattern's 3 layers"),
        ({"mixer": "mamba+attention", "d_stat": 4}, "unknown option 'd_stat'. Did you mean 'd_state'?"),
        ({"mixer": "mamba+attention", "mambo.d_state": 4}, "'mambo'. Did you mean 'mamba'? Choices: attention, data,"),
        ({"mixer": "mamba+attention", "mamba.bias": True}, "unknown option of mamba 'bias'. Choices: d_conv, d_state"),
        (
            {"mixer": "mamba+attention", "mamba.d_state": 0},
            "mamba: d_state: input should be greater than or equal to 1",
        ),
        ({"positions": "sine"}, "model: positions: input should be 'none', 'learned' or 'rotary' (got 'sine')"),
    ],
)
def test_a_mistake_is_one_line_that_names_field_and_choices(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        run_config(**options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixer: attention\ndata: {steps: 1}", "a run config needs a task. Choices: ar, atr,"),
        ("task: ar\nmixer: attention", "data: give steps or epochs."),
        ("task: {pairs: 8}\nmixer: attention\ndata: {steps: 1}", "task.name is missing. Choices: ar, atr,"),
        ("task: ar\nmixer: attention\nmodel: 64", "model: must be a mapping of names to values (got 64)."),
        ("task: ar\ntask: atr", "line 2: 'task' is given twice"),
        ("task: [", "is not YAML"),
        ("- task", "must contain a mapping of names to values (got list)"),
        (
            "task: !!python/object/apply:os.system ['true']",
            "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system is",
        ),
        (
            "task: ar\nmixer: attention\nsede: 3\ndata: {steps: 1}",
            "unknown part of a run config 'sede'. Did you mean 'seed'?",
        ),
    ],
)
def test_a_mistake_in_a_file_too(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        RunConfig.load(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_may_write_numbers_as_people_do(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("task: {name: ar, pairs: 8}\nmixer: mamba\noptimiser: {lr: 3e-3, eps: 1E-9}\ndata: {steps: 10}\n")
    config = RunConfig.load(path)
    assert (config.optimiser.lr, config.optimiser.eps) == (0.003, 1e-9)
    with pytest.raises(UserError, match=r"cannot read .*missing\.yaml"):
        RunConfig.load(tmp_path / "missing.yaml")


def test_a_config_cannot_be_changed() -> None:
    config = run_config()
    with pytest.raises(Exception, match="frozen"):
        config.optimiser.lr = 1.0  # type: ignore[misc]
    with pytest.raises(Exception, match="cannot assign"):
        config.seed = 1  # type: ignore[misc]
