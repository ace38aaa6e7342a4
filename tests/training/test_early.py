"""When runs end early, on histories made up for it, and in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mecheval.config import RunConfig
from mecheval.store import Store
from mecheval.training import train
from mecheval.training.early import ending, guess_level
from training.runs import tiny

STEPS, GUESS = 1000, 0.25


def history(likelihoods: dict[int, float], accuracy: float = 0.5) -> list[dict[str, Any]]:
    """A row every 50 steps; the likelihood is that of the last step named."""
    rows, now = [], 0.0
    for step in range(50, max(likelihoods) + 1, 50):
        now = likelihoods.get(step, now)
        rows.append({"step": step, "dev_likelihood": now, "dev_accuracy": accuracy})
    return rows


@pytest.mark.parametrize(
    ("likelihoods", "accuracy", "said"),
    [
        ({50: 0.1, 100: 0.99}, 1.0, "ended early: solved at step 100"),
        ({50: 0.1, 100: 0.98}, 1.0, None),
        ({50: 0.1, 500: 0.1}, 0.24, "ended early: no better than guessing at step 500"),
        ({50: 0.1, 500: 0.1}, 0.25, None),
        ({50: 0.1, 450: 0.1}, 0.0, None),
        ({50: 0.1, 550: 0.1}, 0.0, None),  # only the first evaluation after half of the steps decides
        ({50: 0.6, 700: 0.6}, 0.6, "ended early: settled at step 700"),
        ({50: 0.6, 650: 0.6}, 0.6, None),
        ({50: 0.6, 650: 0.611, 700: 0.611}, 0.6, None),  # still rising
        ({50: 0.6, 650: 0.6, 700: 0.609}, 0.6, "ended early: settled at step 700"),
        ({50: 0.9, 700: 0.8}, 0.8, "ended early: settled at step 700"),
        ({50: 0.6, 1000: 0.6}, 0.6, None),  # the last step is no early end
    ],
)  # fmt: skip
def test_the_rule(likelihoods: dict[int, float], accuracy: float, said: str | None) -> None:
    found = ending(history(likelihoods, accuracy), STEPS, GUESS)
    assert (None if found is None else str(found)) == said


def test_a_run_that_guesses_ends_at_half_of_its_steps_and_says_so(tmp_path: Path) -> None:
    whole = tiny(steps=40, every=10)
    given = whole.to_dict()
    assert "early" not in given["evaluate"], "ids of other runs stay"
    config = RunConfig.read({**given, "evaluate": {**given["evaluate"], "early": True}})
    assert config.id != whole.id
    folder = train(config, tmp_path)
    status = folder.status()
    assert (status["status"], status["step"], status["steps"]) == ("done", 20, 40)
    assert status["message"].startswith("ended early: no better than guessing at step 20")
    rest = train(whole, tmp_path)
    assert rest.status()["step"] == 40
    own, full = (Store(tmp_path).query(f"select step, lr, loss, dev_loss from history where run = '{run}'")
                 for run in (config.id, whole.id))  # fmt: skip
    assert own.equals(full.iloc[: len(own)]), "the schedule is that of the whole run"


def test_guessing_is_one_value_of_the_document() -> None:
    config = tiny(pairs=4, keys=8, values=8)
    assert guess_level(config, config.build_task()) == pytest.approx(1 / 4)
