"""Learning rate as a function of the step alone, so that continuing a run needs no state."""

from __future__ import annotations

import math

from mecheval.config.sections import Schedule


def warmup_steps(schedule: Schedule, steps: int) -> int:
    """Steps of the way up."""
    return round(schedule.warmup * steps if schedule.warmup < 1 else schedule.warmup)


def rate(schedule: Schedule, step: int, steps: int) -> float:
    """Share of the peak rate at step number `step` (from 0): 0 at first, 1 after the warm-up, 0 after the last."""
    up = warmup_steps(schedule, steps)
    if step < up:
        return step / up
    if schedule.decay == "constant":
        return 1.0
    done = (step - up) / max(1, steps - up)
    return 1 - done if schedule.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
