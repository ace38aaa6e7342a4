"""Commands for whoever writes a mixer: a file to begin with, and a check that takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import AsJson, app, aside, line, loading, note, print_json
from mecheval.errors import UserError
from mecheval.store import DEFAULT_STORE

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
    """Write a commented file with a mixer of your own to begin with."""
    from mecheval.files import write_atomic

    if path.suffix != ".py":
        raise UserError(f"name a Python file, my_mixer.py (got {str(path)!r}).")
    if path.exists():
        raise UserError(f"{path} is there already; choose another name.")
    words = "".join(word[:1].upper() + word[1:] for word in path.stem.replace("-", "_").split("_"))
    name = words if words.isidentifier() else "MyMixer"
    try:
        write_atomic(path, TEMPLATE.format(name=name))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from None
    line(f"wrote {path} with class {name}")
    note(f"next: mecheval check {path}")


@app.command()
def check(
    source: Annotated[
        str, typer.Argument(metavar="FILE.py[:CLASS]", help="The file; its class, if it has several torch modules.")
    ],
    task: Annotated[str, typer.Option(help="A task of `mecheval list tasks`.")] = "ar",
    as_json: AsJson = False,
) -> None:
    """Check a custom mixer in seconds: shapes, causality, batch-mates, convolutions, speed; nothing is trained."""
    with loading():
        from mecheval import custom
        from mecheval.evaluation.custom import prepare
        from mecheval.store import Store
        from mecheval.training.plan import plan
        from mecheval.training.progress import duration

        found = custom.Source.read(source)
        cls = found.load()
        custom.announce(found)
    with aside.status("checking"):
        planned, warnings = prepare(cls, found.name, task, "laptop", {}, 1, (), False, None)
        config = planned.own[0].config
        lm = config.build_lm()
    with aside.status("timing a few steps"):
        timed = plan(config, Store(DEFAULT_STORE))
    convolutions = [str(site) for site in lm.sites() if site.kind == "short_conv"]
    seconds = timed.seconds * len(planned.own)
    longest = config.build_task().max_tokens
    if as_json:
        print_json({
            "mixer": found.name, "warnings": warnings, "parameters": timed.parameters, "convolutions": convolutions,
            "step_seconds": timed.step_seconds, "seconds": seconds,
        })  # fmt: skip
        return
    line(f"{found.name}")
    line(f"shape         (B, L, D) in and out, finite, for documents of 1 to {longest} tokens")
    line("causality     no output depends on a later input")
    line("batch-mates   no document depends on another one of its batch")
    line(f"convolutions  {', '.join(convolutions) or 'none with a name; the verdict tries every operation of a layer'}")
    line(
        f"parameters    {timed.parameters:,} in a model of {config.model.n_layers} layers, width {config.model.d_model}"
    )
    line(f"speed         {1e3 * timed.step_seconds:.0f} ms for a step of {config.data.batch_size} documents")
    rates = f"{len(planned.own)} run{'s' * (len(planned.own) > 1)} of up to {timed.steps:,} steps"
    line(f"time          at most {duration(seconds)} of one core for {rates}; runs that have learnt stop sooner")
    for warning in warnings:
        note(f"warning: {warning}")
    note(f"next: mecheval evaluate {source if ':' in source else f'{source}:{found.cls}'}")
