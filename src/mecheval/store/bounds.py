"""Limits on what is shown from a store of unknown origin, and the reasons for which a run is left out.

A store may be damaged, written by another program, or malicious. Terminals, charts and pages show its runs only within
these limits, which lie far above anything that this program writes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mecheval.store.schema import RUNS, STATUSES, Table

if TYPE_CHECKING:  # slow to import
    from duckdb import DuckDBPyConnection

MOST_LAYERS = 128
"""Largest number of blocks in a model; the layer numbers in site names are smaller than this."""
LONGEST_NAME = 80
"""Largest number of characters in the name of a task, mixer, site or role, or in an option with its value."""
LONGEST_TEXT = 4_000
"""Largest number of characters in a message, a summary, or the evidence of a verdict."""
LARGEST_CONFIG = 20_000
"""Largest number of characters in a config as JSON; configs usually have about 1,000."""
DEEPEST_CONFIG = 5
"""Deepest nesting of mappings and lists in a config, itself included; configs usually have three levels."""
LARGEST_STEP = 2**53
"""The largest whole number that charts, which compute in floating point, represent exactly."""
LARGEST_NUMBER = 1e9
"""The largest fraction that is shown; a diverging loss that exceeds it is treated as missing."""
MOST_STEPS = 2_000
"""Largest number of steps of a run in table history and in effects during training; longer ones are thinned evenly."""
MOST_PLACES = 2_000
"""Largest number of (site, role) pairs in the effects of a run; runs usually have a few hundred."""

ROUNDING = 1e-3
"""How far outside [0, 1] rounding may take a mean of probabilities."""
SHARES = ("original", "corrupted", "restored", "edited", "likelihood", "accuracy", "agreement", "hits")
"""Suffixes of the names of columns that hold probabilities or shares of documents."""
WHOLE_NUMBERS = {
    "d_model": (1, 2**20), "n_layers": (1, MOST_LAYERS), "seed": (0, 2**63 - 1), "steps": (0, LARGEST_STEP),
    "step": (0, LARGEST_STEP), "parameters": (0, LARGEST_STEP), "best_step": (0, LARGEST_STEP),
}  # fmt: skip
"""The smallest and largest value of each whole number in table runs, and of the same names in a config."""
TEXTS = ("message", "summary", "evidence")
"""Columns that hold sentences; other texts are names."""
PARTS = ("task", "mixer", "model", "optimiser", "schedule", "data", "evaluate", "machine")
"""Sections of a config."""
KINDS = {
    type(None): "nothing", bool: "true or false", int: "a number", float: "a fraction", str: "text", list: "a list",
    dict: "a mapping",
}  # fmt: skip
"""What messages call each type of plain data."""
ON_THE_WAY = "training"
"""The `state` of rows that were measured during training."""
ALONG = f"state IS NOT DISTINCT FROM '{ON_THE_WAY}'"
"""SQL condition that holds for rows measured during training."""
APART = {
    "history": ("run", "step"),
    "scores": ("run", "state", "split", "step", "metric"),
    "effects": ("run", "state", "split", "site", "role", "corruption", "direction"),
    "verdicts": ("run", "state", "split"),
    "ablations": ("run", "state", "split", "edit", "site", "role"),
}
"""Columns that identify a row of each table; rows measured during training are also identified by their step."""
NEEDED = {"effects": ("step",), "ablations": ("step",), "verdicts": ("step", "label")}
"""Further columns that a usable row must have."""
BLOCK = re.compile(r"blocks\.(\d+)\.")


def printable(text: str) -> str:
    """`text` with a replacement character for every character that cannot be printed, such as a control character."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "�" for sign in text)


def name_of(text: str) -> str:
    """A name made safe to show; one that had to be changed ends in a digest, so that different names stay different."""
    if text.isprintable() and len(text) <= LONGEST_NAME:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{printable(text[: LONGEST_NAME - len(digest) - 1])}…{digest}"


def text_of(text: str) -> str:
    """Sentences made safe to show, with their line breaks kept."""
    short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
    return "\n".join(printable(line) for line in short.split("\n"))


def bounds_of(column: str) -> tuple[float, float]:
    """The smallest and largest value that a column of fractions may show; values outside are treated as missing."""
    if column.endswith(SHARES):
        return -ROUNDING, 1 + ROUNDING
    if column in ("attribution", "drop"):
        return -1 - ROUNDING, 1 + ROUNDING
    return (0, LARGEST_NUMBER) if column in ("lr", "seconds") else (-LARGEST_NUMBER, LARGEST_NUMBER)


def is_site(name: str) -> bool:
    """Whether this can be the name of a site: it is not empty, and its layer is within the limit."""
    found = BLOCK.match(name)
    return bool(name) and (found is None or (len(found[1]) < 9 and int(found[1]) < MOST_LAYERS))


