"""Every table and column of the store, declared once."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mecheval.errors import shown
from mecheval.types import OFFSET, SHORT_CONVOLUTIONS, SPANS

WHOLE_NUMBERS = {"INTEGER": 32, "BIGINT": 64}
"""DuckDB's integer types, with their numbers of bits."""

STATUSES = ("running", "interrupted", "done", "diverged", "failed")
YEARS = 1970, 2200
"""First and last year of the times that are read from a store."""
LONGEST_TEXT = 20_000
"""Largest number of characters in a text that is read from a store; the evidence of a verdict has a few hundred."""
WHOLE = ("done", "diverged")
"""The statuses of a whole run; training writes the status last, so such a run has all its tables."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, its DuckDB type, and what it means."""

    name: str
    type: str
    meaning: str
    older: str = ""
    """SQL for the value in rows that were written before the column existed."""

    def clean(self, value: Any, parsed: bool = False) -> Any:
        """`value` as a plain Python object, or a ValueError that names the column; NaN becomes None.

        Numbers of numpy and torch become int and float, and times become UTC without a time zone, as in DuckDB. Values
        that were read from JSON (`parsed`) are not checked for being valid JSON again.
        """
        if value is None:
            return None
        try:
            if self.type in WHOLE_NUMBERS:
                return _whole_number(value, WHOLE_NUMBERS[self.type])
            if self.type == "DOUBLE":
                return _number(value)
            if self.type == "TIMESTAMP":
                return _utc(value)
            if self.type == "JSON":
                return _config(value, parsed)
            return _text(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"column {self.name}: {error}") from None


