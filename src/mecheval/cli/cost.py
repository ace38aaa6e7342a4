"""The command that measures the cost of mixers by length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import app, aside, console, line, loading, note, print_json
from mecheval.cli.options import AsJson, Workers, csv_file, from_to, whole_numbers
from mecheval.types import MISSING


@app.command(short_help="Measure time, memory and state of every mixer.")
def cost(
    mixers: Annotated[str | None, typer.Option(help="Mixers, comma-separated; default: all built-in ones.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Tokens of a document, comma-separated.")] = None,
    d_model: Annotated[int, typer.Option(min=1, max=1 << 14, help="Width of the models.")] = 64,
    seconds: Annotated[float, typer.Option(callback=from_to(1, 1e6), help="Longest time of one measurement.")] = 120,
    memory: Annotated[
        float | None,
        typer.Option(callback=from_to(0.1, 1e6), help="Most memory of one in GB; default: half of the machine's."),
    ] = None,
    workers: Workers = None,
    csv: Annotated[Path, typer.Option(callback=csv_file, help="File that keeps the rows, .csv.")] = Path("cost.csv"),
    save: Annotated[Path | None, typer.Option(help="Draw the charts into this file: .svg, .png or .json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure time, peak memory, state and FLOPs of every mixer by length, and say where one becomes the cheaper.

    Run it again to resume: rows that the file has from this kind of CPU are not measured again.
    """
    with loading():
        import pandas as pd

        from mecheval import figures
        from mecheval.cli.show import plain_table, records
        from mecheval.evaluation import cost as costs
        from mecheval.figures.cost import cost as chart
        from mecheval.machine import cores
        from mecheval.mixers.options import BUILT_IN

    if save is not None:
        figures.check_suffix(save)
    chosen = list(BUILT_IN) if mixers is None else [each.strip() for each in mixers.split(",")]
    tokens = list(costs.LENGTHS) if lengths is None else whole_numbers("--lengths", lengths)
    rows, total = [], len(chosen) * len(set(tokens))
    with aside.status("measuring") as status:
        for row, new in costs.measured(csv, chosen, tokens, d_model, seconds, memory, workers or cores()):
            rows.append(row)
            status.update(f"{len(rows)} of {total}: {row['mixer']} at {row['length']:,} tokens")
            if new and row["fits"] != "yes":
                note(f"{row['mixer']} at {row['length']:,} tokens does not fit: too much {row['fits']}.")
    rows.sort(key=lambda row: (chosen.index(row["mixer"]), row["length"]))
    frame = pd.DataFrame(rows, columns=list(costs.COLUMNS))
    grown, said = costs.exponents(frame), [*costs.hypotheses(frame), *costs.crossings(frame)]
    if as_json:
        print_json({"rows": rows, "exponents": records(grown), "sentences": said})
    else:
        heads = ["mixer", "tokens", "train ms", "fwd ms", "token ms", "MB", "state", "params", "FLOPs"]
        table = plain_table(heads, ["mixer"], gap=1)
        for row in rows:
            cells = [_short(row[name]) for name in costs.MEASURED if name != "process_mb"]
            why = [] if row["fits"] == "yes" else [f"({row['fits']})"]
            table.add_row(row["mixer"], str(row["length"]), *why, *cells[len(why) :])
        console.print(table)
        if len(grown):
            line("Exponents of growth from {:,} to {:,} tokens, with 95 % intervals:".format(*costs.FITTED))
            table = plain_table(["mixer", *(costs.MEASURED[what] for what in costs.GROWING)], ["mixer"])
            for mixer, own in grown.groupby("mixer", sort=False):
                found = {
                    row["quantity"]: f"{row['exponent']:.2f} ± {row['high'] - row['exponent']:.2f}"
                    for row in records(own)
                }
                table.add_row(str(mixer), *(found.get(what, MISSING) for what in costs.GROWING))
            console.print(table)
        for sentence in said:
            line(sentence)
    if save is not None:
        figures.save(chart(frame), save)
        note(f"wrote {save}")


def _short(value: float | None) -> str:
    """Three digits: 0.0123, 12.3, 123k, 4.56M."""
    if value is None:
        return MISSING
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
