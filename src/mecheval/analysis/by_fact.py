"""A ladder of difficulty: how well a run does on documents of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mecheval.analysis.runs import alone, load_run
from mecheval.errors import UnknownName
from mecheval.store import RunFolder
from mecheval.types import LAST

if TYPE_CHECKING:  # slow to import
    import pandas as pd

AT_ONCE = 64
"""Documents in one pass."""


@torch.no_grad()
def ladder(
    folder: RunFolder, fact: str, state: str = LAST, split: str = "test", n: int | None = None
) -> pd.DataFrame:  # fmt: skip
    """Accuracy and likelihood of a finished run by a fact of its documents, such as depth or distance.

    A row for each value of the fact, with the number of documents that have it and the 95 % interval of their accuracy
    (low, high); each document is asked its first question.
    """
    import pandas as pd

    from mecheval.intervene.intervals import mean_interval

    trained = load_run(folder, state)
    if fact not in trained.task.facts:
        raise UnknownName(f"fact of {trained.task.name}", fact, trained.task.facts)
    with alone(trained.config.machine.threads):
        n = trained.config.evaluate.documents if n is None else n
        batch = trained.task.sample(n, split, trained.config.evaluate.seed)
        parts = [slice(first, first + AT_ONCE) for first in range(0, n, AT_ONCE)]
        logits = torch.cat([trained.lm(batch.tokens[some], batch.predict_at[some, 0]) for some in parts])
    frame = pd.DataFrame({
        fact: batch.facts[fact].numpy(),
        "accuracy": (logits.argmax(1) == batch.answers).double().numpy(),
        "likelihood": logits.softmax(1).gather(1, batch.answers[:, None])[:, 0].double().numpy(),
    })  # fmt: skip
    rows = []
    for value, some in frame.groupby(fact):
        low, high = mean_interval(some["accuracy"].to_numpy())
        means = some[["accuracy", "likelihood"]].mean()
        rows.append({fact: value, **means, "low": float(low), "high": float(high), "n": len(some)})
    return pd.DataFrame(rows, columns=[fact, "accuracy", "likelihood", "low", "high", "n"])
