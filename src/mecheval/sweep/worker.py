"""A worker process: it reads jobs and writes events, both as lines of JSON.

It ends when its input ends. If that happens during a run, its parent has died; the worker then saves and releases the
run, so that another process can resume it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from mecheval.errors import UserError
from mecheval.sweep.job import Event, Job, work


def main(store: str, checkpoint_seconds: float) -> None:
    """Work until the input ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a mixer prints must not be mistaken for an event

    def report(event: Event) -> None:
        out.write(f"\n{json.dumps(event._asdict())}\n")  # half a line may have been printed before

    for given in _jobs():
        try:
            job = Job.read(given)
        except UserError as error:  # for example, a custom mixer's file has changed since the sweep began
            report(Event(given["run"], "end", status="failed", message=str(error)))
            continue
        if work(job, store, report, checkpoint_seconds=checkpoint_seconds) == "interrupted":
            return


def _jobs() -> Iterator[dict[str, Any]]:
    """The jobs from standard input, as `Job.to_dict` describes them, with the run's id."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    received = finished = 0

    def listen() -> None:
        nonlocal received
        for line in sys.stdin:
            received += 1
            lines.put(line)
        lines.put(None)
        if received > finished:  # a job is under way, so this is not the usual end
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    while (line := lines.get()) is not None:
        yield json.loads(line)
        finished += 1


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
