"""What happens on a node of a Ray cluster: one task works on one job."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mecheval.errors import UserError
from mecheval.store import StoreError
from mecheval.store.location import Mirror, is_url
from mecheval.sweep.job import Event, Job, Tell, work

PUSHES, PAUSE = 3, 5.0
"""At the end of a run, a URL that does not answer is tried so often, so many seconds apart."""
SHARED_SECONDS = 10.0
"""A shared file system may show a new file so much later on another machine."""
FLUSH_SECONDS = 10.0


def task(job: str, store: str, marker: str, checkpoint_seconds: float, mailbox: Any) -> str:
    """Work on a job; its end, which is the one event that must arrive, is the result. All is JSON."""
    todo, ends = Job.read(json.loads(job)), []
    last = None

    def tell(event: Event) -> None:
        nonlocal last
        if event.kind == "end":
            ends.append(event)
        else:
            with suppress(Exception):  # progress may be lost, the run may not
                last = mailbox.put.remote(json.dumps(event))

    try:
        if is_url(store):
            _work_far_away(todo, store, tell, checkpoint_seconds)
        else:
            check_shared(store, marker)
            work(todo, store, tell, checkpoint_seconds=checkpoint_seconds)
    except UserError as error:  # the store cannot be reached from here, or its driver is missing
        ends = [Event(todo.run, "end", status="failed", message=str(error))]
    if last is not None:
        import ray

        with suppress(Exception):  # events of one task arrive in order: with the last one, all are there
            ray.get(last, timeout=FLUSH_SECONDS)
    return json.dumps(ends[-1])


def _work_far_away(job: Job, url: str, tell: Tell, checkpoint_seconds: float) -> None:
    """Work in a local store that ends with the task, on a run that is pulled first and pushed whenever it is saved."""
    mirror = Mirror(url)
    with tempfile.TemporaryDirectory(prefix="mecheval-") as store:
        mirror.pull(job.run, store)

        def push() -> None:
            try:
                mirror.push(job.run, store)
            except StoreError as error:  # the next one may succeed; until then the checkpoint before counts
                tell(Event(job.run, "say", message=f"{job.config.title}: {error}"))

        try:
            work(job, store, tell, push, checkpoint_seconds)
        finally:  # also when it was interrupted outside training
            _push_at_last(mirror, job.run, store)


def _push_at_last(mirror: Mirror, run: str, store: str) -> None:
    for left in reversed(range(PUSHES)):
        try:
            mirror.push(run, store)
            return
        except StoreError:
            if not left:
                raise
            time.sleep(PAUSE)


def check_shared(store: str, marker: str) -> None:
    """An error unless this machine sees the file that the driver put into the store."""
    until = time.monotonic() + SHARED_SECONDS
    while not (Path(store) / marker).exists():
        if time.monotonic() >= until:
            raise StoreError(
                f"the store {store} is not shared with node {socket.gethostname()}; "
                "use a folder that all nodes see under this path, or a URL (s3://...)."
            )
        time.sleep(0.5)
