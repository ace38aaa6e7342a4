"""A task as a user writes it: one document in plain Python, found through an entry point."""

from __future__ import annotations

import importlib.metadata
import random
import sys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import Field

import mecheval as me
from mecheval import cli, registry
from mecheval.tasks import Document, Query, Task, TaskOptions, framed
from mecheval.types import FIRST_SYMBOL, Split


class EchoOptions(TaskOptions):
    symbols: int = Field(9, ge=2, description="symbols")


class Echo(Task):
    """`BOS a b c EOS b b EOS`: which symbol was asked? Itself."""

    name = "echo"
    Options = EchoOptions
    options: EchoOptions

    @property
    def vocab_size(self) -> int:
        return FIRST_SYMBOL + self.options.symbols

    @property
    def max_tokens(self) -> int:
        return 8

    def document(self, random: random.Random, split: Split) -> Document:
        body = [FIRST_SYMBOL + s for s in random.sample(range(self.options.symbols), 3)]
        i = random.randrange(3)
        return framed(body, [Query(body[i], body[i], i, i, i + 1, eligible=3)], pairs=3)

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(FIRST_SYMBOL, self.vocab_size), tokens)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "echo_plugin", sys.modules[Echo.__module__])
    points = importlib.metadata.EntryPoints((
        importlib.metadata.EntryPoint("echo", "echo_plugin:Echo", "mecheval.tasks"),
        importlib.metadata.EntryPoint("broken", "no_such_package:Thing", "mecheval.tasks"),
    ))  # fmt: skip
    monkeypatch.setattr(registry, "entry_points", lambda **query: points.select(**query))
    monkeypatch.setattr(me.tasks.TASKS, "_classes", dict(me.tasks.TASKS._classes))


def test_a_task_from_elsewhere_samples_streams_and_corrupts(plugins: None) -> None:
    task = me.build_task("echo", symbols=5)
    batch = task.sample(50, "test", seed=1)
    assert batch.tokens.shape == (50, 8)
    assert torch.equal(batch.tokens.gather(1, batch.roles["key"][:, None])[:, 0], batch.answers)
    assert torch.equal(task.sample(10, "test", seed=1, start=20).tokens, batch.tokens[20:30])
    assert ((task.corrupt(batch).tokens != batch.tokens).sum(1) == 1).all()
    assert next(task.stream(4, seed=2)).index.tolist() == [0, 1, 2, 3]


def test_a_broken_plugin_is_told_and_the_rest_is_listed(
    plugins: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mecheval", "list", "tasks"])
    with pytest.raises(SystemExit) as done:
        cli.main()
    out, err = capsys.readouterr()
    assert not done.value.code
    assert all(name in out for name in ("ar", "atr", "echo"))
    assert err.startswith("mecheval: task 'broken' could not be loaded from no_such_package:Thing")
    assert err.count("\n") == 1
