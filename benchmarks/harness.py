"""Times of functions run in turn, so that what slows the machine for a while slows them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from mecheval.machine import keep_memory


@dataclass(frozen=True)
class Row:
    """One comparison; a target is the ratio that we mean to reach."""

    name: str
    ours_ms: float
    peer_ms: float
    target: float | None

    @property
    def ratio(self) -> float:
        return self.peer_ms / self.ours_ms


def interleaved(fns: Mapping[str, Callable[[], object]], rounds: int = 30, seconds: float = 5.0) -> dict[str, float]:
    """Median milliseconds of each function on one thread, after one call each that does not count.

    Every round calls each function once. There are `rounds` of them, or as many as fit in `seconds`, at least three.
    Freed memory is kept, for us and for peers, as wherever we train.
    """
    keep_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for fn in fns.values():
            fn()
        times: dict[str, list[float]] = {name: [] for name in fns}
        start = time.perf_counter()
        for done in range(rounds):
            if done >= 3 and time.perf_counter() - start > seconds:
                break
            for name, fn in fns.items():
                before = time.perf_counter()
                fn()
                times[name].append(time.perf_counter() - before)
    finally:
        torch.set_num_threads(threads)
    return {name: 1e3 * statistics.median(each) for name, each in times.items()}


def show(rows: list[Row]) -> None:
    """Print a plain table; a ratio above 1 means that ours is faster."""
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  {'ours ms':>10}  {'peer ms':>10}  {'ratio':>7}  target")
    for row in rows:
        target = "" if row.target is None else f"{row.target:g}{'' if row.ratio >= row.target else '  missed'}"
        print(
            f"{row.name:{width}}  {row.ours_ms:10.3f}  {row.peer_ms:10.3f}  {row.ratio:7.2f}  {target}".rstrip(),
            flush=True,
        )


PEAK = """
def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
"""
"""Source of a function for a process of its own: its peak memory in MB (Linux; `getrusage` counts the parent too)."""
