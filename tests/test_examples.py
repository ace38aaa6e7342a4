"""The examples run, with fewer steps than a reader would take."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import sweeps
from mecheval import custom as own
from mecheval.evaluation.checks import check_mixer
from mecheval.mixers import MIXERS
from mecheval.mixers.base import make_mixer
from mecheval.store import Store
from mecheval.studies import scales
from mecheval.tasks import TASKS
from training.runs import tiny

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
EXAMPLES = Path(__file__).parent.parent / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run an example inside the test, in an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)
    for registry in (MIXERS, TASKS):
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))

    def call(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("part", sorted(path.stem for path in BENCHMARKS.glob("[a-z]*.py")))
def test_benchmarks_find_what_they_measure(part: str) -> None:
    """`make bench` takes too long for a test, but must not stop at the import of something that has moved."""
    assert importlib.import_module(f"benchmarks.{part}").__doc__


def test_the_benchmark_of_a_finished_sweep_runs(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps.done_again(n=3)
    assert capsys.readouterr().out.startswith("adding a done sweep of 3 runs again: ")


def test_own_mixer(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {**scales.BASE["ar", "laptop"], "evaluate.documents": 16}
    monkeypatch.setattr(scales, "BASE", {**scales.BASE, ("ar", "laptop"): fewer})
    out = run("own_mixer.py", "--steps", "10", "--alone", "--store", "store")
    source = own.Source(EXAMPLES / "own_mixer.py", "GatedRecurrence")
    assert f"▸ {source.name}" in out, "a script names its class as the command line does"
    assert "Verdict: not learnt" in out
    assert set(Store(tmp_path / "store").runs()["mixer"]) == {source.name}


def test_the_own_mixer_is_sound() -> None:
    assert check_mixer(own.Source(EXAMPLES / "own_mixer.py", "GatedRecurrence").load(), {"width": 3}, 64, 20) == []


def test_own_task(run: Run, tmp_path: Path) -> None:
    out = run("own_task.py", "--steps", "3", "--mixer", "attention", "--store", "store")
    assert out.startswith("backwards · attention · d 128 · lr 0.003 · seed 0: test accuracy ")
    assert "not learnt: a likelihood of" in out
    [row] = Store(tmp_path / "store").rows()
    assert row["config"]["task"] == {"name": "backwards", "pairs": 4, "keys": 8, "values": 32}


def test_the_own_task_says_where_its_roles_are(run: Run) -> None:
    made = runpy.run_path(str(EXAMPLES / "own_task.py"))["Backwards"]
    task = made(made.Options())
    batch = task.sample(20, "test")
    key, value = (batch.tokens.gather(1, batch.roles[role][:, None])[:, 0] for role in ("key", "value"))
    asked = batch.tokens.gather(1, batch.roles["query"][:, None])[:, 0]
    assert (key == asked).all()
    assert (value == batch.answers).all()
    assert (batch.roles["value"] == batch.roles["key"] - 1).all()
    assert int(batch.lengths.max()) == task.max_tokens


def test_trained_elsewhere(run: Run) -> None:
    out = run("trained_elsewhere.py", "--steps", "2", "--documents", "16")
    assert "Transformer on ar (test, 16 documents)" in out
    assert "Verdict: not learnt" in out


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Jupyter's own
def test_read_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra `dev` brings nbformat, which reads notebooks")
    nbclient = pytest.importorskip("nbclient", reason="the extra `dev` brings nbclient, which runs notebooks")
    pytest.importorskip("ipykernel", reason="the extra `dev` brings ipykernel, in which notebooks run")
    from mecheval.sweep import HereEngine, Job

    HereEngine().run([Job(tiny(mixer=mixer)) for mixer in ("attention", "mamba")], str(tmp_path), lambda event: None)
    monkeypatch.setenv("MECHEVAL_STORE", str(tmp_path))
    notebook = nbformat.read(EXAMPLES / "read_the_store.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "outputs are not kept"
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in code]
    tables, charts = [0, 1], [2, 3]
    assert all("text/html" in shown[i] for i in tables)
    assert all("image/svg+xml" in shown[i] for i in charts)
    assert "attention" in code[1].outputs[0]["data"]["text/plain"]


@pytest.mark.parametrize(
    ("mechanism", "n", "verdict", "restored"),
    [
        ("induction", 24, "induction: layer 0 stores the key at the value, layer 1 retrieves", "0.000 1.000 0.000"),
        ("pointer", 16, "pointer: layer 1 finds the pair, layer 2 fetches its value", "1.000 0.000 0.000"),
    ],
)
def test_a_known_checkpoint(run: Run, tmp_path: Path, mechanism: str, n: int, verdict: str, restored: str) -> None:
    pytest.importorskip("transformers", reason="the extra `hf` brings transformers")
    out = run("known_checkpoint.py", "--mechanism", mechanism, "-n", str(n))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        each.name for each in Path("checkpoint").iterdir()
    }
    assert f"Verdict: {verdict}" in out
    [row] = [" ".join(line.split()) for line in out.splitlines() if line.startswith("▸")]
    assert row == f"▸ checkpoint {mechanism} 384 1.000 1.000 {restored} 1.000"  # at key, value and query; agreement


MIXERS_FROM_ELSEWHERE = {
    "gru": "GRU", "min_gru": "MinGRU", "s4d": "S4D", "gated_linear_attention": "GatedLinearAttention",
    "rotary_attention": "RotaryAttention",
}  # fmt: skip


def example(file: str) -> type[nn.Module]:
    return own.Source(EXAMPLES / f"{file}.py", MIXERS_FROM_ELSEWHERE[file]).load()


@pytest.mark.parametrize("file", MIXERS_FROM_ELSEWHERE)
def test_mixers_from_elsewhere_are_sound(file: str) -> None:
    assert check_mixer(example(file), {}, 32, 200) == []


@torch.no_grad()
def test_the_parallel_forms_of_the_examples_are_their_recurrences() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 150, 8, dtype=torch.float64)
    gru: Any = make_mixer(example("min_gru"), "MinGRU", 8, 0, {}).double()
    gate, candidate = gru.gate_and_candidate(x).chunk(2, dim=-1)
    h, z, found = torch.zeros(2, 8), gate.sigmoid(), []
    for t in range(150):
        h = (1 - z[:, t]) * h + z[:, t] * candidate[:, t]
        found.append(h)
    assert torch.allclose(gru(x), gru.out(torch.stack(found, dim=1)))

    s4d: Any = make_mixer(example("s4d"), "S4D", 8, 0, {}).double()
    A = torch.complex(-s4d.log_decay.exp(), s4d.frequency)
    dtA, C = s4d.log_dt.exp()[:, None] * A, torch.view_as_complex(s4d.C)
    state, found = torch.zeros(2, 8, 16, dtype=torch.complex128), []
    for t in range(150):
        state = dtA.exp() * state + torch.expm1(dtA) / A * x[:, t, :, None]
        found.append(2 * (C * state).sum(-1).real + s4d.D * x[:, t])
    expected = F.glu(s4d.out(F.gelu(torch.stack(found, dim=1))), dim=-1)
    assert torch.allclose(s4d(x), expected), "by an FFT"
    assert torch.allclose(s4d(x[:, :100]), expected[:, :100]), "by matrices"

    gla: Any = make_mixer(example("gated_linear_attention"), "GLA", 8, 0, {}).double()
    q, k, v, out_gate = gla.qkvg(x).chunk(4, dim=-1)
    q, k, v, a = (each.unflatten(2, (2, 4)) for each in (q / 2, k, v, (F.logsigmoid(gla.fade(x)) / 16).exp()))
    S, found = torch.zeros(2, 2, 4, 4, dtype=torch.float64), []
    for t in range(150):
        S = a[:, t, :, :, None] * S + k[:, t, :, :, None] * v[:, t, :, None]
        found.append((q[:, t, :, None] @ S)[:, :, 0])
    y = gla.norm(torch.stack(found, dim=1)).flatten(2)
    assert torch.allclose(gla(x), gla.out(y * F.silu(out_gate))), "three chunks, the last one padded"
    assert torch.allclose(gla(x[:, :40]), gla(x)[:, :40]), "one chunk"


@torch.no_grad()
def test_the_rotary_example_sees_distances_alone() -> None:
    """Two equal tokens at each distance: their scores do not depend on where they stand."""
    turned = runpy.run_path(str(EXAMPLES / "rotary_attention.py"))["turned"]
    mixer: Any = make_mixer(example("rotary_attention"), "RotaryAttention", 8, 0, {})
    angle = torch.arange(20)[:, None] * mixer.frequency.repeat(2)
    q, k = (turned(torch.randn(8).expand(20, 8), angle.cos(), angle.sin()) for _ in "qk")
    scores = q @ k.T
    assert torch.allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-5)
    assert not torch.allclose(scores[1:, :-1], scores[:-1, :-1], atol=1e-2)
