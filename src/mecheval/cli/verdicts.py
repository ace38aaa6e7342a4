"""The command that judges a run again, by the evidence that is kept with it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import app, console, loading, print_json
from mecheval.cli.options import AnyRun, AsJson, Split, State, StorePath
from mecheval.intervene.mechanism import Rule
from mecheval.store import DEFAULT_STORE

RULE = Rule()


def _limit(text: str, most: float = 1.0) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(min=0, max=most, help=text)
    return option


@app.command(short_help="Judge a run again, by another rule, without its weights.")
def verdict(
    run: AnyRun,
    state: State = "last",
    split: Split = "test",
    trace: Annotated[float, _limit("Smallest share at which a place takes part.")] = RULE.trace,
    carries: Annotated[float, _limit("Smallest share at which a place carries the key, or is needed.")] = RULE.carries,
    enough: Annotated[float, _limit("Smallest share at which a place alone is sufficient.")] = RULE.enough,
    alone: Annotated[float, _limit("Share of all positions in between that one must restore alone.")] = RULE.alone,
    learnt: Annotated[float, _limit("Smallest loss of likelihood that there is to explain.")] = RULE.learnt,
    agreement: Annotated[float, _limit("Share of resamples that must agree.")] = RULE.agreement,
    documents: Annotated[int, _limit("Smallest number of documents for a verdict.", 1_000_000)] = RULE.documents,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Name the mechanism of a run from the evidence that is kept with it, by the rule or by one with other limits.

    Nothing is computed with the model, and nothing is stored: the stored verdict is that of the rule itself.
    """
    with loading():
        from mecheval.analysis import runs, weights
        from mecheval.cli.show import effects as show
        from mecheval.store import Store

    rule = Rule(
        trace=trace, carries=carries, enough=enough, alone=alone, learnt=learnt, agreement=agreement,
        documents=documents,
    )  # fmt: skip
    changed = {name: limit for name, limit in asdict(rule).items() if limit != getattr(RULE, name)}
    folder = weights.find_run(Store(store), run)
    found = runs.judge(folder, rule, state, split)
    config = weights.run_config_of(folder)
    if as_json:
        print_json({
            "run": folder.id, "title": config.title, "state": state, "split": split, "rule": changed,
            "verdict": show.verdict_data(found),
        })  # fmt: skip
        return
    said = ", ".join(f"{name} {limit:g}" for name, limit in changed.items())
    console.print(show.run_text(folder.id, config.title, f"{state} state, {split}{', with ' * bool(said)}{said}", None))
    console.print()
    console.print(show.verdict_text(found))
