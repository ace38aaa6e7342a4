from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from numba.core import config

from training.runs import in_child, outcome


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
