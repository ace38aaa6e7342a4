"""Run the command line inside the test, or in a process that can be sent signals."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mecheval import cli
from training.runs import in_child


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


def forked(words: Sequence[str], said: Path) -> int:
    """The command line in a child of this process, which has imported everything; the child's id.

    `said` is the file that its standard error goes to.
    """

    def run() -> None:
        sys.argv = ["mecheval", *words]
        code = 1
        with said.open("w") as sys.stderr, Path(os.devnull).open("w") as sys.stdout:
            try:
                cli.main()
            except SystemExit as end:
                code = int(end.code or 0)
        os._exit(code)

    return in_child(run)
