"""The command for interventions on a run: its map and verdict, states swept over positions, verdicts by a fact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli.app import app, aside, console, loading, note, print_json
from mecheval.cli.options import AnyRun, AsJson, Split, State, StorePath
from mecheval.errors import UnknownName, UserError
from mecheval.sites import sites_in
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    from mecheval.store import RunFolder

OwnMixer = Annotated[
    str | None, typer.Option("--mixer", metavar="FILE.py:CLASS", help="Where the custom mixer of the run is written.")
]
SITES = ("all", "blocks", "heads")


@app.command(short_help="Patch activations of a run, and name its mechanism.")
def intervene(
    run: AnyRun,
    state: State = "last",
    split: Split = "test",
    n: Annotated[int | None, typer.Option("-n", help="Documents; default: as many as the run was scored on.")] = None,
    sites: Annotated[
        str, typer.Option(help="Sites to show: blocks (their parts and short convolutions), heads or all.")
    ] = "blocks",
    edit: Annotated[
        str, typer.Option(help="Instead of patching, edit activations: zero, mean or noise=<std>; no verdict.")
    ] = "",
    site: Annotated[
        str | None, typer.Option(help="state: sweep the state of every layer over positions, in place of the map.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="A verdict for each value of a fact of the documents, such as distance.")
    ] = None,
    corruption: Annotated[
        str, typer.Option(help="What documents lose: key (as in the paper), value, query, or swap (of two values).")
    ] = "key",
    direction: Annotated[
        str | None,
        typer.Option(help="restore (default), destroy (the default of swap: patch the clean run instead) or both."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Draw the map into this file: .svg, .pdf, .png, .html or .json.")
    ] = None,
    mixer: OwnMixer = None,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Patch clean activations into corrupted documents, at every site and role, and name the mechanism.

    With another corruption or direction, or of heads, only the map is shown: the verdict is about restoring corrupted
    keys. All effects are stored with the run, unless -n is given.
    """
    with loading():
        from mecheval import figures
        from mecheval.analysis import runs, weights
        from mecheval.cli.show import effects as show
        from mecheval.cli.show import records
        from mecheval.store import Store

    if sites not in SITES:
        raise UnknownName("choice of sites", sites, SITES)
    way = direction or ("destroy" if corruption == "swap" else "restore")
    runs.check_corruption(corruption, way)
    if n is not None and n < 1:
        raise UserError(f"-n: the number of documents must be positive (got {n}).")
    if edit and (sites == "heads" or site is not None):
        raise UserError(f"--edit is about whole sites; leave out --{'sites heads' if site is None else 'site'}.")
    if edit and (corruption != "key" or direction is not None):
        given = "direction" if corruption == "key" else "corruption"
        raise UserError(f"--edit edits activations of whole documents; leave out --{given}.")
    if save is not None:
        figures.check_suffix(save)
    folder = weights.find_run(Store(store), run)
    announce(mixer, folder)
    if by is not None:
        if edit or site is not None or save is not None or sites != "blocks" or (corruption, way) != runs.STANDARD:
            raise UserError("--by gives verdicts, which are about restoring corrupted keys; leave out other options.")
        _by_fact(folder, by, state, split, n, as_json)
        return
    if site is not None:
        _check_sweep(site, sites, direction)
        _sweep(folder, state, split, n, corruption, save, as_json)
        return
    began = time.monotonic()
    found = None
    with aside.status("intervening"):
        if edit:
            effects = runs.ablation(folder, edit, state, split, n)
        elif (corruption, way) == runs.STANDARD and sites != "heads":
            measured = runs.probe(folder, state, split, n)
            effects, found = measured.effects, measured.verdict
        else:
            effects = runs.probe_otherwise(folder, corruption, way, state, split, n, heads=sites == "heads")
    took = f"{len(effects)} interventions on {effects['n'].max()} documents took {time.monotonic() - began:.1f} s"
    if sites == "blocks":
        effects = effects[effects["site"].isin(show.among(sites_in(effects), show.PARTS))]
    config = weights.run_config_of(folder)
    meaning = config.build_task().meaning
    about, scores = f"{state} state, {split}{', edit ' * bool(edit)}{edit}", scores_of(folder, state, split)
    maps = {"": effects} if edit else {
        str(each): effects[effects["direction"] == each] for each in effects["direction"].unique()
    }  # fmt: skip
    if as_json:
        what = {"edit": edit} if edit else {} if found is not None else {"corruption": corruption, "direction": way}
        print_json({
            "run": folder.id, "title": config.title, "state": state, "split": split, **what, "scores": scores,
            "effects": records(effects), **({} if found is None else {"verdict": show.verdict_data(found)}),
        })  # fmt: skip
    else:
        console.print(show.run_text(folder.id, config.title, about, scores))
        for i, part in enumerate(maps.values()):
            if i:
                console.print()
            console.print(show.effects_text(part, meaning))
            console.print()
            console.print(show.effects_table(part, console.width))
        if found is not None:
            console.print()
            console.print(show.verdict_text(found))
    if save is not None:
        more = "" if found is not None else f", {meaning.done(corruption)}"
        for each, part in maps.items():
            path = save if len(maps) == 1 else save.with_stem(f"{save.stem}-{each}")
            way_of = "" if found is not None else f", {each}"
            figures.save(figures.heatmap(part, f"{config.title} ({folder.id}, {about}{more}{way_of})"), path)
            note(f"wrote {path}")
    note(took)


