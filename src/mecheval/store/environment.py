"""What a run is trained with."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "numba", "safetensors", "duckdb", "pandas")
VARIABLES = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY")
GIT_SECONDS = 1.0
"""Longer than any healthy answer; a slow disk must not hold up training."""


def environment() -> dict[str, Any]:
    """Versions, code and machine of this process, as plain data; what cannot be found out is None."""
    commit, dirty = commit_of(Path(__file__).parents[1])
    return {
        "mecheval": _version("mecheval"),
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "capability": _capability(),
        "cores": _cores(),
        "host": platform.node() or None,
        "packages": {name: _version(name) for name in PACKAGES},
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }


def changed(*several: Mapping[str, Mapping[str, Any]]) -> str:
    """In words, how the parts of a run differ in what its last digits depend on; empty when they do not."""
    parts = {name: part for each in several for name, part in each.items() if name.startswith("training")}
    kinds = list(dict.fromkeys(f"{part.get('cpu')} ({part.get('capability')})" for part in parts.values()))
    if len(kinds) > 1:
        return f"on different kinds of CPU: {', then '.join(kinds)}"
    versions = {str(sorted((part.get("packages") or {}).items())) for part in parts.values()}
    return "with different versions of its libraries (see environment.json)" if len(versions) > 1 else ""


def commit_of(package: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout that tracks `package`, and whether the package has changes beside it.

    An installed package may lie inside the user's own repository, which does not track it and says nothing about it.
    """
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    status = _git(package, "status", "--porcelain=v2", "--branch", "--", ".") if tracked else None
    if status is None:
        return None, None
    lines = status.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    if commit == "(initial)":
        return None, None
    return commit, any(not line.startswith("#") for line in lines)


def _git(folder: Path, *arguments: str) -> str | None:
    """What git answers, or None; it takes no lock, so that it is in nobody's way."""
    elsewhere = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, env=elsewhere, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode(errors="replace")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _capability() -> str | None:
    """The instructions that torch's kernels use, as AVX2; None where torch is not loaded."""
    torch = sys.modules.get("torch")
    return str(torch.backends.cpu.get_cpu_capability()) if torch else None


def _cores() -> int | None:
    """Cores that this process may use, which can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
