"""The machine and the process: cores, memory, versions and code, limits, and the signals that ask a run to stop."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from mecheval.errors import UserError

PACKAGES = ("torch", "numpy", "numba", "safetensors", "duckdb", "pandas")
DIGITS = (
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA", "GLIBC_TUNABLES",
    "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES",
    "NUMBA_BOUNDSCHECK", "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "NUMBA_DISABLE_INTEL_SVML", "NUMBA_DISABLE_JIT",
    "NUMBA_ENABLE_AVX", "NUMBA_LOOP_VECTORIZE", "NUMBA_OPT", "NUMBA_SLP_VECTORIZE", "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
"""Environment variables on which the last digits of a run depend, because they choose instructions or algorithms."""
VARIABLES = ("OMP_NUM_THREADS", *DIGITS)
GIT_SECONDS = 1.0
"""Longest time in seconds to wait for git, so that a slow disk does not delay training."""
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # as malloc.h of glibc numbers them


def environment() -> dict[str, Any]:
    """Versions, code and machine of this process, as plain data, with None for unknown values."""
    commit, dirty = commit_of(Path(__file__).parent)
    return {
        "mecheval": _version("mecheval"),
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "processor": " ".join(str(part) for part in processor()),
        "capability": _capability(),
        "products": _products(),
        "cores": affinity(),
        "host": platform.node() or None,
        "packages": {name: _version(name) for name in PACKAGES},
        "variables": _variables(),
    }


def _variables() -> dict[str, str]:
    """Those of `VARIABLES` that are set; numba also takes its own from a file in the working folder."""
    numba = sys.modules.get("numba")
    from_file = getattr(getattr(getattr(numba, "config", None), "_env_reloader", None), "old_environ", {})
    given = {**{name: str(value) for name, value in from_file.items()}, **os.environ}
    return {name: given[name] for name in VARIABLES if name in given}


def keep_memory() -> None:
    """Let the C library keep the memory that this process frees, for the next step; without glibc, nothing changes.

    Otherwise it returns tensors above 32 MB to the system and gets them back page by page, which takes up to a third of
    a step with long documents. This is for processes that only train: what is kept is lost to all others.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def growing_by(limit: int) -> Iterator[None]:
    """Raise a MemoryError if this process reserves more than `limit` further bytes while the context lasts.

    On systems that do not report how much is reserved (macOS), there is no limit.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + limit
    known = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *known]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def changed(*several: Mapping[str, Mapping[str, Any]]) -> str:
    """How the environments of a run's parts differ, as far as its last digits depend on them; empty if they do not."""
    parts = {name: part for each in several for name, part in each.items() if name.startswith("training")}
    kinds = list(dict.fromkeys(_kind(part) for part in parts.values()))
    if len(kinds) > 1:
        return f"on different kinds of CPU: {', then '.join(kinds)}"
    settings = [part.get("variables") or {} for part in parts.values()]
    if other := [name for name in DIGITS if len({each.get(name) for each in settings}) > 1]:
        return f"with different values of {', '.join(other)} (see environment.json)"
    versions = {str(sorted((part.get("packages") or {}).items())) for part in parts.values()}
    return "with different versions of its libraries (see environment.json)" if len(versions) > 1 else ""


def _kind(part: Mapping[str, Any]) -> str:
    """The kind of processor of an environment, and how it was used; older environments know less."""
    known = [part[name] for name in ("processor", "capability", "products") if part.get(name)]
    return f"{part.get('cpu')} ({', '.join(known)})"


def commit_of(package: Path) -> tuple[str | None, bool | None]:
    """The commit of the repository that tracks `package`, and whether the package has uncommitted changes.

    An installed package may be inside a repository that does not track it, whose commit is irrelevant.
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
    """The output of git, or None. Git takes no lock, so it does not interfere with the user's own commands."""
    elsewhere = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, env=elsewhere, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode(errors="replace")


@cache
def _version(package: str) -> str | None:
    """The version of an installed package; reading it takes milliseconds, and a process does not change packages."""
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


def lacks_bfloat16() -> bool:
    """Whether this is an x86 processor without instructions for bfloat16; False where PyTorch does not say."""
    import torch

    there: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return there.get("architecture") == "x86_64" and not (there.get("avx512_bf16") or there.get("amx_bf16"))


def _capability() -> str | None:
    """The instruction set that torch's kernels use, such as AVX2; None if torch is not loaded."""
    torch = sys.modules.get("torch")
    return str(torch.backends.cpu.get_cpu_capability()) if torch else None


@cache
def processor() -> tuple[str, int]:
    """The vendor and the family of the processor, such as ("AuthenticAMD", 25); ("", 0) if they are unknown."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        vendor, family = (re.search(rf"^{name}\s*: (\S+)$", text, re.M) for name in ("vendor_id", "cpu family"))
    except (OSError, UnicodeDecodeError):
        text = platform.processor()  # on Windows: AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD
        vendor, family = re.search(r", (\S+)$", text), re.search(r"Family (\d+)", text)
    return (vendor[1], int(family[1])) if vendor and family else ("", 0)


def _products() -> str | None:
    """Which library computes this process's products; None if nothing has been computed."""
    module = sys.modules.get("mecheval.ops.product")
    return str(module.chosen()) if module else None


def affinity() -> int:
    """The number of cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """The number of cores that this process may use, within the limit of its container."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return affinity() if quota == "max" else min(affinity(), max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        return affinity()


def machine_memory() -> int | None:
    """The memory in bytes of this machine or its container; None if the system does not report it."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return found


def check_fits(needed: int, what: str) -> None:
    """Raise an error if `what`, which takes at least `needed` bytes, does not fit into this machine's memory.

    Running out of memory would kill the process without a message, so this is called before large allocations.
    """
    there = machine_memory()
    if there is not None and needed > there:
        raise UserError(
            f"{what} would take at least {needed / 1e9:,.1f} GB of memory; this machine has {there / 1e9:.1f} GB."
        )


def check_address_space(needed: int, what: str) -> None:
    """Raise an error if a limit (`ulimit -v` or `-d`) leaves this process less address space than `what` needs.

    DuckDB, for one, would end the process without a message.
    """
    limits = [resource.getrlimit(each)[0] for each in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    if all(each == resource.RLIM_INFINITY for each in limits):
        return
    try:
        mmap.mmap(-1, needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        limit = min(each for each in limits if each != resource.RLIM_INFINITY)
        raise UserError(
            f"this process may use {limit / 1e9:.1f} GB of address space (ulimit), which is too little {what}; "
            f"allow {needed / 1e9:.1f} GB more."
        ) from None


class Request:
    """Whether a signal has arrived, and which."""

    signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[Request]:
    """While the context lasts, the first SIGINT or SIGTERM only sets the request; a second one interrupts at once."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.signal = number

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
