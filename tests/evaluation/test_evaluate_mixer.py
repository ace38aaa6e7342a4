"""`me.evaluate` of a mixer class: trained in this process, set beside the built-in ones."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mecheval as me
from evaluation.faulty import BadTap, Future, Good
from mecheval import custom as own
from mecheval.analysis.runs import kept_evidence
from mecheval.errors import UserError
from mecheval.evaluation.custom import make_trials, split_options
from mecheval.evaluation.result import COLUMNS, Evaluation
from mecheval.mixers import MIXERS
from mecheval.store import Store
from mecheval.studies import scales
from mecheval.sweep import HereEngine, Job, Stopped
from training.runs import tiny

TINY = {
    "preset": "laptop", "pairs": 2, "queries": 1, "batch_size": 8, "steps": 20, "evaluate.documents": 16,
    "evaluate.every": 10,
}  # fmt: skip


def shrink(patch: pytest.MonkeyPatch) -> None:
    """A scale whose runs take a moment; and nothing that a test registers stays."""
    patch.setattr(scales, "BASE", {**scales.BASE, ("ar", "laptop"): TINY})
    patch.setattr(scales, "WIDTHS", {**scales.WIDTHS, ("ar", "laptop"): (8, 16)})
    patch.setattr(MIXERS, "_classes", dict(MIXERS._classes))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Evaluation, Path]:
    """One learning rate of a sound mixer, evaluated once for all tests that look at what comes back, and its store."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        store = tmp_path_factory.mktemp("evaluated")
        return me.evaluate(Good, store=store, compare=False, lr=1e-3), store


def stamps(store: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (store / "runs").rglob("*") if path.is_file()}


def test_a_class_is_trained_intervened_on_and_compared(
    tmp_path: Path, here: None, capfd: pytest.CaptureFixture[str]
) -> None:
    result = me.evaluate(Good, "ar", store=tmp_path)
    name = own.own_name(Good)
    assert tuple(result.table.columns) == COLUMNS
    assert list(result.table["mixer"]) == [name, *scales.MIXERS]
    assert set(result.table["d"]) == {16}
    assert result.table["accuracy"].between(0, 1).all()
    rows = Store(tmp_path).runs()
    assert sorted(rows[rows["mixer"] == name]["lr"]) == [1e-3, 3e-3]
    assert len(rows) == 2 + 7
    assert result.verdict is not None
    assert result.table["verdict"][0] == result.verdict.label == "not_learnt"
    assert {"blocks.0.mixer.conv", "blocks.1.input"} <= set(result.effects["site"])
    before = stamps(tmp_path)
    capfd.readouterr()
    again = me.evaluate(Good, "ar", store=tmp_path)
    assert stamps(tmp_path) == before, "nothing is trained again"
    assert "done" not in capfd.readouterr().err
    assert again.table.equals(result.table)


def test_the_effects_are_those_of_the_store_with_the_documents_behind_them(
    evaluated: tuple[Evaluation, Path],
) -> None:
    result, store = evaluated
    stored = Store(store).query("select site, role, restored from effects where state = 'last' order by site, role")
    found = result.effects.sort_values(["site", "role"])
    assert list(found["site"]) == list(stored["site"])
    assert found["restored"].to_numpy() == pytest.approx(stored["restored"].to_numpy(), abs=1e-6)
    kept = [kept_evidence(folder) for folder in map(Store(store).folder, Store(store).ids())]
    assert str(me.verdict([each for each in kept if each is not None])) == str(result.verdict)
    assert result.name in str(result)
    assert str(result).splitlines()[2].split() == [
        "mixer", "verdict", "d", "accuracy", "likelihood", "at", "key", "at", "value", "at", "query", "agreement",
    ]  # fmt: skip


def test_several_seeds_are_judged_together(tmp_path: Path) -> None:
    result = me.evaluate(Good, store=tmp_path, compare=False, lr=(3e-3,), seeds=2)
    assert sorted(Store(tmp_path).runs()["seed"]) == [0, 1]
    assert len(result.table) == 1
    assert sorted(set(result.effects["seed"])) == [0, 1]
    assert result.verdict is not None
    assert "Run by run: 2 x not learnt" in result.verdict.evidence[-1]
    runs = Store(tmp_path).runs()
    assert result.table["accuracy"][0] == pytest.approx(runs["test_accuracy"].mean())


