from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import mecheval as me
from commands import Command
from mecheval.analysis import runs, weights
from mecheval.analysis.weights import add_pretrained, load_pretrained, weights_file
from mecheval.errors import UserError
from mecheval.report.documents import explore, kept_documents
from mecheval.store import RESULTS, RunFolder, Store
from mecheval.store.published import is_published, pretrained_files
from mecheval.studies import STUDIES, study_points
from mecheval.training import train
from training.runs import tiny


def test_a_run_becomes_a_pretrained_model(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    config, store, to = tiny(steps=4), tmp_path / "store", tmp_path / "results"
    folder = train(config, store)
    out = command.prints("results", "add", config.id[:6], "--weights", "--store", str(store), "--to", str(to))
    assert out.startswith("1 of 1 runs are new or changed; ")
    assert out.endswith("weights: ar-attention-16\n")
    assert command.prints("results", "add", "--store", str(store), "--to", str(to)).startswith("0 of 1 runs are new")
    tokens = config.build_task().sample(3, "test").tokens
    assert torch.equal(
        load_pretrained("ar-attention-16", to)(tokens), me.load_lm(folder.weights / "last.safetensors")(tokens)
    )
    found = runs.load_run(Store(to).folder(config.id))
    assert (found.config, found.step) == (config, 4)
    assert torch.equal(found.lm.double()(tokens), load_pretrained("ar-attention-16", to).double()(tokens))
    assert kept_documents(to) == {config.id: explore(Store(to).folder(config.id))}  # no report has to compute it
    with pytest.raises(UserError, match=r"no pretrained model of mamba on ar comes with .* On ar: ar-attention-16"):
        load_pretrained("ar-mamba-16", to)
    [path] = pretrained_files(to).values()
    shown = path.with_suffix(".json")
    shown.write_text(shown.read_text().replace('{"weights":"', '{"weights":"0'))
    assert kept_documents(to) == {}  # of other weights
    path.rename(path.with_name("ar-mamba-16.safetensors"))
    with pytest.raises(UserError, match="is damaged: it contains ar-attention-16"):
        load_pretrained("ar-mamba-16", to)
    path.with_name("ar-mamba-16.safetensors").write_bytes(folder.read_file("weights/last.safetensors")[:-1] + b"x")
    with pytest.raises(UserError, match="its tensors do not match their checksum"):
        load_pretrained("ar-mamba-16", to)
    monkeypatch.setattr(weights, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="at most 1,000 fit"):
        add_pretrained(Store(store).folder(config.id), to)


def test_a_worse_run_never_takes_the_place_of_a_published_model(tmp_path: Path, command: Command) -> None:
    points = study_points(STUDIES["ar"], "paper", 1, {"mixer": ["attention"], "d_model": [32], "lr": [1e-3, 3e-3]})
    stores, to = [tmp_path / "first", tmp_path / "second"], tmp_path / "results"
    for store, point, accuracy in zip(stores, points, (0.9, 0.1), strict=True):
        config, folder = point.config, Store(store).folder(point.config.id)
        with folder.exclusive():
            state = config.build_lm(config.build_task()).state_dict()
            folder.write_files({
                "config.yaml": config.to_yaml().encode(),
                "weights/last.safetensors": weights_file(config, "last", 1, state),
            })  # fmt: skip
            folder.set_status(
                status="done", task="ar", mixer="attention", d_model=32, n_layers=2, lr=config.optimiser.lr, seed=0,
                step=1, steps=1, config=config.to_dict(), dev_accuracy=accuracy, dev_likelihood=accuracy,
            )  # fmt: skip
    added = [command.prints("results", "add", "--weights", "--store", str(store), "--to", str(to)) for store in stores]
    assert ["weights: ar-attention-32" in out for out in added] == [True, False]
    unfinished = Store(stores[1]).folder(points[0].config.id)  # of a run that is published
    with unfinished.exclusive():
        unfinished.set_status(status="interrupted", step=1, steps=2, config=points[0].config.to_dict())
    assert "weights:" not in command.prints("results", "add", "--weights", "--store", str(stores[1]), "--to", str(to))


def test_the_models_of_the_package_load_and_fit(command: Command) -> None:
    sizes = [path.stat().st_size for path in pretrained_files().values()]
    assert sum(sizes) <= weights.MOST_BYTES
    for name in pretrained_files():
        assert isinstance(load_pretrained(name), me.LM)
    listed = command.prints("list", "pretrained")
    assert all(name in listed for name in pretrained_files())
    assert Store(RESULTS).exists()


def test_a_pretrained_model_is_a_run_to_which_interventions_add_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = weights.find_run(Store(tmp_path), "ar-attention-32")
    assert is_published(folder)
    monkeypatch.setattr(runs, "measure", lambda lm, clean, corrupted: (lm, len(clean)))
    monkeypatch.setattr(RunFolder, "exclusive", lambda folder: pytest.fail("published runs are not written"))
    found: Any = runs.probe(folder)
    assert (found[0].d_model, found[1]) == (32, 320)
    with pytest.raises(UserError, match="has no best weights; it has: last"):
        runs.load_run(folder, "best")
    with pytest.raises(UserError, match="unknown pretrained model 'ar-attention-33'"):
        weights.find_run(Store(tmp_path), "ar-attention-33")
    without = next(run for run in Store(RESULTS).ids() if run not in kept_documents())
    with pytest.raises(UserError, match="has no last weights; it is published without them"):
        runs.load_run(Store(RESULTS).folder(without))


def test_a_pretrained_model_is_exported(tmp_path: Path, command: Command) -> None:
    command.prints("export", "ar-attention-32", "--to", str(tmp_path / "model"))
    for name in ("README.md", "config.yaml"):  # as if it had been killed while it wrote this file
        (tmp_path / "model" / "README.md").unlink()
        (tmp_path / "model" / name).unlink(missing_ok=True)
        (tmp_path / "model" / f".{name}.x.part").write_text("half")
        command.prints("export", "ar-attention-32", "--to", str(tmp_path / "model"))
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.safetensors", "config.yaml", "README.md"}
    code, _, err = command("export", "ar-attention-32", "--to", str(tmp_path / "model"))
    assert (code, "exists and is not an empty folder" in err) == (2, True)
    tokens = torch.arange(8)[None]
    assert torch.equal(me.load_lm(tmp_path / "model")(tokens), load_pretrained("ar-attention-32")(tokens))


def alike(new: Any, old: Any) -> bool:
    """Whether data is the same but for the last digit, which may be rounded otherwise on another CPU."""
    if isinstance(new, dict) and isinstance(old, dict):
        return new.keys() == old.keys() and all(alike(new[name], old[name]) for name in new)
    if isinstance(new, list) and isinstance(old, list):
        return len(new) == len(old) and all(map(alike, new, old))
    if isinstance(new, int | float) and isinstance(old, int | float):
        return abs(new - old) <= (1 if isinstance(new, int) and isinstance(old, int) else 0.011)
    return bool(new == old)


def test_what_reports_show_of_published_models_is_what_their_weights_give() -> None:
    kept, run = kept_documents(), weights.find_run(Store(RESULTS), "ar-attention-32")
    assert len(kept) == len(pretrained_files())
    assert alike(explore(run), kept[run.id]), "the report has changed: run `mecheval results refresh`"


@pytest.mark.parametrize("name", ["ar-mamba-32", "atr-based-32", "atr-delta_net-32"])
def test_published_verdicts_are_what_their_weights_give(name: str) -> None:
    run = weights.find_run(Store(RESULTS), name)
    [stored] = run.read("verdicts")
    found = runs.probe(run).verdict.finding
    assert str(found) == stored["summary"], "the rule has changed: run `mecheval results refresh`"


def test_published_verdicts_are_computed_anew(tmp_path: Path, command: Command) -> None:
    results = tmp_path / "results"
    origin = weights.find_run(Store(RESULTS), "atr-mamba-32")
    shutil.copytree(origin.path, results / "runs" / origin.id)
    (results / "weights").mkdir()
    for suffix in (".safetensors", ".json"):
        shutil.copy(RESULTS / "weights" / f"atr-mamba-32{suffix}", results / "weights")
    run = Store(results).folder(origin.id)
    [right] = run.read("verdicts")
    run.replace(
        {"verdicts": [right | {"label": "pointer", "summary": "wrong"}]}, ("state",), "interventions on last, test"
    )
    assert "of 1 models" in command.prints("results", "refresh", "--to", str(results))
    [now] = run.read("verdicts")
    assert (now["label"], now["summary"]) == (right["label"], right["summary"])
    assert run.status()["test_accuracy"] == origin.status()["test_accuracy"]
    assert run.problems() == []
    assert not list(results.rglob("lock"))
    assert "host" not in str(run.environments())


def test_a_model_that_does_not_come_with_the_package_is_no_misspelling_of_another(command: Command) -> None:
    with pytest.raises(UserError) as error:
        load_pretrained("ar-h3-64")
    for said in (command("intervene", "ar-h3-64")[2], str(error.value)):
        assert "no pretrained model of h3 on ar comes with the package. On ar: ar-attention-32, " in said
        assert "atr" not in said
    with pytest.raises(UserError, match=r"Did you mean 'ar-mamba-32'\?"):
        load_pretrained("ar-mambo-32")
