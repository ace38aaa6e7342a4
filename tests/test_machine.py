"""What a process asks of its machine."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from mecheval.machine import keep_memory
libc, size = ctypes.CDLL(None), 256 << 20
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
if sys.argv[1] == "keep":
    keep_memory()
use()
print(use())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to keep memory")
def test_kept_memory_is_not_fetched_again() -> None:
    """The second use of 256 MB faults at least once per huge page of 2 MB, unless memory is kept."""
    faults = {
        how: int(subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True).stdout)
        for how in ("return", "keep")
    }
    assert faults["return"] >= 128
    assert faults["keep"] < 64
