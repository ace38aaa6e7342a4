"""Recall tasks: sources of documents whose roles are known exactly."""

from mecheval.tasks.ar import AR
from mecheval.tasks.atr import ATR
from mecheval.tasks.base import TASKS, Task, TaskOptions, build_task
from mecheval.tasks.corpus import Corpus, Document, Query, Question, framed
from mecheval.tasks.pcfg import Grammar

__all__ = [
    "AR", "ATR", "TASKS", "Corpus", "Document", "Grammar", "Query", "Question", "Task", "TaskOptions", "build_task",
    "framed",
]  # fmt: skip
