"""The cost of each mixer by the length of documents: time, memory, state, and where one becomes cheaper than another.

Every mixer and length is measured in a separate process (`analysis/cost_cell.py`). If the memory or
the time is not enough, the row says so.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import selectors
import signal
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from mecheval.errors import UserError
from mecheval.files import locked, write_output
from mecheval.machine import environment, machine_memory
from mecheval.mixers.options import BUILT_IN, MAX_LENGTH, MIXERS
from mecheval.paper.estimates import student
from mecheval.sweep.local import program

if TYPE_CHECKING:  # slow to import
    import pandas as pd

LENGTHS = (32, 128, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Default lengths: denser from 1,024 tokens on, where exponents are fitted, whose intervals need many points."""
SETTING = ("cpu", "d_model", "mixer", "length")
"""Columns that identify a row."""
MEASURED = {
    "train_ms": "training step", "forward_ms": "forward pass", "token_ms": "generated token", "memory_mb": "memory",
    "process_mb": "memory of the whole process", "state": "numbers in the state", "parameters": "parameters",
    "flops": "FLOPs of one more token",
}  # fmt: skip
"""Columns of numbers, and their meanings."""
COLUMNS = (*SETTING, "fits", *MEASURED)
GROWING = {
    "train_ms": "a training step", "forward_ms": "a forward pass", "token_ms": "generation", "memory_mb": "memory",
}  # fmt: skip
"""Quantities for which exponents and crossings with attention are computed."""
NUMBERS = ("exponent", "low", "high")
FITTED = (1024, 8192)
"""The shortest and the longest length to which exponents are fitted."""
QUADRATIC, LINEAR = 1.7, 1.15
"""Attention's exponent of a training step is expected to be at least the first, that of a constant state at most the
second."""


def measured(
    path: Path, mixers: Sequence[str] = tuple(BUILT_IN), lengths: Sequence[int] = LENGTHS, d_model: int = 64,
    seconds: float = 120.0, memory: float | None = None, workers: int = 1,
) -> Iterator[tuple[dict[str, Any], bool]]:  # fmt: skip
    """The row of each mixer and length, and whether it is new, as they come; all rows are kept in the CSV file `path`.

    Rows that the file has from this kind of CPU are not measured again. `seconds` and `memory` (in GB; by default half
    of the machine's, shared by the `workers`, which measure a mixer each) limit each row. Lengths beyond one that did
    not fit are not tried.
    """
    for mixer in mixers:
        MIXERS.get(mixer)  # an unknown name is an error before anything is measured
    if not lengths or not all(2 <= length < MAX_LENGTH for length in lengths):
        raise UserError(f"cost: lengths must be from 2 to {MAX_LENGTH - 1}.")
    limit = round(memory * 1e9) if memory is not None else (machine_memory() or 16 * 10**9) // (2 * workers)
    known = {tuple(row[name] for name in SETTING): row for row in rows_in(path)}
    cpu = environment()["cpu"] or "unknown"
    places = {mixer: [(cpu, d_model, mixer, length) for length in sorted(set(lengths))] for mixer in mixers}

    def add(mixer: str, length: int, found: Mapping[str, Any]) -> dict[str, Any]:
        place = (cpu, d_model, mixer, length)
        known[place] = {**dict.fromkeys(COLUMNS), **dict(zip(SETTING, place, strict=True)), **found}
        _keep(path, known[place])
        return known[place]

    asked: dict[str, list[int]] = {}
    for mixer, own in places.items():
        before = "yes"
        for place in own:
            if place in known:
                before = known[place]["fits"]
                yield known[place], False
            elif before != "yes":
                yield add(mixer, place[-1], {"fits": before}), True
            else:
                asked.setdefault(mixer, []).append(place[-1])
    with closing(_cells(asked, d_model, limit, seconds, workers)) as cells:
        for mixer, length, found in cells:
            new = [add(mixer, length, found)]
            if found["fits"] != "yes":
                new += [add(mixer, each, {"fits": found["fits"]}) for each in asked[mixer] if each > length]
            for row in new:
                yield row, True


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that `measured` wrote, or none if there is no file."""
    import pandas as pd

    if not path.exists():
        return []
    try:
        frame = pd.read_csv(path)
        if tuple(frame.columns) != COLUMNS:
            raise ValueError
    except (ValueError, OSError):
        raise UserError(f"{path} is not a table of `mecheval cost`; choose another file with --csv.") from None
    return [
        {name: None if pd.isna(value) else value for name, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]


def _keep(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to the file, or replace the one of the same setting; other commands may add theirs at the same time."""
    with _writing_alone(path):
        rows_in(path)  # raises an error if it has become another table
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = list(csv.reader(io.StringIO(kept, newline=""))) or [list(COLUMNS)]
        new = ["" if row[name] is None else str(row[name]) for name in COLUMNS]
        same = [number for number, line in enumerate(lines) if line[: len(SETTING)] == new[: len(SETTING)]]
        lines[same[0] if same else len(lines) :] = [new, *(lines[same[0] + 1 :] if same else ())]
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(lines)
        write_output(path, text.getvalue())


