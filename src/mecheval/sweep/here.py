"""The engine of this process: one job after the other, for mixers that no other process could import."""

from __future__ import annotations

import signal

from mecheval.sweep.job import Event, Job, Stopped, Tell, work


class HereEngine:
    """Works in this very process, on one job at a time."""

    workers = 1

    def __init__(self, checkpoint_seconds: float = 30.0) -> None:
        self.checkpoint_seconds = checkpoint_seconds

    def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
        """See `Engine`. There is no worker that could die; a signal while a run is trained saves it and stops."""

        def pass_on(event: Event) -> None:
            if event.status != "interrupted":  # that is no end: it goes on another time
                tell(event)

        for job in jobs:
            if work(job, store, pass_on, checkpoint_seconds=self.checkpoint_seconds) == "interrupted":
                raise Stopped(signal.SIGINT)
