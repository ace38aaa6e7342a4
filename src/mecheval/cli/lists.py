"""The commands of `mecheval list`, except the one about studies: tasks, mixers, sites."""

from __future__ import annotations

from typing import Annotated

import typer

from mecheval.cli.app import ANY_OPTION, AsJson, Set, console, from_to, given_options, lists, loading, print_json
from mecheval.cli.clean import complain


@lists.command("tasks")
def list_tasks(as_json: AsJson = False) -> None:
    """List tasks with their presets and options."""
    with loading():
        from mecheval.cli.show.lists import describe_task, task_table
        from mecheval.tasks import TASKS

    tasks, problems = TASKS.loadable()
    for problem in problems:
        complain(str(problem))
    if as_json:
        print_json({name: describe_task(cls) for name, cls in tasks.items()})
    else:
        console.print(task_table(tasks))


@lists.command("mixers")
def list_mixers(as_json: AsJson = False) -> None:
    """List mixers with their options, and their size at d_model 64."""
    with loading():
        from mecheval.cli.show.lists import describe_mixers, mixer_table

        described, problems = describe_mixers()
    for problem in problems:
        complain(str(problem))
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
