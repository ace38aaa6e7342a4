"""The command that measures how often verdicts are right."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli.app import app, aside, line, loading, note, print_json
from mecheval.cli.options import AsJson, csv_file, from_to, whole_numbers
from mecheval.errors import UserError
from mecheval.files import write_output
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    from mecheval.evaluation.calibration import Group, Judged

HEAD = f"{'kind':<10}{'noise':>6}{'documents':>11}{'models':>8}{'named':>7}{'right':>14}   95 % interval"
MOST_SHOWN = 10
"""Largest number of wrong verdicts that are listed one by one."""
PAUSE = 10.0
"""Shortest time in seconds between two lines of progress without a terminal."""
FIXED = 100
"""The fixed cost of judging a model, in documents, with which the time left is estimated."""


@app.command(short_help="Measure how often verdicts are right.")
def calibrate(
    kinds: Annotated[
        str, typer.Option(help="Kinds of models, comma-separated: untrained, shuffled, chance, handmade.")
    ] = "untrained,shuffled,chance,handmade",
    models: Annotated[
        int, typer.Option(help="Models of each kind, at each number of documents, over all levels of noise.")
    ] = 30,
    documents: Annotated[str, typer.Option(help="Numbers of documents, comma-separated.")] = "16,64,256",
    noise: Annotated[float | None, typer.Option(help="Only this level of noise; default: all.")] = None,
    seed: Annotated[int, typer.Option(callback=from_to(0, 2**63), help="Seed of models and documents.")] = 0,
    csv: Annotated[Path | None, typer.Option(callback=csv_file, help="Write the table into this file, .csv.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Draw the rates into this file: .svg, .pdf, .png, .html or .json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge models whose mechanism is known, or that recall nothing, and count how often the verdict is right."""
    with loading():
        from mecheval import figures
        from mecheval.cli.show import records
        from mecheval.evaluation.calibration import counted, groups, judgements, row

    if save is not None:
        figures.check_suffix(save)
    if save is not None and not save.absolute().parent.is_dir():
        raise UserError(f"cannot write {save}: there is no folder {save.parent}.")
    asked = groups([kind.strip() for kind in kinds.split(",")], models, whole_numbers("--documents", documents), noise)
    judged: list[Judged] = []
    group: list[Judged] = []  # the one that is being counted
    pace, stopped = _Pace(asked), False
    if not as_json:
        line(HEAD)
    try:
        with aside.status("judging") as status:
            for each in judgements(asked, seed):
                judged.append(each)
                group = [*group, each] if group and group[0].group == each.group else [each]
                if not as_json and len(group) == each.group.models:
                    line(_text(row(group)))
                status.update(said := pace.said(each))
                if pace.due():
                    note(said)
    except KeyboardInterrupt:
        stopped = True
    table = counted(judged)
    if as_json:
        print_json({"rows": records(table), "judged": [_flat(each) for each in judged]})
    elif group and len(group) < group[0].group.models:
        line(_text(row(group)))
    _list_mistakes(judged)
    if judged and csv is not None:
        write_output(csv, table.to_csv(index=False))
        note(f"wrote {csv}")
    if judged and save is not None:
        figures.save(figures.calibration(table), save)
        note(f"wrote {save}")
    if stopped:
        raise KeyboardInterrupt(f"stopped; {len(judged)} of {sum(group.models for group in asked)} models are counted.")
    note(f"{len(judged)} models took {pace.took()}")


def _flat(judged: Judged) -> dict[str, Any]:
    """A model and its verdict, with the group that it belongs to."""
    group, rest = judged.group, judged._asdict()
    return {"kind": group.kind, "noise": group.noise, "documents": group.documents,
            **{name: value for name, value in rest.items() if name != "group"}}  # fmt: skip


def _text(row: Mapping[str, Any]) -> str:
    """A row of the table as a line; `right` is out of the models that count."""
    right = f"{row['right']} of {row['counted']}"
    interval = f"{row['rate']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" if row["counted"] else MISSING
    return (
        f"{row['kind']:<10}{row['noise']:>6g}{row['documents']:>11}{row['models']:>8}{row['named']:>7}{right:>14}   "
        f"{interval}"
    )


def _list_mistakes(judged: Sequence[Judged]) -> None:
    """List the models whose verdict names another mechanism than theirs, with the seeds that reproduce them."""
    wrong = [each for each in judged if each.counts and each.named and not each.right]
    for each in wrong[:MOST_SHOWN]:
        note(
            f"wrong: {each.group.kind} {each.model}, noise {each.group.noise:g}, seed {each.seed}, "
            f"{each.group.documents} documents of seed {each.documents_seed}: {each.said}"
        )
    if len(wrong) > MOST_SHOWN:
        note(f"{len(wrong) - MOST_SHOWN} more wrong names; --json lists all models.")


class _Pace:
    """The progress of the count, and the time left."""

    def __init__(self, asked: Sequence[Group]) -> None:
        self.total = sum(group.models for group in asked)
        self.work = sum(group.models * (FIXED + group.documents) for group in asked)
        self.began = self.logged = time.monotonic()
        self.done = self.spent = 0

    def said(self, last: Judged) -> str:
        """A line of progress, after one more model."""
        from mecheval.training.progress import duration

        self.done += 1
        self.spent += FIXED + last.group.documents
        left = (time.monotonic() - self.began) * (self.work - self.spent) / self.spent
        return f"{self.done} of {self.total} models, {duration(left)} left"

    def due(self) -> bool:
        """Whether it is time for another line in a log file; the end has none."""
        from mecheval.training.progress import has_cursor

        if has_cursor(aside) or self.done == self.total or time.monotonic() < self.logged + PAUSE:
            return False
        self.logged = time.monotonic()
        return True

    def took(self) -> str:
        from mecheval.training.progress import duration

        return duration(time.monotonic() - self.began)
