"""Two workers with one thread each beat one process with two: so every test process computes on one thread."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported, hence here and not in a fixture

import pytest

from commands import Command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, run inside the test."""
    return Command(monkeypatch, capsys)
