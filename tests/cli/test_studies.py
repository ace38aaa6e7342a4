from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import mecheval.figures
from commands import Command, forked
from mecheval.store import RESULTS, Store
from mecheval.studies import STUDIES, scales, study_points
from mecheval.sweep import LocalEngine
from training.runs import outcome

TINY = {
    "preset": "laptop", "d_model": 16, "batch_size": 8, "steps": 20, "evaluate.documents": 16, "evaluate.every": 10,
}  # fmt: skip


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, with studies of runs that take a moment."""
    tasks = {"ar": {"pairs": 2, "queries": 1}, "atr": {"max_length": 8, "queries": 1}}
    base = {(task, "laptop"): {**TINY, **options} for task, options in tasks.items()}
    monkeypatch.setattr(scales, "BASE", {**scales.BASE, **base})
    monkeypatch.setattr(scales, "WIDTHS", {**scales.WIDTHS, ("ar", "laptop"): (16,), ("atr", "laptop"): (16,)})
    return Command(monkeypatch, capsys)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take seconds; where they are not the point, none is drawn."""
    monkeypatch.setattr(mecheval.figures, "save", lambda chart, path: path)


def test_a_study_trains_intervenes_draws_and_is_not_done_twice(command: Command, tmp_path: Path, here: None) -> None:
    store = str(tmp_path / "store")
    code, out, err = command("draw", "study", "ar", "--store", store, "--curves")
    assert (code, out) == (2, "")
    assert "the store has no learning curves of ar" in err
    words = ["study", "ar", "--store", store, "--only", "mixer=attention,delta_net", "lr=1e-3"]
    code, out, err = command(*words, "--status")
    assert (code, err) == (0, "")
    assert out.startswith("ar: 0 of 2 runs done · 0 running · 2 left · about ")
    assert not Path(store).exists(), "asking trains nothing and writes nothing"
    code, out, err = command(*words, "--log", str(tmp_path / "log"), "--nice", "19")
    assert code == 0, err
    assert "ar: Which mixers recall" in out
    assert (tmp_path / "log").read_text().count("Z done ") == 2
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("attention", "delta_net"))] == [
        "attention", "delta_net",
    ]  # fmt: skip
    assert err.count("done ") == 2
    for suffix in ("svg", "png", "json"):
        assert (tmp_path / "store" / "figures" / f"ar-laptop.{suffix}").stat().st_size > 1000
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "store" / "runs").rglob("*") if path.is_file()}
    code, again, err = command(*words)
    assert (code, again) == (0, out)
    assert "done " not in err
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    assert command(*words, "--status") == (0, "ar: 2 of 2 runs done · 0 running · 0 left\n", "")
    sweep = ("--nice", "19", "--workers", "1", "--log", "sweep.log", "--figures", "f", "--skip-published")
    assert command(*words, *sweep, "--status") == command(*words, "--status")  # the command of a sweep, and --status
    assert not Path("sweep.log").exists()
    assert json.loads(command(*words, "--status", "--json")[1])["ar"]["done"] == 2
    assert (tmp_path / "store" / "figures" / "ar-laptop-curves.png").exists()
    for words, name in (([], "a.svg"), (["--curves"], "b.json")):  # again, from the store
        path = tmp_path / name
        code, out, err = command("draw", "study", "ar", "--store", store, *words, "--save", str(path))
        assert (code, out) == (0, f"wrote {path}\n"), err
        assert path.stat().st_size > 1000


def test_studies_of_convolutions_and_hybrids_are_trained_and_drawn(
    command: Command, tmp_path: Path, here: None, undrawn: None
) -> None:
    store = ["--store", str(tmp_path)]
    code, out, err = command("study", "canon", "mixer=mamba", "short_conv=none,A", *store)
    assert code == 0, err
    assert [line[:14] for line in out.splitlines() if line.startswith(("no conv", "Canon"))] == [
        "no convolution", "Canon A       ",
    ]  # fmt: skip
    code, out, err = command("study", "hybrids", "--only", "mixer=mamba+attention,attention+mamba", "lr=1e-3", *store)
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines() if "+" in line] == ["attention+mamba", "mamba+attention"]
    for words in (["study", "canon"], ["study", "hybrids", "--curves"], ["mechanisms", "--study", "hybrids"]):
        assert command.prints("draw", *words, "--save", str(tmp_path / "chart.json"), *store).startswith("wrote ")


