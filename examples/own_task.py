"""Your own task: recall where the value comes before its key. Which mixer recalls backwards, and how?

    python examples/own_task.py

A task writes one document in plain Python and says which token may replace the key. Sampling, splits, corruption,
training, interventions and the verdict follow from that.
"""

import argparse
import random

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import mecheval as me
from mecheval.tasks import TASKS, Document, Query, TaskOptions, framed
from mecheval.types import FIRST_SYMBOL, Split


class BackwardsOptions(TaskOptions):
    """Options of the task; they are part of a run's config."""

    pairs: int = Field(4, ge=1, description="pairs in a document")
    keys: int = Field(8, ge=2, description="different keys")
    values: int = Field(32, ge=2, description="different values")


@TASKS.register("backwards")
class Backwards(me.Task):
    """`BOS v1 k1 v2 k2 ... EOS k2 v2 EOS`: all pairs are asked for, in any order."""

    name = "backwards"
    Options = BackwardsOptions
    options: BackwardsOptions

    @property
    def vocab_size(self) -> int:
        """The frame's tokens, then keys, then values."""
        return FIRST_SYMBOL + self.options.keys + self.options.values

    @property
    def max_tokens(self) -> int:
        """BOS, the pairs, the divider, the queries with their answers, EOS."""
        return 3 + 4 * self.options.pairs

    def document(self, random: random.Random, split: Split) -> Document:
        """Roles are positions in the body: the key, the value before it, and what follows the pair."""
        o = self.options
        keys = [FIRST_SYMBOL + key for key in random.sample(range(o.keys), o.pairs)]
        values = [FIRST_SYMBOL + o.keys + value for value in random.sample(range(o.values), o.pairs)]
        body = [token for pair in zip(values, keys, strict=True) for token in pair]
        order = random.sample(range(o.pairs), o.pairs)
        queries = [Query(keys[i], values[i], key=2 * i + 1, value=2 * i, next_key=2 * i + 2) for i in order]
        return framed(body, queries, pairs=o.pairs)

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Any key that is not in the document may take the key's place."""
        return np.setdiff1d(np.arange(FIRST_SYMBOL, FIRST_SYMBOL + self.options.keys), tokens)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixer", default="delta_net")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--store", default="mecheval-store")
    given = parser.parse_args()
    config = me.run_config("backwards", given.mixer, "laptop", steps=given.steps, batch_size=64, lr=3e-3)
    run = me.train(config, given.store)  # resumes an interrupted run, and never trains a config twice
    lm, task = me.load_lm(run.weights / "last.safetensors"), config.build_task()
    clean = task.sample(320, "test")
    effects = me.interchange(lm, clean, task.corrupt(clean))
    print(f"{config.title}: test accuracy {run.status()['test_accuracy']:.3f} after {run.status()['step']} steps")
    print(effects[effects["site"] == "blocks.1.input"].round(3).to_string(index=False))
    print(me.verdict(lm, clean, task.corrupt(clean)))