def announce(mixer: str | None, folder: RunFolder) -> None:
    """Register the run's custom mixer from the file that the user names; a file of another mixer is an error."""
    if mixer is not None:
        from mecheval import custom
        from mecheval.mixers.pattern import mixers_of

        source, own = custom.Source.read(mixer), mixers_of(folder.status()["mixer"] or "")
        if source.name not in own:
            other = f"run {folder.id} has the mixer {' and '.join(own)}"
            edited = any(name.partition(custom.MARK)[0] == source.cls for name in own)
            hint = "its file was edited since" if edited else "leave out --mixer"
            raise UserError(f"{other}, and {mixer} is {source.name}; {hint}.")
        custom.announce(source)


def _check_sweep(site: str, sites: str, direction: str | None) -> None:
    """Raise an error for options that a sweep over states does not have."""
    if site != "state":
        raise UnknownName("site to sweep", site, ["state"])
    if sites != SITES[1]:
        raise UserError("--site state shows the states of all layers; leave out --sites.")
    if direction not in (None, "restore"):
        raise UserError(f"--site state restores; leave out --direction {direction}.")


def _sweep(
    folder: RunFolder, state: str, split: str, n: int | None, corruption: str, save: Path | None, as_json: bool
) -> None:
    """Print, and draw, what the clean state of every layer restores after each position."""
    from mecheval import figures
    from mecheval.analysis.runs import probe_states
    from mecheval.analysis.weights import run_config_of
    from mecheval.cli.show import effects as show
    from mecheval.cli.show import records

    began = time.monotonic()
    with aside.status("sweeping states"):
        swept, roles = probe_states(folder, corruption, state, split, n)
    took = f"{len(swept)} states of {swept['n'].max()} documents took {time.monotonic() - began:.1f} s"
    config = run_config_of(folder)
    about, scores = f"{state} state, {split}", scores_of(folder, state, split)
    if as_json:
        print_json({
            "run": folder.id, "title": config.title, "state": state, "split": split, "corruption": corruption,
            "scores": scores, "offsets": roles, "states": records(swept),
        })  # fmt: skip
    else:
        console.print(show.run_text(folder.id, config.title, about, scores))
        console.print(show.sweep_text(swept, config.build_task().meaning))
        if swept["share"].notna().any():
            console.print()
            console.print(show.sweep_table(swept, roles, console.width))
            console.print()
            console.print(show.sweep_summary(swept, roles))
    if save is not None:
        figures.save(figures.states(swept, f"{config.title} ({folder.id}, {about})", roles), save)
        note(f"wrote {save}")
    note(took)


def _by_fact(folder: RunFolder, fact: str, state: str, split: str, n: int | None, as_json: bool) -> None:
    """Print a verdict for each group of documents."""
    from mecheval.analysis.runs import probe_by
    from mecheval.analysis.weights import run_config_of
    from mecheval.cli.show import effects as show

    began = time.monotonic()
    with aside.status("intervening"):
        found = probe_by(folder, fact, state, split, n)
    took = f"{len(found)} verdicts took {time.monotonic() - began:.1f} s"
    config, scores = run_config_of(folder), scores_of(folder, state, split)
    if as_json:
        print_json({
            "run": folder.id, "title": config.title, "state": state, "split": split, "scores": scores,
            "by": [{fact: said, "n": each.n, "original": each.original, "corrupted": each.corrupted,
                    **show.verdict_data(each)} for said, each in found.items()],
        })  # fmt: skip
        return
    console.print(show.run_text(folder.id, config.title, f"{state} state, {split}", scores))
    console.print()
    console.print(show.by_fact_text(found, fact, config.build_task().meaning, config.model.n_layers))
    note(took)


def scores_of(folder: RunFolder, state: str, split: str) -> dict[str, Any] | None:
    """The scores of a state of a run; None if they were not measured."""
    return next((row for row in folder.read("evaluations") if (row["state"], row["split"]) == (state, split)), None)
