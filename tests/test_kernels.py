from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


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
        """The result, and how often the caller came from the cache."""
        program = "from some_package.caller import total; print(total(1), sum(total.stats.cache_hits.values()))"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    write(10)
    assert run() == "11 0"
    assert run() == "11 1"
    write(20)
    assert run() == "21 0"
    (package / "values.py").write_text("MORE = 5\n")
    assert run() == "26 0"
    (package / "unrelated.py").write_text("ANYTHING = 1\n")
    assert run() == "26 1"