@contextmanager
def _writing_alone(path: Path) -> Iterator[None]:
    try:
        with locked(path):
            yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from None


def _cells(
    asked: Mapping[str, Sequence[int]], d_model: int, memory: int, seconds: float, workers: int
) -> Generator[tuple[str, int, dict[str, Any]]]:
    """Mixer, length and measurements, as they come, of each mixer up to the first length that does not fit.

    Each of the `workers` is one program for all its mixers, because it takes seconds to start.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as listening:
        for i in range(min(workers, len(asked))):
            own = {mixer: list(asked[mixer]) for mixer in list(asked)[i::workers]}
            given = {"asked": own, "d_model": d_model, "memory": memory, "seconds": seconds}
            command, surrounding = program("mecheval.analysis.cost_cell", json.dumps(given))
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surrounding, process_group=0)
            )
            stack.callback(_end, process.pid)
            assert process.stdout is not None
            listening.register(process.stdout, selectors.EVENT_READ, _Place(own))
        while listening.get_map():
            for key, _ in listening.select():
                said = cast(IO[str], key.fileobj).readline()
                place: _Place = key.data
                if not said and place.done:
                    listening.unregister(key.fileobj)
                    continue
                found = json.loads(said) if said else {"problem": "the measurement ended without a result"}
                mixer, length = place.next(found.get("fits") == "yes")
                if "problem" in found:
                    raise UserError(f"cost: {mixer} at {length} tokens: {found['problem']}")
                yield mixer, length, {k: round(v, 6) if isinstance(v, float) else v for k, v in found.items()}


def _end(group: int) -> None:
    """End a program and the processes that it has forked, which Ctrl-C in a terminal does not reach."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)


class _Place:
    """The place of a program in its mixers and lengths."""

    def __init__(self, asked: Mapping[str, Sequence[int]]) -> None:
        self._left = [(mixer, length) for mixer, lengths in asked.items() for length in lengths]

    @property
    def done(self) -> bool:
        return not self._left

    def next(self, fits: bool) -> tuple[str, int]:
        """The mixer and length that were measured; if they did not fit, the mixer's others are left out."""
        mixer, length = self._left.pop(0)
        if not fits:
            self._left = [each for each in self._left if each[0] != mixer]
        return mixer, length


def exponent(lengths: Sequence[float], values: Sequence[float]) -> tuple[float, float, float] | None:
    """The slope of log value over log length, and the ends of its 95 % interval; None with fewer than three points.

    The interval is Student's, from the residuals.
    """
    n = len(lengths)
    if n < 3:
        return None
    (slope, _), covariance = np.polyfit(np.log(lengths), np.log(values), 1, cov=True)
    half = student(0.95, n - 2) * math.sqrt(covariance[0, 0])
    return float(slope), float(slope - half), float(slope + half)


def exponents(frame: pd.DataFrame) -> pd.DataFrame:
    """The exponent of growth between the lengths FITTED and its interval, by mixer and quantity."""
    import pandas as pd

    rows = []
    inside = frame[(frame["fits"] == "yes") & frame["length"].between(*FITTED)]
    for mixer, own in inside.groupby("mixer", sort=False):
        for what in GROWING:
            if (own[what] > 0).all() and (found := exponent(list(own["length"]), list(own[what]))) is not None:
                rows.append({"mixer": mixer, "quantity": what, **dict(zip(NUMBERS, found, strict=True))})
    return pd.DataFrame(rows, columns=["mixer", "quantity", *NUMBERS])


