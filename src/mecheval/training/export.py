"""A trained model as a folder of its own: weights, config, and a card that says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mecheval.analysis.runs import run_config_of, weights_of
from mecheval.config import RunConfig
from mecheval.errors import UserError
from mecheval.files import write_atomic
from mecheval.store import RunFolder, writing


def export(folder: RunFolder, to: str | Path | None = None, state: str = "last") -> Path:
    """Write `model.safetensors`, `config.yaml` and `README.md`; the folder written. `load_lm` reads it back."""
    name = weights_of(folder, state)
    folder.check_whole()
    weights = folder.read_file(name)
    config = run_config_of(folder)
    to = Path(to) if to is not None else Path(f"{config.task.name}-{config.mixer.name.replace('*', 'x')}-{folder.id}")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} exists and is not an empty folder; choose another with --to.")
    with writing(to):
        to.mkdir(parents=True, exist_ok=True)
        write_atomic(to / "model.safetensors", weights)
        write_atomic(to / "config.yaml", config.to_yaml())
        write_atomic(to / "README.md", card(folder, config, state))
    return to


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def card(folder: RunFolder, config: RunConfig, state: str) -> str:
    """The model card: what it is, how well it does, how it was trained, how to load it."""
    found = folder.status()
    measured = [row for row in folder.read("evaluations") if row["state"] == state]
    names = [name for name in measured[0] if name not in ("run", "state", "step")] if measured else []
    header = [*("answers" if name == "n" else name for name in names)], ["---"] * len(names)
    rows = ([_cell(row[name]) for name in names] for row in measured)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (*header, *rows))
    scores = table if measured else "Its scores are not in the store."
    judged = next((row for row in folder.read("verdicts") if (row["state"], row["split"]) == (state, "test")), None)
    found_out = "" if judged is None else "\n".join([
        "## How it recalls", "", f"Verdict on {judged['n']} test documents: {judged['summary']}.", "",
        *(f"- {sentence}" for sentence in judged["evidence"].splitlines()), "", "",
    ])  # fmt: skip
    parameters = "an unknown number of" if found["parameters"] is None else f"{found['parameters']:,}"
    step = f", step {measured[0]['step']:,} of {config.data.steps:,}" if measured else ""
    return f"""# {config.mixer.name} on {config.task.name}

A language model of {parameters} parameters ({config.model.n_layers} layers, width {config.model.d_model})
with the sequence mixer `{config.mixer.name}`, trained by mecheval on the task `{config.task.name}`. Run {folder.id},
{state} state{step}; status: {found["status"]}.

{scores}

Likelihood is p(answer) and accuracy the share of right answers, at the predictions of the documents of each split.

{found_out}```python
import mecheval as me

lm = me.load_lm(".")  # this folder; no other file is needed
```

## Config

```yaml
{config.to_yaml()}```
"""
