"""How well estimates by attribution patching agree with exact patching, for the finished runs of a store.

python -m benchmarks.attribution runs --documents 32
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.stats import spearmanr

import mecheval as me
from mecheval.analysis.runs import documents, load_run

WAYS = (("sites", 5), ("inputs", 10), ("inputs", 1))
"""Lines along which gradients are integrated, and steps."""
LARGE = 0.1
"""Share from which an effect is large."""


def main() -> None:
    """Print a table in Markdown: rank correlations over all sites and roles, large effects found, and CPU seconds.

    Large effects are found if they are among as many largest estimates.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--documents", type=int, default=32)
    given = parser.parse_args()
    ways = [f"{along}, {steps} step{'s' * (steps > 1)}" for along, steps in WAYS]
    print(f"| mixer | rows | {' | '.join(ways)} | exact |")
    print("|---" * (len(WAYS) + 3) + "|")
    store = me.Store(given.store)
    for row in store.rows():
        if row["status"] != "done":
            continue
        run = load_run(store.folder(row["run"]))
        pair = documents(run.task, run.config, "test", given.documents)
        few = pair[0][:2], pair[1][:2]
        me.interchange(run.lm, *few)  # so that no time is measured in which kernels are loaded
        me.attribute(run.lm, *few, steps=1)
        began = time.process_time()
        exact = me.interchange(run.lm, *pair)
        took, cells = time.process_time() - began, []
        large = set(np.flatnonzero(exact["share"] >= LARGE))
        for along, steps in WAYS:
            began = time.process_time()
            found = me.attribute(run.lm, *pair, along=along, steps=steps)["share"]
            seconds = time.process_time() - began
            best = set(np.argsort(-found.to_numpy(), kind="stable")[: len(large)])
            rank = spearmanr(exact["share"], found).statistic
            cells.append(f"{rank:.3f}, {len(large & best)} of {len(large)} ({seconds:.1f} s)")
        print(f"| {run.config.mixer.name} | {len(exact)} | {' | '.join(cells)} | {took:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