def bounded_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of table runs brought within the limits; fractions outside their range become None."""
    taken = dict(row)
    for column in RUNS.columns:
        value = row[column.name]
        if isinstance(value, str) and column.name != "run":
            taken[column.name] = text_of(value) if column.name in TEXTS else name_of(value)
        elif isinstance(value, float):
            low, high = bounds_of(column.name)
            taken[column.name] = value if low <= value <= high else None
    return taken


def row_problem(row: Mapping[str, Any]) -> str | None:
    """Why a run cannot be shown; None if it can."""
    if row["status"] not in STATUSES:
        return f"its status is {name_of(str(row['status']))!r}"
    return _number_problem(row, "") or (None if row["config"] is None else config_problem(row["config"]))


def config_problem(config: Any) -> str | None:
    """Why a stored config cannot be used; None if it can.

    A usable config is small, shallow plain data. Each part that is present is a mapping, the names of task and mixer
    are text, and sizes and seed are whole numbers within the limits. Any part or option may be missing.
    """
    if not isinstance(config, dict):
        return f"its config is {_kind(config)}, not a mapping"
    if not _is_plain(config, DEEPEST_CONFIG):
        return f"its config is nested more than {DEEPEST_CONFIG} levels deep, or is not plain data"
    if len(json.dumps(config)) > LARGEST_CONFIG:
        return f"its config has more than {LARGEST_CONFIG:,} characters"
    for part in PARTS:
        if part in config and not isinstance(config[part], dict):
            return f"its config has {_kind(config[part])} in place of the options of its {part}"
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
            return f"{where}{name} is {value:,}, but must be from {low:,} to {high:,}"
    return None


def _is_plain(value: Any, deepest: int) -> bool:
    """Whether this is plain data (text keys, finite 64-bit numbers) nested at most `deepest` levels."""
    kind = type(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is float:
        return math.isfinite(value)
    if kind is dict and not all(type(name) is str for name in value):
        return False
    if kind is dict or kind is list:
        inner = value.values() if kind is dict else value
        return deepest > 0 and all(_is_plain(each, deepest - 1) for each in inner)
    return kind is str or kind is bool or value is None


def _kind(value: Any) -> str:
    """What a message calls the type of a value."""
    return KINDS.get(type(value), f"a {type(value).__name__}")


def bound_table(connection: DuckDBPyConnection, table: Table) -> list[tuple[str, str]]:
    """Bring a table within the limits, and return the runs that lost rows, each with the reason.

    Numbers outside their range become NULL, and long texts are truncated. Rows that lack an identifying column and
    duplicate rows are removed.
    """
    for column in table.columns:
        if column.type == "VARCHAR":
            _bound_texts(connection, table, column.name)
        else:
            low, high = _range(column.name, column.type)
            connection.execute(
                f"UPDATE {table.name} SET {column.name} = NULL WHERE NOT {column.name} BETWEEN ? AND ?", [low, high]
            )
    name, apart = table.name, APART[table.name]
    for metric in table.metrics:
        low, high = bounds_of(metric)
        outside = "metric = ? AND NOT value BETWEEN ? AND ?"
        connection.execute(f"UPDATE {name} SET value = NULL WHERE {outside}", [metric, low, high])
    needed = dict.fromkeys((*apart, *NEEDED.get(name, ())))
    gone = _removed(connection, table, " OR ".join(f"{column} IS NULL" for column in needed))
    lost = [(run, f"{_rows(n)} of table {name} lack one of {', '.join(needed)}") for run, n in gone.items()]
    keys = ", ".join([*apart, f"CASE state WHEN '{ON_THE_WAY}' THEN step END"] if "state" in apart else apart)
    gone = _removed(connection, table, f"rowid NOT IN (SELECT min(rowid) FROM {name} GROUP BY {keys})")
    lost += [(run, f"{_rows(n)} of table {name} are duplicates") for run, n in gone.items()]
    if name == "effects":
        many = f"SELECT run FROM {name} GROUP BY run HAVING count(DISTINCT (site, role)) > {MOST_PLACES}"
        gone = _removed(connection, table, f"run IN ({many})")
        lost += [(run, f"its effects are at more than {MOST_PLACES:,} sites and roles") for run in gone]
    thin_steps(connection, table)
    return lost


def thin_steps(connection: DuckDBPyConnection, table: Table) -> None:
    """Thin out the steps of runs that have too many, evenly; the last step is kept."""
    along = f"state = '{ON_THE_WAY}'" if "state" in APART[table.name] else "true"
    steps = f"SELECT DISTINCT run, step FROM {table.name} WHERE {along}"
    numbered = (
        "SELECT run, step, row_number() OVER (PARTITION BY run ORDER BY step) AS place, "
        f"count(*) OVER (PARTITION BY run) AS n FROM ({steps})"
    )
    gone = f"SELECT run, step FROM ({numbered}) WHERE place % ceil(n / {MOST_STEPS}) <> 0 AND place < n"
    connection.execute(f"DELETE FROM {table.name} WHERE {along} AND (run, step) IN ({gone})")


def _range(column: str, type_: str) -> tuple[float, float]:
    if type_ == "INTEGER":  # all such columns are layer numbers
        return 0, MOST_LAYERS - 1
    return (0, LARGEST_STEP) if type_ == "BIGINT" else bounds_of(column)


def _bound_texts(connection: DuckDBPyConnection, table: Table, column: str) -> None:
    """Make the texts of a column printable; empty names and impossible sites become NULL."""
    changed = []
    for (text,) in connection.execute(f"SELECT DISTINCT {column} FROM {table.name}").fetchall():
        if text is None or column == "run":
            continue
        shown = text_of(text) if column in TEXTS else name_of(text)
        fits = column in TEXTS or (is_site(shown) if column == "site" else bool(shown))
        if shown != text or not fits:
            changed.append((text, shown if fits else None))
    if changed:
        given = [list(each) for each in zip(*changed, strict=True)]
        pairs = "SELECT unnest(?::VARCHAR[]) AS old, unnest(?::VARCHAR[]) AS new"
        connection.execute(f"UPDATE {table.name} SET {column} = new FROM ({pairs}) WHERE {column} = old", given)


def _removed(connection: DuckDBPyConnection, table: Table, which: str) -> Counter[str]:
    """Remove rows and return how many each run lost."""
    gone = connection.execute(f"DELETE FROM {table.name} WHERE {which} RETURNING run").fetchall()
    return Counter(str(run) for (run,) in gone)


def _rows(n: int) -> str:
    return f"{n:,} row{'s' * (n > 1)}"
