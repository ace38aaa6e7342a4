"""The program that measures mixers at several lengths, each in a separate process, so that peak memory is separate.

`python -m mecheval.analysis.cost_cell JSON`, with the arguments of `main` as JSON, prints a line of JSON for each
mixer and length. Processes are forked after everything is imported, which takes longer than most measurements. Times
are CPU time of one thread, and the shortest of several calls counts, because other programs can only add to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from mecheval.mixers.options import options_of
from mecheval.model import LM
from mecheval.ops import dispatch
from mecheval.ops.adamw import AdamW

VOCABULARY, LAYERS, SHORT, LEARNING_RATE = 64, 2, 16, 1e-3
"""Symbols and layers of the models, length of the warm-up calls that load kernels, and learning rate of the steps."""
FEWEST, MOST, SECONDS = 5, 20, 0.3
"""Smallest and largest number of calls, of which the fastest counts, and seconds after which the smallest is enough."""
OUT_OF_MEMORY = (
    "can't allocate memory", "MemoryError", "Cannot allocate memory", "failed to map segment",
    "could not create a primitive", "std::bad_alloc", "[enforce fail a",
)  # fmt: skip
"""Parts of the messages of torch and oneDNN when memory has run out. The last one is what is left of torch's message if
there is no memory for more than the 15 characters that a short string of C++ holds."""
MOVES = ("clone", "copy", "_to_copy", "fill", "zero", "where", "masked_fill")
"""Pointwise operations that only move numbers."""
SUMS = ("sum", "mean", "prod", "norm", "softmax")
"""Parts of the names of operations that reduce many numbers to few."""
MEGABYTE = 2**20


def main(asked: Mapping[str, Sequence[int]], d_model: int, memory: int, seconds: float) -> None:
    """Print the cost of each mixer at each of its lengths, from the shortest to the first that does not fit.

    `memory` (in bytes) and `seconds` limit each length; `fits` is yes, or the limit that was exceeded.
    """
    torch.set_num_threads(1)
    for mixer, lengths in asked.items():
        child = os.fork()
        if not child:
            try:
                _one_mixer(mixer, lengths, d_model, memory, seconds)
            except Exception as error:  # whatever a mixer raises
                _tell(json.dumps(_problem(error)))
            os._exit(0)
        if os.waitpid(child, 0)[1]:  # nobody listens any more, or the process has crashed, which says enough
            return


def _one_mixer(mixer: str, lengths: Sequence[int], d_model: int, memory: int, seconds: float) -> None:
    lm = model(mixer, SHORT, d_model)
    with torch.no_grad():  # only children compute gradients, because a process that has done so must not be forked
        lm(torch.zeros(1, SHORT, dtype=torch.long))
    for length in lengths:
        there, here = os.pipe()
        child = os.fork()
        if not child:
            signal.setitimer(signal.ITIMER_REAL, seconds)  # its signal ends the process
            os.write(here, _outcome(mixer, length, d_model, memory).encode())
            os._exit(0)
        os.close(here)
        with os.fdopen(there) as pipe:
            said = pipe.read()
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended < 0:
            said = json.dumps({"fits": "time" if ended == -signal.SIGALRM else "memory"})
        _tell(said)
        if json.loads(said).get("fits") != "yes":
            return


def _tell(said: str) -> None:
    """Print a line; if the command that asked has died, this process ends, too."""
    try:
        print(said, flush=True)
    except BrokenPipeError:
        os._exit(1)


def _outcome(mixer: str, length: int, d_model: int, memory: int) -> str:
    """The measurement as JSON, or that `memory` bytes are too few, or the problem in one line."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, most))
        return json.dumps({"fits": "yes"} | measure(mixer, length, d_model))
    except Exception as error:  # whatever a mixer raises
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # to say so takes memory, too
        said = _problem(error)
        return json.dumps({"fits": "memory"} if any(each in said["problem"] for each in OUT_OF_MEMORY) else said)


def _problem(error: Exception) -> dict[str, str]:
    return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}


def measure(mixer: str, length: int, d_model: int) -> dict[str, Any]:
    """Time, memory, state, parameters and FLOPs of a model for documents of a length."""
    lm = model(mixer, length, d_model)
    optimiser = AdamW(lm.parameters())
    tokens = torch.randint(VOCABULARY, (1, length + 1), generator=torch.Generator().manual_seed(0))

    def train(tokens: torch.Tensor = tokens) -> None:
        optimiser.zero_grad()
        F.cross_entropy(lm(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimiser.step(LEARNING_RATE)

    train(tokens[:, : SHORT + 1])
    before = _peak(again=True)
    train_ms = _milliseconds(train)
    peak = _peak()
    with torch.no_grad():
        forward_ms = _milliseconds(lambda: lm(tokens[:, :-1]))
        _, state = lm.read(tokens[:, :-1])
        token_ms = _milliseconds(lambda: lm.read(tokens[:, -1:], state))
        with dispatch.path("reference"), Counting() as counting:
            lm.read(tokens[:, -1:], state)
    return {
        "train_ms": train_ms, "forward_ms": forward_ms, "token_ms": token_ms, "memory_mb": (peak - before) / MEGABYTE,
        "process_mb": peak / MEGABYTE, "state": state.size, "parameters": lm.n_parameters, "flops": counting.flops,
    }  # fmt: skip


def model(mixer: str, length: int, d_model: int) -> LM:
    """The model that is measured: two layers without position embeddings, for documents of `length` + 1 tokens."""
    known = options_of(mixer)
    long = known is not None and "l_max" in known.model_fields
    options = {"l_max": length + 1} if long else {}
    return LM(VOCABULARY, d_model, LAYERS, mixer, options, positions="none", seed=0)


class Counting(TorchDispatchMode):
    """Counts additions and multiplications.

    Matrix products are counted exactly, and any other arithmetic as one operation per number produced or summed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not to: PyTorch would import its compiler in every process, which takes longer than most measurements."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=made)
        elif torch.Tag.pointwise in func.tags and name.rstrip("_") not in MOVES:
            self.flops += made.numel()
        elif any(each in name for each in SUMS):
            self.flops += args[0].numel()
        return made


def _milliseconds(call: Callable[[], object]) -> float:
    """The shortest CPU time of several calls in milliseconds, after a warm-up call."""
    call()
    times: list[float] = []
    while len(times) < FEWEST or (len(times) < MOST and sum(times) < SECONDS):
        before = time.process_time()
        call()
        times.append(time.process_time() - before)
    return 1e3 * min(times)


def _peak(again: bool = False) -> int:
    """The peak memory of this process in bytes; `again` resets it to what the process holds now.

    On systems that cannot reset it, the peak so far remains.
    """
    if again:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    try:
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