@dataclass(frozen=True)
class Table:
    """A table: its columns in order, and the columns by which its rows are sorted."""

    name: str
    columns: tuple[Column, ...]
    order: tuple[str, ...]
    wide: Table | None = None
    """The same rows with a column for each metric in place of `metric` and `value`. Users query this view, and older
    runs have it as a file."""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the file in which a run may keep this table, the present name first."""
        return tuple(f"{table.name}.parquet" for table in (self, self.wide) if table)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that have a column in the wide form."""
        kept = {column.name for column in self.columns}
        return tuple(column.name for column in self.wide.columns if column.name not in kept) if self.wide else ()

    def check(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raise an error if a row has missing or unknown columns; columns with `older` may be missing."""
        names = {column.name for column in self.columns}
        needed = {column.name for column in self.columns if not column.older}
        for row in rows:
            if not needed <= row.keys() <= names:
                name = min((needed - row.keys()) | (row.keys() - names))
                raise ValueError(f"{'missing' if name in names else 'unknown'} column {name!r} of table {self.name}")


def _whole_number(value: Any, bits: int) -> int:
    number = operator.index(value)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"{shown(number)} does not fit into {bits} bits")
    return number


def _number(value: Any) -> float | None:
    if isinstance(value, str):  # float("nan") would be accepted as a number
        raise TypeError(f"not a number: {shown(value)}")
    number = float(value)
    return None if math.isnan(number) else number


def _utc(value: Any) -> datetime:
    time: datetime = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if not YEARS[0] <= time.year <= YEARS[1]:
        raise ValueError(f"the year {time.year} is not between {YEARS[0]} and {YEARS[1]}")
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time


def _config(value: Any, parsed: bool) -> dict[str, Any]:
    """A run config: a mapping of sections, which are mappings, and of whole numbers such as the seed."""
    if not isinstance(value, dict):
        raise TypeError(f"not a dict: {shown(value)}")
    for name, part in value.items():
        if not isinstance(part, dict) and type(part) is not int:
            raise TypeError(f"part {shown(name)} is neither a mapping nor a whole number: {shown(part)}")
    if not parsed:
        json.dumps(value, allow_nan=False)  # raises an error that names what is not JSON
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {shown(value)}")
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"a text of {len(value):,} characters; the limit is {LONGEST_TEXT:,}")
    return value


RUN = Column("run", "VARCHAR", "id of the run: 12 hex digits, from its config")
STATE = Column("state", "VARCHAR", "which weights: last, best (on dev), or training (measured during training)")
STEP = Column("step", "BIGINT", "training step of these weights")
SPLIT = Column("split", "VARCHAR", "train, dev or test")
PLACE = (RUN, STATE, STEP, SPLIT)
ANSWERS = Column("n", "BIGINT", "answers: documents times queries")
DOCUMENTS = Column("n", "BIGINT", "documents")
SCORED = {
    "likelihood": "mean probability of the answer{}", "accuracy": "share of answers{} that are the likeliest token",
    "loss": "mean cross-entropy{}",
}  # fmt: skip
"""Metrics that have columns, with their meanings; the braces stand for where they are measured."""


def _scores(before: str = "", where: str = "", metrics: Iterable[str] = SCORED) -> tuple[Column, ...]:
    return tuple(Column(f"{before}{name}", "DOUBLE", SCORED[name].format(where)) for name in metrics)


RUNS = Table(
    "runs",
    (
        RUN,
        Column("status", "VARCHAR", "running, interrupted, done, diverged or failed"),
        Column("task", "VARCHAR", "name of the task"),
        Column("mixer", "VARCHAR", "name of the sequence mixer"),
        Column("d_model", "INTEGER", "width of the model"),
        Column("n_layers", "INTEGER", "blocks of the model"),
        Column("lr", "DOUBLE", "peak learning rate"),
        Column("seed", "BIGINT", "seed of weights and data"),
        Column("steps", "BIGINT", "training steps in the config"),
        Column("step", "BIGINT", "training steps reached"),
        Column("parameters", "BIGINT", "trainable parameters"),
        *_scores("dev_", " on dev (last state)"),
        *_scores("test_", " on test (last state)"),
        Column("best_step", "BIGINT", "step of the best state"),
        *_scores("best_dev_", " on dev (best state)"),
        Column("seconds", "DOUBLE", "time spent training, over all processes that worked on it"),
        Column("started", "TIMESTAMP", "when the run first began, UTC"),
        Column("updated", "TIMESTAMP", "when this row was last written, UTC"),
        Column("message", "VARCHAR", "why the run failed or diverged, or what is unusual about it"),
        Column("config", "JSON", "the whole config; config->>'$.task.pairs' is one value of it"),
    ),
    order=("started", "run"),
)

HISTORY = Table(
    "history",
    (
        RUN,
        Column("step", "BIGINT", "training step"),
        Column("lr", "DOUBLE", "learning rate at this step"),
        Column("loss", "DOUBLE", "mean training loss since the previous row"),
        *_scores("dev_", " on dev", ("loss", "likelihood", "accuracy")),
    ),
    order=("run", "step"),
)

EVALUATIONS = Table(  # a view of table scores, which also has columns for further metrics that a store contains
    "evaluations",
    (
        *PLACE,
        *_scores(),
        ANSWERS,
    ),
    order=("run", "step", "state", "split"),
)

SCORES = Table(
    "scores",
    (
        *PLACE,
        Column("metric", "VARCHAR", "name of the metric: likelihood, accuracy, loss, or one of a plug-in"),
        Column("value", "DOUBLE", "mean of the metric over the answers"),
        ANSWERS,
    ),
    order=("run", "step", "state", "split", "metric"),
    wide=EVALUATIONS,
)

OLDER_BLOCK = r"try_cast(regexp_extract(site, '^blocks\.(\d{1,6})\.', 1) AS INTEGER)"
OLDER_PART = r"regexp_replace(site, '^blocks\.\d{1,6}\.', '')"
OLDER_KIND = rf"""CASE
    WHEN regexp_matches(site, '^blocks\.\d{{1,6}}\.(input|output)$') THEN 'stream'
    WHEN regexp_matches(site, '^blocks\.\d{{1,6}}\.mixer\.(input|output)$') THEN 'mixer'
    WHEN regexp_matches(site, '^blocks\.\d{{1,6}}\.mlp\.') THEN 'mlp'
    WHEN regexp_matches(site, '^blocks\.\d{{1,6}}\.mixer\.(.*\.)?({"|".join(SHORT_CONVOLUTIONS)})$') THEN 'short_conv'
    ELSE 'inside' END"""

EVIDENCE = ", ".join(f"'{role}'" for role in SPANS)
ON_MAPS = f"role NOT IN ({EVIDENCE}) AND NOT regexp_full_match(role, '{OFFSET.pattern}')"
AS_IN_THE_PAPER = f"direction = 'restore' AND corruption = 'key' AND {ON_MAPS}"
"""SQL condition for the rows of effects that maps and studies show; the others are evidence for the verdict."""
SITE = (
    Column("site", "VARCHAR", "activation that was replaced"),
    Column("block", "INTEGER", "layer of the site, from 0", OLDER_BLOCK),
    Column("part", "VARCHAR", "the site inside its layer", OLDER_PART),
    Column("kind", "VARCHAR", "stream, mixer, mlp, short_conv, state, head or inside (a mixer)", OLDER_KIND),
    Column("role", "VARCHAR", "position or positions at which it was replaced"),
)

EFFECTS = Table(
    "effects",
    (
        *PLACE,
        *SITE,
        Column("corruption", "VARCHAR", "what was corrupted: key (as in the paper), value, query or swap", "'key'"),
        Column("direction", "VARCHAR", "restore, destroy (corrupted into original) or control", "'restore'"),
        Column("original", "DOUBLE", "mean probability of the answer, original document"),
        Column("corrupted", "DOUBLE", "the same, corrupted document"),
        Column("restored", "DOUBLE", "the same, after the activation here was replaced"),
        Column("attribution", "DOUBLE", "its effect: restored - corrupted; for destroy, original - restored"),
        Column("share", "DOUBLE", "attribution / (original - corrupted); missing if nothing is learnt"),
        Column("share_low", "DOUBLE", "lower end of the 95 % interval of share_apart, if the verdict uses it"),
        Column("share_high", "DOUBLE", "upper end of that interval"),
        Column("share_apart", "DOUBLE", "share in documents whose roles are apart; otherwise as share", "share"),
        Column("hits", "DOUBLE", "share of documents with the answer of the swapped document (swap, destroy)", "NULL"),
        DOCUMENTS,
    ),
    order=("run", "step", "state", "split", "site", "role", "corruption", "direction"),
)

ABLATIONS = Table(
    "ablations",
    (
        *PLACE,
        Column("edit", "VARCHAR", "what was done to the activation, such as zero, mean or noise=1"),
        *SITE,
        Column("original", "DOUBLE", "mean probability of the answer"),
        Column("edited", "DOUBLE", "the same, with the edit"),
        Column("drop", "DOUBLE", "original - edited"),
        DOCUMENTS,
    ),
    order=("run", "step", "state", "split", "edit", "site", "role"),
)

LABELS = (
    "induction, direct_retrieval, conv_association, pointer, redundant, joint, mixed, not_learnt or undetermined"
)  # fmt: skip
VERDICTS = Table(
    "verdicts",
    (
        *PLACE,
        Column("label", "VARCHAR", LABELS),
        Column("layer", "INTEGER", "layer that retrieves"),
        Column("stored_by", "INTEGER", "layer that stores the key, in induction"),
        Column("stored_at", "VARCHAR", "role at which it is stored, in induction"),
        Column("found_by", "INTEGER", "layer that finds the pair, for a pointer", "NULL"),
        Column("places", "VARCHAR", "all roles that hold the key, most important first", "NULL"),
        Column("chance", "DOUBLE", "likelihood of the best guess that recalls nothing", "NULL"),
        Column("n", "BIGINT", "documents that count", "NULL"),
        Column("agreement", "DOUBLE", "share of resamples of the documents with the same finding"),
        Column("summary", "VARCHAR", "the finding in words"),
        Column("evidence", "VARCHAR", "sentences with shares and 95 % intervals, one per line"),
    ),
    order=("run", "step", "state", "split"),
)

STORED = {table.name: table for table in (RUNS, HISTORY, SCORES, EFFECTS, VERDICTS, ABLATIONS)}
"""The tables that runs store, by name."""
VIEWS = {EVALUATIONS.name: SCORES}
"""The views, by name, each with the table that it shows in another form."""
TABLES = {table.name: table for table in (RUNS, HISTORY, EVALUATIONS, SCORES, EFFECTS, VERDICTS, ABLATIONS)}
"""All tables and views that SQL can query, by name."""
