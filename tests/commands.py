"""Run the command line inside the test."""

from __future__ import annotations

import sys

import pytest

from mecheval import cli


class Command:
    """Call it with a command's words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self.monkeypatch.setattr(sys, "argv", ["mecheval", *words])
        with pytest.raises(SystemExit) as done:
            cli.main()
        out, err = self.capsys.readouterr()
        return int(done.value.code or 0), out, err

    def prints(self, *words: str) -> str:
        """What a command that goes well prints."""
        code, out, err = self(*words)
        assert (code, err) == (0, ""), err
        return out
