"""Mechanistic evaluation of sequence architectures: not only whether a model recalls, but how."""

from mecheval.tasks import Task, build_task
from mecheval.tasks.pcfg import Grammar
from mecheval.types import Batch

__all__ = ["Batch", "Grammar", "Task", "build_task"]
