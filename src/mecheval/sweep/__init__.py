"""Sweeps: an engine trains many runs and intervenes on each of them."""

from mecheval.sweep.driver import Estimate, Failure, SweepWatcher, Swept, merged, pending, standing, sweep
from mecheval.sweep.engine import ENGINES, Crew, CrewEngine, Engine, HereEngine, Stopped, make_engine
from mecheval.sweep.job import Event, Job, Point, grid, only, work
from mecheval.sweep.local import LocalEngine

__all__ = [
    "ENGINES", "Crew", "CrewEngine", "Engine", "Estimate", "Event", "Failure", "HereEngine", "Job", "LocalEngine",
    "Point", "Stopped", "SweepWatcher", "Swept", "grid", "make_engine", "merged", "only", "pending", "standing",
    "sweep", "work",
]  # fmt: skip
