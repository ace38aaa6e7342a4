"""Commands about a custom mixer: a file to begin with, a check that takes seconds, and its evaluation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecheval.cli.app import app, aside, console, line, loading, note, print_json, stoppable
from mecheval.cli.options import (
    AsJson,
    Scale,
    Seeds,
    Set,
    StorePath,
    TaskName,
    Workers,
    given_options,
    rates_of,
    whole_numbers,
)
from mecheval.errors import UserError
from mecheval.files import write_output
from mecheval.mixers.options import BUILT_IN
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    from rich.table import Table

    from mecheval.evaluation import Evaluation, PaperEvaluation
    from mecheval.evaluation.custom import Trials
    from mecheval.store import Store


TEMPLATE = '''"""A sequence mixer of your own: (B, L, D) in, (B, L, D) out."""

from torch import Tensor, nn
from torch.nn import functional as F


class {name}(nn.Module):
    """Attention whose keys have seen the token before. Replace it by your own idea.

    What counts: __init__ takes d_model (further arguments need defaults, and are set by --set NAME=VALUE), and forward
    is causal: the output at a position depends on no later input, and on no other document of the batch.
    """

    def __init__(self, d_model: int, kernel: int = 2) -> None:
        super().__init__()
        self.kernel = kernel
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.mix = nn.Conv1d(d_model, d_model, kernel, groups=d_model)  # each channel by itself, over the last tokens
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:  # B documents, L tokens, D = d_model
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        padded = F.pad(k.mT, (self.kernel - 1, 0))  # on the left alone, or the mixer would see the future
        return self.out(F.scaled_dot_product_attention(q, self.mix(padded).mT, v, is_causal=True))
'''
"""The file that `mecheval new` writes."""


@app.command()
def new(path: Annotated[Path, typer.Argument(metavar="FILE.py", help="The file to write.")]) -> None:
    """Write a commented file with a custom mixer to start from."""
    if path.suffix != ".py":
        raise UserError(f"name a Python file, my_mixer.py (got {str(path)!r}).")
    if path.exists():
        raise UserError(f"{path} is there already; choose another name.")
    words = "".join(word[:1].upper() + word[1:] for word in path.stem.replace("-", "_").split("_"))
    name = words if words.isidentifier() else "MyMixer"
    write_output(path, TEMPLATE.format(name=name))
    line(f"wrote {path} with class {name}")
    note(f"next: mecheval check {path}")


@app.command(short_help="Check a custom mixer in seconds.")
def check(
    source: Annotated[
        str, typer.Argument(metavar="FILE.py[:CLASS]", help="The file; its class, if it has several torch modules.")
    ],
    task: TaskName = "ar",
    scale: Scale = "laptop",
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Check a custom mixer in seconds: shapes, causality, batch-mates, convolutions, speed; nothing is trained.

    --set gives an argument of the class (d_state=16), or a setting of all runs, as for `mecheval evaluate`.
    """
    with loading():
        from mecheval import custom
        from mecheval.evaluation.checks import how_called
        from mecheval.evaluation.custom import prepare, split_options
        from mecheval.store import Store
        from mecheval.training.plan import plan
        from mecheval.training.progress import duration

        found = custom.Source.read(source)
        cls = found.load()
        custom.announce(found)
    with aside.status("checking"):
        options = given_options(assignments, [])
        planned, warnings = prepare(cls, found.name, task, scale, options, 1, (), False, None)
        config, widths = planned.own[0].config, {each.config.model.d_model: each.config for each in planned.own}
        called = how_called(cls, split_options(cls, found.name, task, options)[0], config.model.d_model)
        lm = config.build_lm()
    with aside.status("timing a few steps"):
        each_width = [plan(each, Store(DEFAULT_STORE)) for each in widths.values()]
    timed = each_width[0]
    convolutions = [str(site) for site in lm.sites() if site.kind == "short_conv"]
    seconds = sum(each.seconds for each in each_width) * len(planned.own) / len(widths)
    longest = config.build_task().max_tokens
    if as_json:
        print_json({
            "mixer": found.name, "called": called, "warnings": warnings, "parameters": timed.parameters,
            "convolutions": convolutions, "step_seconds": timed.step_seconds, "seconds": seconds,
        })  # fmt: skip
        return
    line(f"{found.name}")
    line(f"called as     {called}")
    line(f"shape         (B, L, D) in and out, finite, for documents of 1 to {longest} tokens")
    line("causality     no output depends on a later input")
    line("batch-mates   no document depends on another one of its batch")
    line(f"convolutions  {', '.join(convolutions) or 'none with a name; the verdict tries every operation of a layer'}")
    line(
        f"parameters    {timed.parameters:,} in a model of {config.model.n_layers} layers, width {config.model.d_model}"
    )
    speeds = ", ".join(f"{1e3 * each.step_seconds:.0f}" for each in each_width)
    at_widths = f", at widths {', '.join(map(str, widths))}" if len(widths) > 1 else ""
    line(f"speed         {speeds} ms of CPU time for a step of {config.data.batch_size} documents{at_widths}")
    rates = f"{len(planned.own)} run{'s' * (len(planned.own) > 1)} of up to {timed.steps:,} steps"
    line(f"time          at most {duration(seconds)} on one core, {rates}; less if it learns")
    for warning in warnings:
        note(f"warning: {warning}")
    words = ["evaluate", source if ":" in source else f"{source}:{found.cls}"]
    words += [f"--task={task}"] * (task != "ar") + [f"--scale={scale}"] * (scale != "laptop")
    note(f"next: mecheval {shlex.join([*words, *(f'--set={each}' for each in assignments or [])])}")


