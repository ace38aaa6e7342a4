"""Sweeps: many runs, worked on by an engine."""

from mecheval.sweep.grid import Point, grid, only
from mecheval.sweep.here import HereEngine
from mecheval.sweep.job import Engine, Event, Job, Stopped, work
from mecheval.sweep.local import LocalEngine
from mecheval.sweep.sweeping import Failure, SweepWatcher, Swept, merged, pending, sweep

__all__ = [
    "Engine", "Event", "Failure", "HereEngine", "Job", "LocalEngine", "Point", "Stopped", "SweepWatcher", "Swept",
    "grid", "merged", "only", "pending", "sweep", "work",
]  # fmt: skip
