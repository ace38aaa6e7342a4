"""A small store with all that a report shows: runs with weights, runs of studies, and names that try to be HTML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mecheval.analysis.runs import probe
from mecheval.analysis.weights import weights_file
from mecheval.config import RunConfig, run_config
from mecheval.model.handmade import handmade
from mecheval.store import RunFolder, Store
from mecheval.store.schema import EFFECTS
from mecheval.studies import STUDIES, study_points
from mecheval.sweep import Point
from training.runs import tiny

EVIL = "<img src=x onerror=window.hacked=1>"
WORSE = "</script><script>window.hacked=2</script>"
OWN = "MyMixer@3f9a2c"
ROLES = ("key", "value", "next_key", "query")
SITES = ("blocks.0.input", "blocks.0.mixer.conv", "blocks.0.output", "blocks.1.input", "blocks.1.output")
SMALL: dict[str, Any] = {"max_length": 12, "d_model": 16, "batch_size": 8, "steps": 5, "evaluate.documents": 16}
FORGED = "00000000dead", "00000000beef", "00000000cafe", "00000000d00d"


def make(path: Path) -> Store:
    """The store."""
    store = Store(path)
    for point in grid_points(seeds=(0, 1)):
        best = point.config.optimiser.lr == 3e-3
        forge(
            store, point.config.id, point.config.to_dict(), point.config, accuracy=0.9 if best else 0.4, on_the_way=best
        )
    weigh(store, tiny(d_model=48, n_layers=2, bias=True), by_hand=True)
    weigh(store, run_config("atr", "attention", **SMALL))
    config = tiny(seed=5)
    mine = {**config.to_dict(), "mixer": {"name": OWN, "depth": [1, 2]}}
    forge(store, FORGED[0], mine, config, mixer=OWN, accuracy=0.8)
    named = {**config.to_dict(), "mixer": {"name": EVIL, "note": WORSE}}
    forge(
        store,
        FORGED[1],
        named,
        config,
        mixer=EVIL,
        accuracy=0.7,
        site=f"blocks.1.{EVIL}",
        summary=WORSE,
        on_the_way=True,
    )
    with store.folder(FORGED[2]).exclusive():
        store.folder(FORGED[2]).set_status(
            status="failed", task=WORSE, mixer="mamba", d_model=16, n_layers=2, lr=0.1, seed=0, message=f"no {EVIL}",
        )  # fmt: skip
    damaged = store.folder(FORGED[3])
    damaged.path.mkdir()
    (damaged.path / "status.json").write_text("{ not JSON")
    return store


def grid_points(seeds: tuple[int, ...]) -> list[Point]:
    """Some of the grid of study `ar`."""
    wanted: dict[str, list[Any]] = {"mixer": ["attention", "mamba"], "d_model": [64]}
    points = study_points(STUDIES["ar"], "laptop", wanted=wanted)
    return [Point({**point.axes, "seed": seed}, replace(point.config, seed=seed)) for point in points for seed in seeds]


def weigh(store: Store, config: RunConfig, by_hand: bool = False) -> None:
    """A run with weights, set by hand so that it does induction or never trained, and intervened on."""
    folder = store.folder(config.id)
    lm = handmade("induction", config.build_task(), d_model=config.model.d_model) if by_hand else config.build_lm()
    large = 1 if by_hand else 4  # so that it is sure of something, if of nothing right
    with folder.exclusive():
        folder.write_files({"config.yaml": config.to_yaml().encode()})
        weights = {name: large * each for name, each in lm.state_dict().items()}
        folder.write_files({"weights/last.safetensors": weights_file(config, "last", 5, weights)})
        _done(folder, config, config.to_dict(), config.mixer.name, 1.0)
    probe(folder)


def forge(
    store: Store, run: str, data: dict[str, Any], config: RunConfig, *, accuracy: float, mixer: str | None = None,
    on_the_way: bool = False, site: str = "blocks.1.mixer.output", summary: str = "in words",
) -> None:  # fmt: skip
    """A run that says it was trained and found to do induction; it has no weights."""
    folder = store.folder(run)
    with folder.exclusive():
        steps = range(0, 400, 50)
        folder.write("history", [
            {"step": step, "lr": 1e-3, "loss": 1.0, "dev_loss": 1.0, "dev_likelihood": 0.5,
             "dev_accuracy": accuracy * step / 400} for step in steps
        ])  # fmt: skip
        folder.write("scores", [])
        last = [effect("last", 400, "test", each, role) for each in (*SITES, site) for role in ROLES]
        before = [effect("training", step, "dev", each, role) for step in steps for each in SITES for role in ROLES]
        folder.write("effects", last + (before if on_the_way else []))
        verdict = {"label": "induction", "layer": 1, "stored_by": 0, "stored_at": "value", "agreement": 0.97}
        place = {"state": "last", "step": 400, "split": "test"}
        folder.write("verdicts", [{**place, **verdict, "summary": summary, "evidence": f"One [0.1, 0.2].\n{summary}"}])
        _done(folder, config, data, mixer or config.mixer.name, accuracy)


def effect(state: str, step: int, split: str, site: str, role: str) -> dict[str, Any]:
    """An effect: at the value, everything is restored, the more so the longer it was trained."""
    share = step / 400 if role == "value" and site == "blocks.1.input" else 0.25
    numbers = {"original": 0.9, "corrupted": 0.1, "restored": 0.1 + 0.8 * share, "attribution": 0.8 * share}
    place = {"state": state, "step": step, "split": split, "site": site, "role": role}
    missing = dict.fromkeys(column.name for column in EFFECTS.columns if column.name != "run")
    return {**missing, **place, **numbers, "share": share, "n": 8}


def _done(folder: RunFolder, config: RunConfig, data: dict[str, Any], mixer: str, accuracy: float) -> None:
    folder.set_status(
        status="done", task=config.task.name, mixer=mixer, d_model=config.model.d_model, n_layers=config.model.n_layers,
        lr=config.optimiser.lr, seed=config.seed, steps=400, step=400, parameters=1000, dev_accuracy=accuracy,
        dev_likelihood=accuracy, test_accuracy=accuracy, test_likelihood=accuracy, seconds=3.0, config=data,
    )  # fmt: skip
