"""Commands about models: list mixers and sites."""

from __future__ import annotations

from typing import Annotated

import typer

from mecheval.cli.app import ANY_OPTION, AsJson, Set, console, from_to, given_options, lists, print_json, tell


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
    layers: Annotated[int, typer.Option(callback=from_to(1, 100), help="Layers of the model.")] = 2,
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
