"""The engine of this process: one job after the other, for mixers that no other process could import."""

from __future__ import annotations

import signal
import time
from collections import deque

from mecheval.sweep.job import NO_END, Event, Held, Job, Stopped, Tell, work
from mecheval.training.signals import stop_requests

LOOK_SECONDS = 0.2
"""How soon a signal, or a run that has become free, is noticed while this process waits."""


class HereEngine:
    """Works in this very process, on one job at a time."""

    workers = 1

    def __init__(self, checkpoint_seconds: float = 30.0) -> None:
        self.checkpoint_seconds = checkpoint_seconds

    def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
        """See `Engine`. There is no worker that could die; a signal while a run is trained saves it and stops."""
        waiting, held = deque(jobs), Held(store)
        while waiting or held:
            job = waiting.popleft() if waiting else _free(held, tell)

            def hear(event: Event, job: Job = job) -> None:
                if event.status == "held":
                    held.add(job, event.message)
                if event.status not in NO_END:
                    tell(event)

            if work(job, store, hear, checkpoint_seconds=self.checkpoint_seconds) == "interrupted":
                raise Stopped(signal.SIGINT)


def _free(held: Held, tell: Tell) -> Job:
    """Wait for a run that other processes hold."""
    with stop_requests() as request:
        held.say(tell)
        while (job := held.free()) is None:
            time.sleep(LOOK_SECONDS)
            if request.signal is not None:
                raise Stopped(request.signal)
    return job
