"""How well estimates by attribution patching agree with exact patching, for the finished runs of a store.

python -m benchmarks.attribution runs --documents 32
"""

from __future__ import annotations

import argparse
import time

from scipy.stats import spearmanr

import mecheval as me
from mecheval.analysis.runs import documents, load_run

WAYS = (("inputs", 1), ("inputs", 10), ("sites", 5))
"""Lines along which gradients are integrated, and steps."""


def main() -> None:
    """Print a table in Markdown: rank correlations over all sites and roles, and seconds of the processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--documents", type=int, default=32)
    given = parser.parse_args()
    print(
        "| mixer | rows | "
        + " | ".join(f"{along}, {steps} step{'s' * (steps > 1)}" for along, steps in WAYS)
        + " | exact |"
    )
    print("|---" * (len(WAYS) + 3) + "|")
    store = me.Store(given.store)
    for row in store.rows():
        if row["status"] != "done":
            continue
        run = load_run(store.folder(row["run"]))
        pair = documents(run.task, run.config, "test", given.documents)
        began = time.process_time()
        exact = me.interchange(run.lm, *pair)["attribution"]
        cells = []
        took = time.process_time() - began
        for along, steps in WAYS:
            began = time.process_time()
            found = me.attribute(run.lm, *pair, along=along, steps=steps)["attribution"]
            cells.append(f"{spearmanr(exact, found).statistic:.3f} ({time.process_time() - began:.1f} s)")
        print(f"| {run.config.mixer.name} | {len(exact)} | {' | '.join(cells)} | {took:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
