"""Searches for learning rates with Optuna, setting by setting, instead of using a study's fixed ones.

Every rate that is tried is an ordinary run of the store. A rate depends only on the setting and on what the rates
before it achieved, so that the same search, started again, finds its runs done and resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.store import Store
from mecheval.studies.table import one_rate, with_rate
from mecheval.sweep import Point
from mecheval.sweep.driver import rows_of
from mecheval.training.watch import load

if TYPE_CHECKING:
    import optuna

WINDOW = (3e-5, 3e-2)
"""Default window of learning rates (lowest, highest), as for the paper's AR."""
AT_RANDOM = 4
"""Number of rates of a setting that are drawn at random before results are taken into account."""
TIE = 1e-6
"""Weight of the dev likelihood relative to the dev accuracy, small enough that it only breaks ties."""


def search(
    points: Sequence[Point], tries: int, window: Sequence[float], train: Callable[[list[Point]], None], store: Store
) -> list[Point]:
    """The runs that were tried: `tries` learning rates for every setting of the points, chosen on dev.

    `train` brings runs to their end; it is called `tries` times, with a run of each setting. Rates are log-uniform in
    the window, with two significant digits, so that a rate may come twice; that is one run.
    """
    if len(window) != 2 or not window[0] < window[1]:
        raise UserError("--search takes --lr LOWEST,HIGHEST: the window of learning rates.")
    module = load("optuna", "optuna", "search")
    module.logging.set_verbosity(module.logging.WARNING)
    settings = [(point, _study(module, point)) for point in one_rate(points)]
    found: dict[str, Point] = {}
    for _ in range(tries):
        asked = []
        for point, study in settings:
            trial = study.ask()
            rate = float(f"{trial.suggest_float('lr', *window, log=True):.1e}")
            asked.append((study, trial, with_rate(point, rate)))
        train([point for _, _, point in asked])
        rows = {row["run"]: row for row in rows_of(store)}
        for study, trial, point in asked:
            found[point.config.id] = point
            study.tell(trial, _score(rows.get(point.config.id, {})), skip_if_finished=True)
    return list(found.values())


def _study(module: Any, point: Point) -> optuna.Study:
    """A separate search for a setting, with its own random numbers."""
    seed = int(with_rate(point, WINDOW[0]).config.id[:8], 16)
    sampler = module.samplers.TPESampler(seed=seed, n_startup_trials=AT_RANDOM)
    found: optuna.Study = module.create_study(direction="maximize", sampler=sampler)
    return found


def _score(row: dict[str, Any]) -> float:
    """The score of a run on dev; 0 if it diverged or failed."""
    if row.get("status") != "done":
        return 0.0
    return float(row["dev_accuracy"] or 0) + TIE * float(row["dev_likelihood"] or 0)
