"""All benchmarks but `commits`: ratios against a reference or a peer in one run. Machines are noisy; ratios less so."""

from __future__ import annotations

from benchmarks import convs, delta, growth, interventions, layers, recurrences, scan, steps, sweeps, tasks, training
from benchmarks.harness import show

PARTS = (tasks, scan, delta, recurrences, convs, layers, steps, training, interventions, sweeps)
for part in PARTS:  # each table as soon as it is there: all of them take a quarter of an hour
    show(part.run())
for case in tasks.CASES:
    tasks.peak_memory(case)
training.shares()
sweeps.done_again()
growth.main()
