"""The command line: parse, call, print."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from mecheval import show
from mecheval.errors import UserError
from mecheval.tasks import ATR, TASKS, build_task
from mecheval.tasks.lengths import expected_length, length_distribution

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False,
)  # fmt: skip
lists = typer.Typer(help="List what there is.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(lists, name="list")
console = Console(highlight=False)
aside = Console(stderr=True)  # what is not the answer: never in a pipe

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Preset = Annotated[str | None, typer.Option(help="A named set of options; default: the paper's.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of the task.")]
ANY_OPTION = {"allow_extra_args": True, "ignore_unknown_options": True}
STATISTICS_FROM = 1000


def print_version(wanted: bool) -> None:
    """Answer --version before any command is looked for."""
    if wanted:
        sys.stdout.write(f"mecheval {metadata.version('mecheval')}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")]


@app.callback()
def root(version: Version = False) -> None:
    """How does a sequence architecture recall? mecheval answers with interventions, not only accuracy."""


def parse_value(text: str) -> Any:
    """A number, true, false, null or list as YAML reads it (3e-3 too); anything else is text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def given_options(assignments: list[str] | None, rest: list[str]) -> dict[str, Any]:
    """Options from `--set pairs=8` and from `--pairs 8`, which mean the same."""
    options = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE (got {assignment!r}).")
        options[name.replace("-", "_")] = parse_value(value)
    words = iter(rest)
    for word in words:
        if not word.startswith("--"):
            raise UserError(f"unexpected argument {word!r}; options are given as --name value.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            following = next(words, None)
            if following is None:
                raise UserError(f"option --{name} needs a value.")
            value = following
        options[name.replace("-", "_")] = parse_value(value)
    return options


def tell(problems: list[UserError]) -> None:
    """Say what could not be listed, beside the answer."""
    for problem in problems:
        sys.stderr.write(f"mecheval: {problem}\n")


@lists.command("tasks")
def list_tasks(as_json: AsJson = False) -> None:
    """Tasks with their presets and options."""
    tasks, problems = TASKS.loadable()
    tell(problems)
    if as_json:
        print_json({name: show.describe_task(cls) for name, cls in tasks.items()})
        return
    console.print(show.task_table(tasks))


@lists.command("mixers")
def list_mixers(as_json: AsJson = False) -> None:
    """Mixers with their options, and their size at d=64."""
    from mecheval.show_models import describe_mixers, mixer_table

    described, problems = describe_mixers()
    tell(problems)
    if as_json:
        print_json(described)
        return
    console.print(mixer_table(described))


@lists.command("sites", context_settings=ANY_OPTION)
def list_sites(
    context: typer.Context,
    mixer: Annotated[str, typer.Option(help="A mixer of `mecheval list mixers`.")] = "attention",
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 2,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Activations that can be read or replaced; mixer options as --set d_conv=0 or --d-conv 0."""
    from mecheval.show_models import describe_sites, site_table

    described = describe_sites(mixer, layers, given_options(assignments, context.args))
    if as_json:
        print_json(described)
        return
    console.print(site_table(described))


@app.command(context_settings=ANY_OPTION)
def sample(
    context: typer.Context,
    task_name: Annotated[str, typer.Argument(metavar="TASK", help="A task of `mecheval list tasks`.")],
    n: Annotated[int, typer.Option("-n", help="How many documents to show.")] = 3,
    preset: Preset = None,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "train",
    seed: Annotated[int, typer.Option(help="Which documents.")] = 0,
    tree: Annotated[bool, typer.Option("--tree", help="Draw each document's derivation.")] = False,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show documents of a task, with roles; task options as --set pairs=8 or --pairs 8."""
    task = build_task(task_name, preset, **given_options(assignments, context.args))
    if tree and not isinstance(task, ATR):
        raise UserError(f"{task_name} documents have no tree; --tree is for: atr.")
    many = max(n, STATISTICS_FROM)
    with aside.status("drawing documents (the first time, this compiles the sampler)"):
        corpus = task.corpus(n, split, seed)
        batch = corpus.batch()
        stats = show.statistics(task.sample(many, split, seed))
    if as_json:
        documents = [show.document_data(task, batch, i) for i in range(n)]
        options = task.options.model_dump(mode="json")
        print_json({
            "task": task_name, "options": options, "split": split, "seed": seed, "vocab_size": task.vocab_size,
            "documents": documents, "statistics": {"n": many, **stats},
        })  # fmt: skip
        return
    console.print(
        f"{task_name}: vocabulary {task.vocab_size:,}, at most {task.max_tokens} tokens; {split}, seed {seed}"
    )
    console.print(show.legend())
    for i in range(n):
        console.print()
        console.print(show.document(task, batch, i))
        if isinstance(task, ATR) and tree:
            console.print(show.derivation(task, corpus, i))
    console.print()
    console.print(show.statistics_table(stats, many))


@app.command(context_settings=ANY_OPTION)
def grammar(
    context: typer.Context,
    preset: Preset = None,
    save: Annotated[Path | None, typer.Option(help="Write the grammar to this file, as JSON.")] = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show, save or check the grammar of an atr task: --grammar-seed 3, or --grammar my.json."""
    task = build_task("atr", preset, **given_options(assignments, context.args))
    if not isinstance(task, ATR):
        raise UserError("the task registered as atr has no grammar.")
    if save is not None:
        try:
            task.grammar.save(save)
        except OSError as error:
            raise UserError(f"cannot write {save}: {error.strerror}.") from None
        console.print(f"saved {save}", markup=False)
        return
    if as_json:
        print_json(task.grammar.to_dict())
        return
    o = task.options
    lengths = length_distribution(task.grammar, o.max_length)
    console.print(show.grammar_table(task.grammar))
    console.print(
        f"\nexpected length {expected_length(task.grammar):.1f} terminals; "
        f"shorter than {o.min_length}: {lengths[: o.min_length].sum():.1%}, "
        f"longer than {o.max_length}: {max(0.0, 1 - lengths.sum()):.1%} (these are drawn again)"
    )


def print_json(data: Any) -> None:
    """Plain standard output: no colour, no wrapping."""
    sys.stdout.write(json.dumps(data, indent=1) + "\n")


def main() -> None:
    """Run the command; what the user got wrong is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"mecheval: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # e.g. `mecheval ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
