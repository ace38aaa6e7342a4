"""Samplers: documents a second, and how much faster than the readable reference in the same run."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.harness import PEAK, Row, interleaved, show
from mecheval.tasks import build_task

DOCUMENTS, REFERENCE = 100_032, 2_000
CASES = {"ar/paper": None, "atr/paper": 50.0, "atr/paper_long": 50.0, "atr/paper_vocab": 50.0}
CASES |= {"mqar/paper_64": None, "mqar/paper_512": None}


def run() -> list[Row]:
    rows = []
    for case, target in CASES.items():
        name, preset = case.split("/")
        task = build_task(name, preset)
        draw = {"fast": partial(task.corpus, DOCUMENTS), "reference": partial(task.reference, REFERENCE, "train")}
        times = interleaved(draw, rounds=5)
        peer = times["reference"] * DOCUMENTS / REFERENCE
        rows.append(
            Row(f"{case}, {DOCUMENTS:,} documents ({DOCUMENTS / times['fast']:,.0f} a ms)", times["fast"], peer, target)
        )
    return rows


def peak_memory(case: str) -> float:
    """MB by which drawing a training set raises a fresh process's peak."""
    name, preset = case.split("/")
    program = f"""{PEAK}
import sys, mecheval
task = mecheval.build_task(*sys.argv[1:])
task.corpus(10)
before = peak()
corpus = task.corpus({DOCUMENTS})
print(peak() - before, peak(), corpus.nbytes)
"""
    out = subprocess.run([sys.executable, "-c", program, name, preset], capture_output=True, text=True, check=True)
    rise, peak, stored = map(float, out.stdout.split())
    print(f"{case}: {stored / 1e6:.0f} MB stored; drawing raises the peak by {rise:.0f} MB to {peak:.0f} MB")
    return rise


if __name__ == "__main__":
    show(run())
    for case in CASES:
        peak_memory(case)
