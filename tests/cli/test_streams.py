"""Standard streams that are closed or full, or that lack characters; and a working folder that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mecheval.store import RESULTS

MECHEVAL = f"exec {sys.executable} -c 'from mecheval.cli import main; main()'"
FULL = "cannot write to standard output: No space left on device"


def shell(line: str) -> tuple[int, str, str]:
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("words", "to", "said"), [
    ("runs", ">&-", "cannot write to standard output: it is closed"),
    ("runs", ">/dev/full", FULL),
    ("runs --json", ">/dev/full", FULL),
    ("--version", ">/dev/full", FULL),
])  # fmt: skip
def test_an_output_that_cannot_be_written_is_one_line(words: str, to: str, said: str) -> None:
    store = "" if words == "--version" else f"--store {RESULTS}"
    assert shell(f"{MECHEVAL} {words} {store} {to}") == (2, "", f"mecheval: {said}.\n")


def test_a_closed_standard_error_is_not_the_next_file() -> None:
    assert shell(f"{MECHEVAL} runs --store nowhere 2>&- <&-") == (2, "", "")


def test_an_encoding_that_lacks_characters_gets_them_in_ascii() -> None:
    code, out, err = shell(f"PYTHONIOENCODING=latin-1 {MECHEVAL} list studies")
    assert (code, err) == (0, "")
    assert "\\u" in out


def test_a_limit_of_memory_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    words = "train --preset laptop --steps 1000000 --store store"
    code, out, err = shell(f"cd {tmp_path} && ulimit -v 1500000 && {MECHEVAL} {words}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "may use 1.5 GB of address space (ulimit), which is too little to write the tables of a run" in err
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_working_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    said = "mecheval: the working folder is gone; change to one that exists.\n"
    assert shell(f"cd {gone} && rmdir {gone} && {MECHEVAL} list mixers") == (2, "", said)
