"""Commands about tasks, mixers and sites: list them, and show documents and grammars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from mecheval.cli.app import app, aside, console, line, lists, loading, print_json
from mecheval.cli.clean import complain
from mecheval.cli.options import ANY_OPTION, AsJson, DocumentSeed, Preset, Set, Split, from_to, given_options
from mecheval.errors import UnknownName, UserError

T = TypeVar("T")
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; default: all.")]


def _among(kind: str, every: Mapping[str, T], names: list[str] | None) -> dict[str, T]:
    """Those of `every` that were asked for: all options of all of them fill several screens."""
    for name in names or ():
        if name not in every:
            raise UnknownName(kind, name, every)
    return {name: each for name, each in every.items() if not names or name in names}


@lists.command("tasks")
def list_tasks(names: Names = None, as_json: AsJson = False) -> None:
    """List tasks, or those named, with their presets and options."""
    with loading():
        from mecheval.cli.show.lists import describe_task, task_table
        from mecheval.tasks import TASKS

    tasks, problems = TASKS.loadable()
    for problem in problems:
        complain(str(problem))
    tasks = _among("task", tasks, names)
    if as_json:
        print_json({name: describe_task(cls) for name, cls in tasks.items()})
    else:
        console.print(task_table(tasks))


@lists.command("mixers")
def list_mixers(names: Names = None, as_json: AsJson = False) -> None:
    """List mixers, or those named, with their options and their size at d_model 64."""
    with loading():
        from mecheval.cli.show.lists import describe_mixers, mixer_table

        described, problems = describe_mixers()
    for problem in problems:
        complain(str(problem))
    described = _among("mixer", described, names)
    if as_json:
        print_json(described)
    else:
        console.print(mixer_table(described))


@lists.command("sites", context_settings=ANY_OPTION)
def list_sites(
    context: typer.Context,
    mixer: Annotated[
        str, typer.Option(help="A mixer of `mecheval list mixers`, or a pattern: mamba+attention.")
    ] = "attention",
    layers: Annotated[
        int | None, typer.Option(callback=from_to(1, 100), help="Number of layers; default: the pattern's, else 2.")
    ] = None,
    canon: Annotated[str, typer.Option(help="Letters of Canon convolutions: A, B, C, D.")] = "",
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """List activations that can be read or replaced; give mixer options as --set d_conv=0 or --d-conv 0."""
    with loading():
        from mecheval.cli.show.lists import describe_sites, site_table
        from mecheval.custom import announced

        described = describe_sites(announced(mixer), layers, given_options(assignments, context.args), canon)
    if as_json:
        print_json(described)
    else:
        console.print(site_table(described))


DRAWING = "drawing documents (the first time, this compiles the sampler)"
STATISTICS_FROM, STATISTICS_TOKENS = 1000, 1 << 24
"""Number of documents for the statistics, and the largest number of their tokens."""
MOST_SHOWN, MOST_TOKENS = 10_000, 5000
"""Largest number of documents shown at once, and of tokens of a document whose tree is drawn."""


@app.command(context_settings=ANY_OPTION, short_help="Show documents of a task with their roles.")
def sample(
    context: typer.Context,
    task_name: Annotated[str, typer.Argument(metavar="TASK", help="A task of `mecheval list tasks`.")],
    n: Annotated[int, typer.Option("-n", help="Number of documents to show.")] = 3,
    preset: Preset = None,
    split: Split = "train",
    seed: DocumentSeed = 0,
    tree: Annotated[bool, typer.Option("--tree", help="Draw each document's derivation.")] = False,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show documents of a task with their roles; give task options as --set pairs=8 or --pairs 8."""
    with loading():
        from mecheval.cli.show import documents as show
        from mecheval.tasks import ATR, build_task

    if n > MOST_SHOWN:
        raise UserError(f"-n: at most {MOST_SHOWN:,} documents can be shown (got {n}).")
    task = build_task(task_name, preset, **given_options(assignments, context.args))
    if tree and not isinstance(task, ATR):
        raise UserError(f"{task_name} documents have no tree; --tree is for: atr.")
    many = max(n, min(STATISTICS_FROM, STATISTICS_TOKENS // task.max_tokens))
    if tree and task.max_tokens > MOST_TOKENS:
        raise UserError(f"--tree draws documents of at most {MOST_TOKENS:,} tokens; give a smaller --max-length.")
    with aside.status(DRAWING):
        corpus = task.corpus(n, split, seed)
        batch = corpus.batch()
        stats = show.statistics(task.sample(many, split, seed))
    if as_json:
        print_json({
            "task": task_name, "options": task.options.model_dump(mode="json"), "split": split, "seed": seed,
            "vocab_size": task.vocab_size, "documents": [show.document_data(task, batch, i) for i in range(n)],
            "statistics": {"n": many, **stats},
        })  # fmt: skip
        return
    console.print(
        f"{task_name}: vocabulary {task.vocab_size:,}, at most {task.max_tokens} tokens; {split}, seed {seed}"
    )
    console.print(show.legend(task))
    for i in range(n):
        console.print()
        console.print(show.document(task, batch, i))
        if isinstance(task, ATR) and tree:
            console.print(show.derivation(task, corpus, i))
    console.print()
    console.print(show.statistics_table(stats, many))


@app.command(context_settings=ANY_OPTION, short_help="Show, save or check the grammar of an atr task.")
def grammar(
    context: typer.Context,
    preset: Preset = None,
    save: Annotated[Path | None, typer.Option(help="Write the grammar to this file, .json.")] = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show, save or check the grammar of an atr task: --grammar-seed 3, or --grammar my.json."""
    with loading():
        from mecheval.cli.show.documents import grammar_table
        from mecheval.tasks import ATR, build_task
        from mecheval.tasks.lengths import expected_length

    task = build_task("atr", preset, **given_options(assignments, context.args))
    if not isinstance(task, ATR):
        raise UserError("the task registered as atr has no grammar.")
    if save is not None:
        try:
            task.grammar.save(save)
        except OSError as error:
            raise UserError(f"cannot write {save}: {error.strerror}.") from None
        line(f"saved {save}")
        return
    if as_json:
        print_json(task.grammar.to_dict())
        return
    console.print(grammar_table(task.grammar))
    o = task.options
    mean = f"expected length {expected_length(task.grammar):.1f} terminals"
    console.print(f"\n{mean}; documents shorter than {o.min_length} or longer than {o.max_length} are drawn again")