@app.command(short_help="Train a custom mixer and name its mechanism.")
def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:CLASS|FOLDER", help="The file and class of a torch module, or a Hugging Face checkpoint."
        ),
    ],
    tasks: Annotated[
        str | None,
        typer.Option("--task", "--tasks", help="A task of `mecheval list tasks`; default: ar, at scale paper ar,atr."),
    ] = None,
    scale: Scale = "laptop",
    assignments: Set = None,
    widths: Annotated[str | None, typer.Option(help="Widths at scale paper, comma-separated; default: 32.")] = None,
    seeds: Seeds = 1,
    lr: Annotated[
        str | None, typer.Option(help="Learning rates, comma-separated; default: those of the scale.")
    ] = None,
    compare: Annotated[
        bool | None,
        typer.Option("--compare/--no-compare", help="At scale laptop, train the built-in mixers, too (default)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="At scale paper, show runs and their time; train nothing.")
    ] = False,
    workers: Workers = None,
    store: StorePath = Path(DEFAULT_STORE),
    report: Annotated[Path, typer.Option(help="HTML file for the report on the store.")] = Path("report.html"),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a custom mixer, intervene on it and name its mechanism, beside the built-in mixers.

    Scale laptop takes two minutes and small tasks. Scale paper takes the paper's tasks, pairs (ar) and trees (atr), at
    width 32: it trains this mixer alone and sets it beside the published results of the built-in ones.

    Run the command again to resume; edit the file and run it again to compare versions. --set gives an argument of the
    class (d_state=16), or a setting of all runs (steps=4000). The folder of a checkpoint on disk is intervened on as it
    is: --task words has text for its tokenizer, --set gives options of the task, and nothing is trained.
    """
    page = None if no_report else report
    if source in BUILT_IN:
        raise UserError(f"{source} is built in; train it with `mecheval train --preset laptop --mixer {source}`.")
    if Path(source).is_dir():
        with loading():
            from mecheval.evaluation.trained import checkpoint_task, evaluate_model

            made = checkpoint_task(source, tasks or "ar", given_options(assignments, []))
        with aside.status("intervening"):
            _show(evaluate_model(source, made, compare=compare is not False, store=store, report=page), as_json)
        return
    with loading():
        from mecheval import custom
        from mecheval.evaluation import paper_size
        from mecheval.evaluation.classes import PAPER, check_scale
        from mecheval.evaluation.custom import collect, prepare, train
        from mecheval.store import Store
        from mecheval.sweep import LocalEngine

        wide = whole_numbers("--widths", widths) if widths else []
        check_scale(scale, tasks, wide, compare)
        if dry_run and scale != PAPER:
            raise UserError("--dry-run is for scale paper; `mecheval check` says how long scale laptop takes.")
        found = custom.Source.read(source)
        cls = found.load()
        custom.announce(found)
        options, opened, engine = given_options(assignments, []), Store(store), LocalEngine(workers)
    where = f"--mixer {shlex.quote(f'{found.path}:{found.cls}')} --store {shlex.quote(str(store))}"
    if scale == PAPER:
        with aside.status("checking"):
            asked, warnings = paper_size.ask(
                cls, found.name, options, tasks.split(",") if tasks else (), wide, rates_of(lr), seeds, page
            )
        for warning in warnings:
            note(f"warning: {warning}")
        if dry_run:
            with aside.status("timing a few steps"):
                said = paper_size.planned(asked, opened, engine.workers)
            for text in said:
                console.print(text, markup=False)
            return
        with stoppable():
            points = paper_size.train(asked, opened, engine, aside)
        with aside.status("comparing"):
            placed = paper_size.collect(asked, points, opened, warnings, page)
        _show_placed(placed, where, as_json)
        return
    with aside.status("checking"):
        trials, warnings = prepare(
            cls, found.name, tasks or "ar", scale, options, seeds, rates_of(lr), compare is not False, page
        )
    for warning in warnings:
        note(f"warning: {warning}")
    with stoppable():
        train(trials, opened, [engine], aside)
    with aside.status("intervening"):
        result = collect(trials, opened, warnings, page)
    _show(result, as_json)
    if as_json:
        return
    if result.small:
        paper = f"mecheval evaluate {shlex.quote(f'{found.path}:{found.cls}')} --scale paper"
        line(f"\nThis is what it does at this small size; at the paper's, in about ten minutes:\n  {paper}")
    if best := _best(trials, opened):
        note(f"next:\n  mecheval intervene {best} {where}\n  mecheval explain {best} {where}")


def _show_placed(result: PaperEvaluation, where: str, as_json: bool) -> None:
    """Print where a mixer stands among the published ones."""
    from mecheval.cli.show import plain_table, records
    from mecheval.studies.placing import HEADS, legend

    if as_json:
        print_json({
            "name": result.name, "sentences": result.sentences, "table": records(result.table),
            "details": result.details(), "report": result.report,
        })  # fmt: skip
        return
    for sentence in result.sentences:
        console.print(f"\n{sentence}", style="bold", markup=False)
    for place in result.placings:
        console.print(f"\n{place.title}", markup=False)
        words = (HEADS[0], HEADS[1], HEADS[4])
        table = plain_table(HEADS, words, (HEADS[0],), gap=1)
        for own, cells in zip(place.frame["own"], place.cells(), strict=True):
            table.add_row(*cells, style="bold" if own else "")
        console.print(table)
    for said in result.details():
        console.print(f"\n{said}", markup=False)
    if result.placings:
        console.print(f"\n{legend(result.placings)}", style="dim", markup=False)
    if result.report is not None:
        note(f"report: {result.report}")
    own = [row.runs[0][:6] for row in result.table.itertuples() if row.own]
    if own:
        note(f"next:\n  mecheval intervene {own[0]} {where}\n  mecheval explain {own[0]} {where}")


def _best(trials: Trials, store: Store) -> str | None:
    """The id of the custom mixer's best run, or None if none is done."""
    from mecheval.studies import study_table

    frame = study_table(trials.study, trials.own, store).best().frame
    return next((str(run)[:6] for run in frame.loc[frame["status"] == "done", "run"]), None)


def _show(result: Evaluation, as_json: bool) -> None:
    """Print the result."""
    from mecheval.cli.show import effects as show
    from mecheval.cli.show import records

    if as_json:
        print_json({
            "name": result.name, "table": records(result.table), "warnings": list(result.warnings),
            "verdict": None if result.verdict is None else show.verdict_data(result.verdict),
            "effects": records(result.effects), "report": result.report,
        })  # fmt: skip
        return
    console.print(f"\n{result.title}", style="bold", markup=False)
    console.print(_table(result))
    for said in result.notes:
        console.print(f"\n{said}", markup=False)
    if result.verdict is not None:
        console.print()
        console.print(show.verdict_text(result.verdict))
    if result.report is not None:
        note(f"report: {result.report}")


def _table(result: Evaluation) -> Table:
    """The table of mixers, with the evaluated one in bold."""
    from rich.text import Text

    from mecheval.cli.show import plain_table

    heads = ("mixer", "verdict", "d", "test\nacc", "test\nlik", "at\nkey", "at\nvalue", "at\nquery", "agree-\nment")
    shown = [i for i, head in enumerate(heads) if head != "d" or result.table["d"].nunique() > 1]  # 80 columns are few
    table = plain_table([heads[i] for i in shown], ("mixer", "verdict"), ("mixer",), gap=1)
    for mixer, cells in zip(result.table["mixer"], result.cells(), strict=True):
        table.add_row(*(Text(cells[i]) for i in shown), style="bold" if mixer == result.name else "")
    return table