def test_options_reach_the_mixer_and_settings_all_runs(tmp_path: Path) -> None:
    me.evaluate(Good, store=tmp_path, compare=False, lr=1e-3, options={"width": 2, "steps": 7, "task.pairs": 3})
    [row] = Store(tmp_path).rows()
    assert row["config"]["mixer"] == {"name": own.own_name(Good), "width": 2}
    assert (row["steps"], row["config"]["task"]["pairs"]) == (7, 3)


def test_settings_hold_for_those_it_is_compared_with() -> None:
    name = own.own_name(Good)
    MIXERS.replace(name, Good)
    trials = make_trials(Good, name, "ar", "laptop", {"steps": 7, "width": 2}, 1, (), True)
    assert {point.config.data.steps for point in (*trials.own, *trials.others)} == {7}
    plain = make_trials(Good, name, "ar", "laptop", {}, 1, (), True)
    assert [p.config for p in plain.others] == [p.config for p in scales.quick()], "the quickstart's runs"


class Greedy(nn.Module):
    """Takes any name."""

    def __init__(self, d_model: int, steps: int = 3, **rest: Any) -> None:
        super().__init__()


def test_a_name_that_both_have_is_the_mixers() -> None:
    MIXERS.replace("Greedy", Greedy)
    given = {"steps": 5, "data.steps": 9, "batch_size": 4, "mixer.batch_size": 2, "odd": [1, (2,)]}
    inside, settings = split_options(Greedy, "Greedy", "ar", given)
    assert inside == {"steps": 5, "batch_size": 2, "odd": [1, [2]]}
    assert settings == {"data.steps": 9, "batch_size": 4}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"widht": 3}}, "unknown option of Good 'widht'. Did you mean 'width'? Choices: batch_size, bet"),
        ({"options": {"d_model": 3}}, "Good: 'd_model' cannot be an option: the width is given separately (--widths"),
        ({"options": {"width": torch.nn}}, "Good: option 'width' must be plain data"),
        ({"options": {"width": float("nan")}}, "Good: option 'width' must be plain data"),
        ({"options": {"tasks.pairs": 3}}, "unknown part of a run config 'tasks'. Did you mean 'task'?"),
        ({"options": {"steps": 0}}, "data: steps: input should be greater than or equal to 1 (got 0)"),
        ({"task": "arr"}, "unknown task 'arr'. Did you mean 'ar'? Choices: ar, atr,"),
        ({"scale": "huge"}, "unknown scale 'huge'. Choices: laptop, paper."),
        ({"seeds": 0}, "seeds: must be at least 1 (got 0)."),
        ({"lr": -1.0}, "optimiser: lr: input should be greater than 0 (got -1.0)"),
        ({"report": "report.pdf"}, "cannot write a report as 'report.pdf'"),
        ({"layers": ["a"]}, "evaluate: layers is for trained models, and this is a mixer class. Choices: scale, "),
        ({"option": {}}, "unknown option of evaluate 'option'. Did you mean 'options'?"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        me.evaluate(Good, **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Future, "Future is not causal"),
        (BadTap, "BadTap does not work in a model under interventions"),
        (dict, "dict is not a torch module; write `class dict(torch.nn.Module)`."),
        ("mamba", "there is no folder mamba; a checkpoint is a folder with config.json and *.safetensors."),
        (len, "a trained torch module or the folder of a checkpoint (got builtin_function_or_method)."),
        (type("a<b>", (Good,), {}), "its class must have a Python name (got 'a<b>')."),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_told(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        me.evaluate(model, store=tmp_path / "store")
    assert message in str(error.value)
    assert not (tmp_path / "store").exists()


class Explodes(nn.Module):
    """Diverges after some steps of training, not before."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * (1 + self.steps) if float(self.steps.detach().abs()) < 1e-2 else x / 0
        return out


def test_divergence_is_a_result(tmp_path: Path) -> None:
    result = me.evaluate(Explodes, store=tmp_path, compare=False, lr=0.1)
    assert list(result.table["verdict"]) == ["diverged"]
    assert result.verdict is None
    assert result.effects.empty
    assert "diverged" in str(result)


class Fails(nn.Module):
    """Works until it is trained for real."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] == TINY["batch_size"]:
            raise RuntimeError("no memory left")
        return x * (1 + self.weight)


def test_a_run_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"ar · Fails@\w{8} · d 16 · lr 0.001 · seed 0 failed: RuntimeError: no memory left"
    ):
        me.evaluate(Fails, store=tmp_path, compare=False, lr=1e-3)


def test_warnings_are_kept_and_shown(tmp_path: Path) -> None:
    from evaluation.faulty import Constant

    result = me.evaluate(Constant, store=tmp_path, compare=False, lr=1e-3)
    assert result.warnings == ("the output of Constant does not depend on its input at all.",)
    assert "Warning: the output of Constant" in str(result)


def test_a_class_defined_again_with_the_same_source_is_the_same_mixer(tmp_path: Path) -> None:
    def made() -> type[nn.Module]:
        class Twice(nn.Module):
            def __init__(self, d_model: int) -> None:
                super().__init__()

            def forward(self, x: Tensor) -> Tensor:
                return x.cumsum(1)

        return Twice

    me.evaluate(made(), store=tmp_path, compare=False, lr=1e-3)
    before = stamps(tmp_path)
    me.evaluate(made(), store=tmp_path, compare=False, lr=1e-3)
    assert stamps(tmp_path) == before


def test_the_report_is_on_the_store(
    tmp_path: Path, evaluated: tuple[Evaluation, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, str, str]] = []

    def write(store: Store, path: Path, scale: str) -> Path:
        asked.append((store.path, str(path), scale))
        return Path(path)

    monkeypatch.setattr("mecheval.evaluation.custom.write_report", write)
    page = tmp_path / "report.html"
    result = me.evaluate(Good, store=evaluated[1], compare=False, lr=1e-3, report=page)
    assert asked == [(evaluated[1], str(page), "laptop")]
    assert result.report == page


def test_a_notebook_shows_text_as_text(evaluated: tuple[Evaluation, Path]) -> None:
    result, _ = evaluated
    shown = result._repr_html_()
    assert f"<td>▸ {result.name}</td>" in shown
    from dataclasses import replace

    sly = replace(result, title="<script>", warnings=("<img src=x>",))
    assert "<script>" not in sly._repr_html_()
    assert "<img" not in sly._repr_html_()


def test_the_engine_of_this_process_stops_at_a_signal_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mecheval.sweep.job.REPORT_SECONDS", 0.0)
    job = Job(tiny(steps=60))
    steps: list[int] = []

    def interrupt(event: Any) -> None:
        steps.append(event.step)
        if event.kind == "step" and event.step > 20:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped):
        HereEngine().run([job], str(tmp_path), interrupt)
    assert Store(tmp_path).folder(job.run).status()["status"] == "interrupted"
    heard: list[Any] = []
    HereEngine().run([job], str(tmp_path), heard.append)
    assert heard[0].kind == "begin"
    assert heard[0].step > 20
    assert heard[-1].status == "done"


def test_an_interrupted_call_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(HereEngine, "run", stopped)
    with pytest.raises(KeyboardInterrupt, match="progress is saved, and the same call resumes"):
        me.evaluate(Good, store=tmp_path, compare=False)


def test_it_works_outside_the_main_thread(tmp_path: Path) -> None:
    found: list[str] = []
    work = threading.Thread(target=lambda: found.append(me.evaluate(Good, store=tmp_path, compare=False, lr=1e-3).name))
    work.start()
    work.join()
    assert found == [own.own_name(Good)]


def test_the_table_is_plain_data(evaluated: tuple[Evaluation, Path]) -> None:
    result, _ = evaluated
    [row] = json.loads(result.table.to_json(orient="records"))
    assert row["mixer"] == result.name
