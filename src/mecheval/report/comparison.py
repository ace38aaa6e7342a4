"""The section that puts studies beside the paper: its numbers cell by cell, and what became of its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mecheval.paper import OUTCOMES, Setting, compare_study
from mecheval.paper.numbers import claims as published_claims
from mecheval.report.grids import Found
from mecheval.report.plain import columns


def comparison_data(studies: Sequence[Found], scale: str) -> dict[str, Any]:
    """For each study its settings, cells and patterns; and all claims about these studies with their outcomes."""
    told, claims = [], []
    for found in studies:
        compared = compare_study(found.table, found.points, scale)
        cells, patterns = compared.comparison.cells, compared.comparison.patterns
        claims += compared.claims
        told.append({
            "study": found.study.name, "figure": found.study.figure, "question": found.study.question,
            "settings": [_setting(task, ours) for task, ours in compared.settings.items()],
            "cells": columns(cells, cells.columns), "patterns": columns(patterns, patterns.columns),
        })  # fmt: skip
    order = [claim.id for claim in published_claims()]
    claims.sort(key=lambda claim: order.index(claim.claim))
    counts = Counter(claim.outcome for claim in claims)
    return {
        "studies": told, "claims": [asdict(claim) for claim in claims],
        "outcomes": {outcome: counts[outcome] for outcome in OUTCOMES},
    }  # fmt: skip


def _setting(task: str, ours: Setting) -> dict[str, str]:
    return {"task": task.upper(), "ours": ours.describe(), "paper": Setting.paper(task).describe()}
