"""The section that puts studies beside the paper: its numbers cell by cell, and what became of its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mecheval.paper import OUTCOMES, Setting, compare, judge_claims, settings_of
from mecheval.report.grids import Found
from mecheval.report.plain import columns


def comparison_data(studies: Sequence[Found], scale: str) -> dict[str, Any]:
    """For each study its settings, cells and patterns; and all claims about these studies with their outcomes."""
    told, frames, settings = [], {}, {}
    for found in studies:
        name = found.study.name
        frames[name] = found.best.frame
        settings[name] = settings_of(point.config for point in found.points)
        compared = compare(name, found.best.frame, scale)
        told.append({
            "study": name, "figure": found.study.figure, "question": found.study.question,
            "settings": [_setting(task, ours) for task, ours in settings[name].items()],
            "cells": columns(compared.cells, compared.cells.columns),
            "patterns": columns(compared.patterns, compared.patterns.columns),
        })  # fmt: skip
    claims = judge_claims(frames, scale, settings)
    counts = Counter(claim.outcome for claim in claims)
    return {
        "studies": told, "claims": [asdict(claim) for claim in claims],
        "outcomes": {outcome: counts[outcome] for outcome in OUTCOMES},
    }  # fmt: skip


def _setting(task: str, ours: Setting) -> dict[str, str]:
    return {"task": task.upper(), "ours": ours.describe(), "paper": Setting.paper(task).describe()}
