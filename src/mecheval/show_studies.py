"""Studies as they look in a terminal: the list, and the table of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from mecheval.studies import Study
from mecheval.training.progress import duration

if TYPE_CHECKING:
    import pandas as pd

MISSING = "–"
SHOWN = {
    "test_accuracy": "test\nacc", "original": "orig-\ninal", "corrupted": "cor-\nrupted",
}  # fmt: skip
NAMES = {"d_model": "d", "n_layers": "layers", "kernel_size": "kernel"}
NARROW = 6
"""Letters of a head; where several are longer, columns stand closer, so that verdicts are whole in a terminal of 80."""
SCORES = ("test_accuracy", "test_likelihood")
HIDDEN = ("run", "step", "seconds", "dev_accuracy", "dev_likelihood", "test_likelihood", "agreement", "summary", "seed")


@dataclass(frozen=True)
class Listed:
    """A study at a scale, and what the store has of it."""

    study: Study
    runs: int
    done: int
    seconds: float  # of what is left, on this machine's cores


def study_table(listed: list[Listed], scale: str) -> Table:
    """The studies with their runs, what is done, and the time that the rest takes."""
    table = Table(box=None, header_style="bold", pad_edge=False, title_justify="left")
    for name in ("study", "figure", "runs", "done", "time left", f"question (scale {scale})"):
        number = name in ("runs", "done", "time left")
        table.add_column(name, justify="right" if number else "left", no_wrap=not name.startswith("question"))
    for each in listed:
        left = "" if each.done == each.runs else f"~{duration(each.seconds)}"
        study = each.study
        table.add_row(study.name, study.figure, f"{each.runs}", f"{each.done}", left, Text(study.question))
    return table


def result_table(study: Study, frame: pd.DataFrame) -> Table:
    """What was chosen, a row for each setting; over several seeds the means, and all verdicts."""
    columns = [name for name in frame.columns if name not in HIDDEN and not name.startswith("dev_attribution")]
    axes = columns[: columns.index("status")]
    varying = [name for name in axes if frame[name].nunique() > 1 and (name != "lr" or study.every_rate)]
    axes = varying or ["mixer"]
    numbers = [name for name in columns if name not in (*columns[: columns.index("status") + 1], "verdict")]
    heads = {name: SHOWN.get(name) or _two_lines(name) for name in numbers}
    wide = [head for head in heads.values() if len(head.partition("\n")[2]) > NARROW]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1 if len(wide) > 1 else 2, 0, 0))
    for name in axes:
        text = name in ("mixer", "task", "positions")
        table.add_column(NAMES.get(name, name), justify="left" if text else "right", no_wrap=True, vertical="bottom")
    for name in numbers:
        table.add_column(heads[name], justify="right", no_wrap=True, vertical="bottom")
    table.add_column("verdict", vertical="bottom")
    for values, rows in frame.groupby(axes, sort=False, dropna=False):
        cells = [Text(_axis(name, value)) for name, value in zip(axes, values, strict=True)]
        cells += [Text(_mean(rows[name])) for name in numbers]
        table.add_row(*cells, Text(_verdicts(rows)))
    return table


def mechanism_table(frame: pd.DataFrame, restored: pd.DataFrame) -> Table:
    """A row for each run of `frame`: how well it recalls, which activation restores it, and what mechanism that is.

    `restored` is that of `studies.restoring`.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("mixer", no_wrap=True, vertical="bottom")
    for name in ("test\nacc", "test\nlik"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("restored\nat", no_wrap=True, vertical="bottom")
    table.add_column("share [95 %]", no_wrap=True, vertical="bottom")
    table.add_column("verdict", vertical="bottom")
    table.add_column("sure", justify="right", no_wrap=True, vertical="bottom")
    for row in frame.to_dict("records"):
        role, share = MISSING, ""
        if row["run"] in restored.index and row["verdict"] != "not_learnt":
            found = restored.loc[row["run"]]
            role, share = str(found["role"]), f"{found['share']:.2f}"
            if found["share_low"] == found["share_low"]:
                share += f" [{found['share_low']:.2f}, {found['share_high']:.2f}]"
        judged = isinstance(row["verdict"], str)
        verdict = row["verdict"] if judged else row["status"]
        sure = f"{row['agreement']:.2f}" if judged and row["agreement"] == row["agreement"] else MISSING
        scores = (MISSING if row[name] != row[name] else f"{row[name]:.3f}" for name in SCORES)
        table.add_row(*map(Text, (row["mixer"], *scores, role, share, verdict, sure)))
    return table


def _two_lines(name: str) -> str:
    """restored_value -> at / value; conv0_at_next_key -> conv0 / at next key; attribution_key -> attr. / key"""
    first, _, rest = name.partition("_")
    words = {"restored": "at", "attribution": "attr."}
    return f"{words.get(first, first)}\n{rest.replace('_', ' ')}"


def _axis(name: str, value: Any) -> str:
    words = {("d_conv", 0): "none", ("kernel_size", -1): "long"}
    return words.get((name, value), f"{value}")


def _mean(values: pd.Series) -> str:
    known = values.dropna()
    return f"{known.mean():.3f}" if len(known) else MISSING


def _verdicts(rows: pd.DataFrame) -> str:
    """The verdict, or each with its count; a run without one says why."""
    words = [row["verdict"] if isinstance(row["verdict"], str) else row["status"] for _, row in rows.iterrows()]
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    if len(words) == 1:
        return str(words[0])
    return ", ".join(f"{count} {word}" for word, count in counts.items())