def hypotheses(frame: pd.DataFrame) -> list[str]:
    """The hypotheses about exponents of a training step, each with its outcome according to the 95 % intervals."""
    found = exponents(frame)
    steps = found[found["quantity"] == "train_ms"].set_index("mixer")
    inside = frame[(frame["fits"] == "yes") & frame["length"].between(*FITTED)]
    sizes = inside.groupby("mixer", sort=False)["state"].nunique()
    constant = steps[steps.index.isin(sizes[sizes == 1].index)]
    said = []
    if "attention" in steps.index:
        row = steps.loc["attention"]
        outcome = "holds" if row["low"] >= QUADRATIC else "contradicted" if row["high"] < QUADRATIC else "inconclusive"
        numbers = f"{row['exponent']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        said.append(f"A training step of attention has an exponent of at least {QUADRATIC}: {outcome} ({numbers}).")
        if outcome != "holds":
            said.append(_why_not(inside[inside["mixer"] == "attention"].sort_values("length")))
    if len(constant):
        above, surely = (constant.index[constant[end] > LINEAR] for end in ("exponent", "low"))
        outcome = "contradicted" if len(surely) else "inconclusive" if (constant["high"] > LINEAR).any() else "holds"
        top = constant["exponent"].idxmax()
        said.append(
            f"That of mixers with a state of constant size has one of at most {LINEAR}: {outcome} "
            f"({len(constant) - len(above)} of {len(constant)} are below; the largest is {top}'s, "
            f"{constant['exponent'][top]:.2f} [{constant['low'][top]:.2f}, {constant['high'][top]:.2f}])."
        )
    return said


def two_terms(lengths: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The a and b for which a·length + b·length² fits the values best, by least squares of relative errors."""
    n, y = np.asarray(lengths, float), np.asarray(values, float)
    (a, b), *_ = np.linalg.lstsq(np.stack([n / y, n**2 / y], axis=1), np.ones_like(y), rcond=None)
    return float(a), float(b)


def _why_not(own: pd.DataFrame) -> str:
    """A sentence on how much of a step is quadratic in the length, from the rows of one mixer sorted by length."""
    n, y = own["length"].to_numpy(float), own["train_ms"].to_numpy(float)
    a, b = two_terms(n, y)
    off = float(np.abs((a * n + b * n**2) / y - 1).max())
    first, last = (f"{b * n[i] / (a + b * n[i]):.0%} at {n[i]:,.0f}" for i in (0, -1))
    slope = math.log(y[-1] / y[-2]) / math.log(n[-1] / n[-2])
    return (
        f"Only a part of its step is quadratic: its times are {1e3 * a:.3g} µs × tokens + {1e6 * b:.3g} ns × tokens², "
        f"to within {off:.0%}, of which the square is {first} and {last} tokens; the exponent between the two longest "
        f"is {slope:.2f}."
    )


def cheaper_from(lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The length from which ours is less than theirs, interpolated; None if it is not at the longest length.

    The shortest length means "at every length". Between two lengths, both are taken to grow as powers of the length.
    """
    ahead = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    last = max((i for i, each in enumerate(ahead) if each >= 0), default=-1)
    if last == len(ahead) - 1:
        return None
    if last == -1:
        return float(lengths[0])
    part = ahead[last] / (ahead[last] - ahead[last + 1])
    return float(lengths[last] ** (1 - part) * lengths[last + 1] ** part)


def crossings(frame: pd.DataFrame, other: str = "attention") -> list[str]:
    """A sentence for each mixer on the lengths from which it is cheaper than another on this machine, and in what."""
    fits = frame[frame["fits"] == "yes"]
    theirs = fits[fits["mixer"] == other].set_index("length")
    said = []
    for mixer, own in fits[fits["mixer"] != other].groupby("mixer", sort=False):
        mine = own.set_index("length").sort_index()
        cheaper, not_so, longest = [], [], 0
        for what, name in GROWING.items():
            both = [n for n in mine.index if n in theirs.index and min(mine[what][n], theirs[what][n]) > 0]
            if both:
                found = cheaper_from(both, list(mine[what][both]), list(theirs[what][both]))
                longest = max(longest, *both)
                if found is None:
                    not_so.append(name)
                else:
                    start = "at every length" if found == both[0] else f"from {float(f'{found:.2g}'):,.0f} tokens"
                    cheaper.append(f"{start} in {name}")
        than = f"cheaper than {other} on this machine"
        rest = f"not at {longest:,} tokens in {', '.join(not_so)}"
        if cheaper:
            said.append(f"{mixer} is {than} {', '.join(cheaper)}{f'; {rest}' if not_so else ''}.")
        elif not_so:
            said.append(f"{mixer} is not {than}: {rest}.")
    return said
