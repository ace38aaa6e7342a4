from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import config
from numba.core.caching import CacheImpl, IndexDataCacheFile

from mecheval.errors import UserError
from mecheval.training import train
from training.runs import in_child, outcome, tiny


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "caller.py").write_text(
        "from mecheval.kernels import kernel\nfrom some_package.callee import number\n"
        "from some_package.values import MORE\n\n"
        "@kernel\ndef total(x):\n    return x + number() + MORE\n"
    )

    def write(number: int) -> None:
        source = f"from mecheval.kernels import kernel\n\n@kernel\ndef number():\n    return {number}\n"
        (package / "callee.py").write_text(source)

    (package / "values.py").write_text("MORE = 0\n")
    (package / "unrelated.py").write_text("")

    def run() -> str:
        """The result in a process that has not seen the kernels, and how often the caller came from the cache."""

        def total() -> None:
            vars(config)["CACHE_DIR"] = str(tmp_path / "cache")
            sys.path.insert(0, str(tmp_path))
            sys.dont_write_bytecode = True  # Python's own cache does not notice a change within the same second
            found: Any = importlib.import_module("some_package.caller").total
            (tmp_path / "found").write_text(f"{found(1)} {sum(found.stats.cache_hits.values())}")

        assert outcome(in_child(total)) == 0
        return (tmp_path / "found").read_text()

    write(10)
    assert run() == "11 0"
    assert run() == "11 1"
    write(20)
    assert run() == "21 0"
    (package / "values.py").write_text("MORE = 5\n")
    assert run() == "26 0"
    (package / "unrelated.py").write_text("ANYTHING = 1\n")
    assert run() == "26 1"


SUM = """
from mecheval.kernels import fast_kernel

@fast_kernel
def total(x):
    found = 0.0
    for i in range(len(x)):
        found += x[i]
    return found
"""


@pytest.fixture
def total(tmp_path: Path) -> Callable[..., str]:
    """Calls a kernel in a new process: its result, and how often it came from the cache."""
    (tmp_path / "one_kernel.py").write_text(SUM)
    cache = tmp_path / "cache"

    def run(**settings: int) -> str:
        def work() -> None:
            vars(config).update({"CACHE_DIR": str(cache), **settings})
            sys.path.insert(0, str(tmp_path))
            found: Any = importlib.import_module("one_kernel").total
            (tmp_path / "found").write_text(f"{found(np.ones(5))} {sum(found.stats.cache_hits.values())}")

        assert outcome(in_child(work)) == 0
        return (tmp_path / "found").read_text()

    return run


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_damaged_or_emptied_file_of_the_cache_is_compiled_again(
    ending: str, total: Callable[..., str], tmp_path: Path
) -> None:
    assert [total(), total()] == ["5.0 0", "5.0 1"]
    [path] = tmp_path.glob(f"cache/*/*.{ending}")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-3], flipped(whole), b"\x80" * 50):
        path.write_bytes(damaged)
        assert total() in ("5.0 0", *(["5.0 1"] if ending == "nbi" and damaged == flipped(whole) else []))
        assert total() == "5.0 1"


def test_machine_code_of_an_earlier_version_is_not_taken_for_this_one(
    total: Callable[..., str], tmp_path: Path
) -> None:
    """As after a kill between the writing of the index and that of the code."""
    total()
    [path] = tmp_path.glob("cache/*/*.nbc")
    before = path.read_bytes()
    (tmp_path / "one_kernel.py").write_text(SUM.replace("0.0", "100.0"))
    assert total() == "105.0 0"
    path.write_bytes(before)
    assert [total(), total()] == ["105.0 0", "105.0 1"]


def test_machine_code_that_was_made_with_other_settings_is_not_used(total: Callable[..., str]) -> None:
    assert [total(), total(OPT=0), total(OPT=0), total()] == ["5.0 0", "5.0 0", "5.0 1", "5.0 0"]


def test_without_a_folder_for_the_cache_every_process_compiles(
    total: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    assert total() == "5.0 0"
    monkeypatch.undo()
    (tmp_path / "cache").mkdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(IndexDataCacheFile, "_save_index", full)
    assert [total(), total()] == ["5.0 0", "5.0 0"]


def test_nothing_is_trained_with_plain_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(config), "DISABLE_JIT", 1)
    with pytest.raises(UserError, match="NUMBA_DISABLE_JIT is set"):
        train(tiny(steps=1), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []
