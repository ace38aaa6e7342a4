"""What is taken from a store that someone else may have made, and why a run of it is left out.

A store can be damaged, written by another program, or made to do harm. Whoever shows its runs, in a terminal, a chart
or a page, takes them through these limits, which no run of ours comes near.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from mecheval.store.schema import RUNS, STATUSES

MOST_LAYERS = 128
"""Blocks of a model; also, numbers of layers in the names of sites are below this."""
LONGEST_NAME = 80
"""Characters of a name: of a task, a mixer, a site, a role, an option with its value."""
LONGEST_TEXT = 4_000
"""Characters of a text in whole sentences: a message, a summary, the evidence of a verdict."""
LARGEST_CONFIG = 20_000
"""Characters of a config as JSON; ours have about 1,000."""
DEEPEST_CONFIG = 5
"""Mappings and lists inside each other in a config, itself included; ours have three."""
LARGEST_STEP = 2**53
"""The largest whole number that a chart, which computes with floats, still tells from its neighbours."""
LARGEST_NUMBER = 1e9
"""Of any fraction; losses of runs that diverge may be larger, and are then missing."""

ROUNDING = 1e-3
"""By how much a mean of probabilities may be outside of its range."""
SHARES = ("original", "corrupted", "restored", "likelihood", "accuracy", "agreement")
"""Ends of the names of columns that are probabilities, or shares of documents."""
WHOLE_NUMBERS = {
    "d_model": (1, 2**20), "n_layers": (1, MOST_LAYERS), "seed": (0, 2**63 - 1), "steps": (0, LARGEST_STEP),
    "step": (0, LARGEST_STEP), "parameters": (0, LARGEST_STEP), "best_step": (0, LARGEST_STEP),
}  # fmt: skip
"""The smallest and the largest of the whole numbers of table runs, and of the same names in a config."""
TEXTS = ("message", "summary", "evidence")
"""Columns that hold sentences; other texts are names."""
PARTS = ("task", "mixer", "model", "optimiser", "schedule", "data", "evaluate", "machine")
"""Parts of a config that hold names and values."""
BLOCK = re.compile(r"blocks\.(\d+)\.")


def printable(text: str) -> str:
    """The same with a sign in place of each character that has no picture: controls, marks of direction, halves."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "�" for sign in text)


def name_of(text: str) -> str:
    """A name as it can be shown; one that had to be changed ends in a digest, so that names stay different."""
    if text.isprintable() and len(text) <= LONGEST_NAME:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{printable(text[: LONGEST_NAME - len(digest) - 1])}…{digest}"


def text_of(text: str) -> str:
    """Sentences as they can be shown, line by line."""
    short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
    return "\n".join(printable(line) for line in short.split("\n"))


def bounds_of(column: str) -> tuple[float, float]:
    """The smallest and the largest number that a column of fractions can have; what is outside is missing."""
    if column.endswith(SHARES):
        return -ROUNDING, 1 + ROUNDING
    if column == "attribution":
        return -1 - ROUNDING, 1 + ROUNDING
    return (0, LARGEST_NUMBER) if column in ("lr", "seconds") else (-LARGEST_NUMBER, LARGEST_NUMBER)


def is_site(name: str) -> bool:
    """Whether a site has a name, and no layer beyond the limit."""
    found = BLOCK.match(name)
    return bool(name) and (found is None or (len(found[1]) < 9 and int(found[1]) < MOST_LAYERS))


def bounded_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of table runs, of a run that can be shown, within the limits; fractions out of their range are missing."""
    taken = dict(row)
    for column in RUNS.columns:
        value = row[column.name]
        if isinstance(value, str) and column.name != "run":
            taken[column.name] = text_of(value) if column.name in TEXTS else name_of(value)
        elif isinstance(value, float):
            low, high = bounds_of(column.name)
            taken[column.name] = value if low <= value <= high else None
    return taken


def unreadable(run: str, why: str) -> dict[str, Any]:
    """The row of a run of which nothing can be shown but why."""
    return {column.name: None for column in RUNS.columns} | {"run": run, "status": "failed", "message": why}


def row_problem(row: Mapping[str, Any]) -> str | None:
    """Why a run cannot be shown; None if it can."""
    if row["status"] not in STATUSES:
        return f"its status is {name_of(str(row['status']))!r}"
    return _number_problem(row, "") or (None if row["config"] is None else config_problem(row["config"]))


def config_problem(config: Any) -> str | None:
    """Why a stored config cannot be used; None if it can.

    Then it is small, shallow plain data; each of its parts that is there holds names and values; the names of task and
    mixer are texts, and sizes and seed are whole numbers within the limits. Any part or option may be missing.
    """
    if not isinstance(config, dict):
        return f"its config is {_kind(config)}, and not names and values"
    if not _is_plain(config, DEEPEST_CONFIG):
        return f"its config is nested more than {DEEPEST_CONFIG} deep, or holds what is not plain"
    if len(json.dumps(config)) > LARGEST_CONFIG:
        return f"its config has more than {LARGEST_CONFIG:,} characters"
    for part in PARTS:
        if part in config and not isinstance(config[part], dict):
            return f"its config holds {_kind(config[part])} where the options of its {part} belong"
    for part in ("task", "mixer"):
        name = config.get(part, {}).get("name")
        if name is not None and not isinstance(name, str):
            return f"in its config, the name of its {part} is {_kind(name)}"
    return _number_problem(config, "config ") or _number_problem(config.get("model", {}), "config model.")


def _number_problem(values: Mapping[str, Any], where: str) -> str | None:
    for name, (low, high) in WHOLE_NUMBERS.items():
        value = values.get(name)
        if value is None:
            continue
        if type(value) is not int:
            return f"{where}{name} is {_kind(value)}"
        if not low <= value <= high:
            return f"{where}{name} is {value:,}, and can be {low:,} to {high:,}"
    return None


def _is_plain(value: Any, deepest: int) -> bool:
    """Whether this is plain data (names are texts, numbers are finite and of 64 bits) of at most so many levels."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        return deepest > 0 and all(type(name) is str for name in value) and _are_plain(value.values(), deepest - 1)
    return kind is list and deepest > 0 and _are_plain(value, deepest - 1)


def _are_plain(values: Iterable[Any], deepest: int) -> bool:
    return all(_is_plain(each, deepest) for each in values)


def _kind(value: Any) -> str:
    """What something is, for people."""
    if value is None:
        return "nothing"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a fraction",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), f"a {type(value).__name__}")
