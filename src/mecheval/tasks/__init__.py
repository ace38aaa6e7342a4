"""Recall tasks, which generate documents whose roles (key, value, query, ...) are known exactly."""

from mecheval.tasks.ar import AR
from mecheval.tasks.atr import ATR
from mecheval.tasks.base import TASKS, Task, TaskOptions, build_task
from mecheval.tasks.copy import Copy
from mecheval.tasks.corpus import Corpus, Document, Query, Question, framed
from mecheval.tasks.induction import Induction
from mecheval.tasks.joint import Joint
from mecheval.tasks.khop import KHop
from mecheval.tasks.mqar import MQAR
from mecheval.tasks.pcfg import Grammar
from mecheval.tasks.track import Track
from mecheval.tasks.words import Words

__all__ = [
    "AR", "ATR", "MQAR", "TASKS", "Copy", "Corpus", "Document", "Grammar", "Induction", "Joint", "KHop", "Query",
    "Question", "Task", "TaskOptions", "Track", "Words", "build_task", "framed",
]  # fmt: skip