def test_results_as_json(command: Command, tmp_path: Path, here: None, undrawn: None) -> None:
    words = ["study", "ar", "--store", str(tmp_path), "--only", "mixer=attention", "--lr", "1e-3,1e-2", "--seeds", "2"]
    code, out, err = command(*words, "--json")
    assert code == 0, err
    rows = json.loads(out)["ar"]
    assert [(row["mixer"], row["seed"]) for row in rows] == [("attention", 0), ("attention", 1)]
    assert {row["lr"] for row in rows} <= {1e-3, 1e-2}
    assert len(Store(tmp_path).ids()) == 4


def test_studies_are_listed_with_what_is_done(command: Command, tmp_path: Path, here: None, undrawn: None) -> None:
    code, out, _ = command("list", "studies", "--store", str(tmp_path), "--json")
    assert code == 0
    rows = {row["study"]: row for row in json.loads(out)}
    assert list(rows) == list(STUDIES)
    assert all(row["done"] == 0 and row["seconds"] > 0 for row in rows.values())
    command("study", "ar", "--store", str(tmp_path), "--only", "mixer=attention")
    rows = {row["study"]: row for row in json.loads(command("list", "studies", "--store", str(tmp_path), "--json")[1])}
    assert rows["ar"]["done"] == 2
    assert rows["depth"]["done"] == 1, "the same run: two layers of the same width, at attention's preferred rate"
    assert rows["atr"]["done"] == 0
    text = command("list", "studies", "--store", str(tmp_path))[1]
    assert "question (scale laptop)" in text
    assert "4b" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arr"], "unknown study 'arr'"),
        (["ar", "--scale", "huge"], "unknown scale 'huge'. Choices: laptop, paper."),
        (["ar", "--only", "mixer"], "--only takes AXIS=VALUE,VALUE (got 'mixer')"),
        (["ar", "--only", "mixr=mamba"], "unknown axis 'mixr'"),
        (["ar", "--only", "mixer=mambo"], "no run has mixer mambo. Choices: attention, base_conv"),
        (["ar", "--lr", "fast"], "--lr takes positive numbers, comma-separated (got 'fast')"),
        (["ar", "--seeds", "0"], "seeds: must be at least 1 (got 0)"),
        (["ar", "--engine", "rya"], "unknown engine 'rya'"),
        (["ar", "--store", "s3://bucket/runs"], "the store s3://bucket/runs is a URL; mount it as a folder"),
        (["ar", "--gpus", "1"], "--gpus is for --engine ray or slurm. Choices with --engine local: --workers, --nice."),
        (["ar", "--cpus", "2", "--engine", "local"], "--cpus is for --engine ray or slurm."),
        (["ar", "--address", "auto"], "--address is for --engine ray."),
        (["ar", "--workers", "2", "--engine", "ray"], "Choices with --engine ray: --address, --cpus, --gpus."),
        (["ar", "--nice", "5", "--engine", "ray"], "--nice is for --engine local."),
        (["ar", "--gpus", "1", "--status"], "--gpus is for --engine ray or slurm."),
        (["mixer=mamba"], "name a study. Choices: ar, ar_mamba_conv"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command("study", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_are_refused_before_anything_is_computed(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    for words, problem in (
        (["--store", str(file)], f"cannot use the store {file}/figures: {file} is a file, not a folder."),
        (["--store", str(tmp_path / "s"), "--figures", str(file)], f"cannot use the folder of figures {file}"),
        (["--store", str(tmp_path / "s"), "--log", str(tmp_path)], f"cannot write the log {tmp_path}: Is a directory."),
    ):
        code, out, err = command("study", "ar", *words)
        assert (code, out) == (2, "")
        assert problem in err
        assert err.count("\n") == 1
    assert not (tmp_path / "s" / "runs").exists()


def test_a_failed_run_is_told_and_the_others_are_kept(
    command: Command, tmp_path: Path, here: None, undrawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {**scales.BASE["ar", "laptop"], "device": "cuda:7"}
    monkeypatch.setattr(scales, "BASE", {**scales.BASE, ("ar", "laptop"): broken})
    code, _, err = command("study", "ar", "--store", str(tmp_path), "--only", "mixer=attention", "lr=1e-3")
    assert code == 2
    assert "failed: ar · attention · d 16 · lr 0.001 · seed 0" in err
    assert "device cuda:7: PyTorch sees" in err
    assert "1 run failed (see above); run the same command again to retry." in err


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words = ["study", "ar", "--store", str(tmp_path), "--only", "mixer=attention", "d_model=128", "lr=0.001"]
    child = forked(words, tmp_path / "said")
    deadline = time.monotonic() + 60
    while not any((tmp_path / "runs").glob("*/status.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child, signal.SIGINT)
    assert outcome(child) == 130
    said = (tmp_path / "said").read_text()
    assert "Traceback" not in said
    assert "Run the same command again to resume." in said
    (row,) = Store(tmp_path).rows()
    assert row["status"] == "interrupted"


def test_published_runs_are_shown_and_not_trained_again(
    command: Command, tmp_path: Path, undrawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, trained = tmp_path / "store", list[str]()
    monkeypatch.setattr(LocalEngine, "run", lambda _, jobs, *rest: trained.extend(job.config.title for job in jobs))
    words = ["study", "ar", "--scale", "paper", "--store", str(store), "--skip-published"]
    code, out, err = command(*words, "--only", "mixer=attention,mamba", "d_model=32", "lr=1e-3")
    assert code == 0, err
    assert [line.split()[:1] for line in out.splitlines() if "0.981" in line] == [["attention"]]
    assert not trained
    assert not (store / "runs").exists()
    there = set(Store(RESULTS).ids())
    missing = next(
        point.config
        for point in study_points(STUDIES["ar"], "paper")
        if (point.config.mixer.name, point.config.optimiser.lr) == ("attention", 1e-3) and point.config.id not in there
    )
    command(*words, "--only", "mixer=attention", f"d_model=32,{missing.model.d_model}", "lr=1e-3")
    assert trained == [missing.title], "the other one is published"


def test_a_study_searches_rates_and_tracks_its_runs(
    command: Command, tmp_path: Path, here: None, undrawn: None
) -> None:
    pytest.importorskip("optuna", reason="the extra `dev` brings optuna")
    pytest.importorskip("tensorboard", reason="the extra `dev` brings tensorboard")
    store = str(tmp_path / "store")
    words = ["study", "ar", "mixer=attention", "--search", "2", "--lr", "1e-3,1e-2", "--store", store]
    code, out, err = command(*words, "--track", "tensorboard")
    assert code == 0, err
    rates = Store(store).query("select run, lr from runs where status = 'done'").set_index("run")["lr"]
    assert len(rates) == 2
    assert rates.between(1e-3, 1e-2).all()
    assert {path.name for path in (tmp_path / "store" / "tensorboard").iterdir()} == set(rates.index)
    code, again, err = command(*words)
    assert (code, again) == (0, out)
    assert len(Store(store).ids()) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--search", "4", "--lr", "1e-3"], "--search takes --lr LOWEST,HIGHEST: the window of learning rates."),
        (["--search", "4", "--status"], "--status cannot know which learning rates will be tried; leave out --search."),
        (["--track", "mlflow"], "unknown tracker 'mlflow'. Choices: tensorboard, wandb, wandb-offline."),
        (["--latex", "--status"], "--status is a line of text, or --json; leave out --latex."),
        (["--skip-published", "--search", "2"], "--skip-published is for a study's own learning rates; leave out"),
        (["--device", "cuda:7"], "device cuda:7: PyTorch sees 0 CUDA devices here; try device cpu."),
        (["--device", "tpu"], "machine: device: should be cpu, cuda, cuda:0, cuda:1, ... or mps (got 'tpu')"),
        (["--gpus", "1"], "--gpus is for --engine ray or slurm. Choices with --engine local: --workers, --nice."),
        (["--address", "auto", "--engine", "slurm"], "--address is for --engine ray."),
        (["--partition", "cpu"], "--partition is for --engine slurm."),
        (["--minutes", "5", "--engine", "ray"], "--minutes is for --engine slurm."),
    ],
)
def test_options_without_effect_are_refused(
    words: list[str], message: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    code, out, err = command("study", "ar", "mixer=attention", "--store", str(tmp_path / "store"), *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
