"""What an evaluation will take, measured in a few steps, and why a mixer is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from mecheval.analysis.runs import alone
from mecheval.config import RunConfig, run_config
from mecheval.mixers import build_mixer
from mecheval.store import Store
from mecheval.studies.placing import NOUNS
from mecheval.training.plan import Plan
from mecheval.training.plan import plan as time_steps
from mecheval.training.progress import duration

SLOW_SECONDS = 15 * 60
"""Seconds of a run from which it counts as slow, and the reason is looked for."""
MUCH = 1.5
"""How many times attention's time a mixer takes from which it is the mixer that is slow, and not the machine."""
SHORT, LONGER = 16, 64
"""Numbers of tokens of the one document on which a loop over tokens is looked for."""


@dataclass(frozen=True)
class Timing:
    """How long the runs of one task and width take, measured in a few steps."""

    config: RunConfig
    plan: Plan

    @property
    def seconds(self) -> float:
        """The seconds of a whole run on one core."""
        return self.plan.pace * self.config.data.steps


def timings(configs: Sequence[RunConfig], store: Store) -> Iterator[Timing]:
    """The first of these runs of each task and width, timed; one that fails is left out, as its run reports why."""
    first: dict[tuple[str, int], RunConfig] = {}
    for config in configs:
        first.setdefault((config.task.name, config.model.d_model), config)
    for config in first.values():
        with suppress(Exception):
            yield Timing(config, time_steps(config, store))


def one_after_another(seconds: Sequence[float], workers: int) -> float:
    """The time in which some workers do jobs that are taken in order."""
    free = [0.0] * max(1, workers)
    for each in seconds:
        free[free.index(min(free))] += each
    return max(free)


def slowness(timed: Timing, store: Store) -> str:
    """Why slow runs take long, as far as a few steps tell, and what would help; empty for runs that are not slow."""
    if timed.seconds < SLOW_SECONDS:
        return ""
    config = timed.config
    usual = time_steps(run_config(config.task.name, "attention", "paper", d_model=config.model.d_model), store)
    times = timed.plan.pace / usual.pace
    said = (
        f"A run on {NOUNS[config.task.name]} takes {duration(timed.seconds)}, {times:.1f} times as long as attention's."
    )
    if times < MUCH:
        said += " So it is this machine that is slow, or busy with something else."
    elif loops(config):
        said += (
            " Its time grows with the number of tokens even where there is next to nothing to compute, as that of a "
            "loop over tokens does; a form that computes all tokens, or chunks of them, at once would help."
        )
    else:
        said += " It does not loop over tokens, so single operations take long: look for copies and for large shapes."
    return f"{said} With --tasks ar or one rate in --lr there is less to train; --scale laptop takes minutes."


def loops(config: RunConfig) -> bool:
    """Whether the mixer's time for one document grows with its length, as that of a loop over tokens does."""
    mixer = build_mixer(config.mixer.name, config.model.d_model, **config.mixer.options).eval()
    with alone(1), torch.no_grad():
        short, longer = (_seconds(mixer, torch.randn(1, length, config.model.d_model)) for length in (SHORT, LONGER))
    return longer > short * LONGER / SHORT / 2


def _seconds(mixer: nn.Module, given: torch.Tensor) -> float:
    """The shortest of several times for one call."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        mixer(given)
        times.append(time.perf_counter() - began)
    return min(times)
