"""Lists of tasks, mixers and sites: as plain data, and as tables for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mecheval.errors import UserError
from mecheval.mixers import BUILT_IN, MIXERS, options_of, usual_positions
from mecheval.tasks import Task

if TYPE_CHECKING:  # slow to import
    from torch import nn

D_MODEL, LENGTH, LAYERS = 64, 36, 2
"""The model whose mixers are listed: its width, the length of its documents in tokens, and its layers."""
MEASURED = files("mecheval").joinpath("cli/show/mixers.json")
"""What `measure` says of every built-in mixer, because building them takes torch; `docs/tables.py` writes it."""


def describe_options(model: type[BaseModel] | None) -> dict[str, Any]:
    """Names, defaults and meanings of options."""
    fields = {} if model is None else model.model_fields
    return {name: {"default": info.default, "help": info.description} for name, info in fields.items()}


def describe_task(cls: type[Task]) -> dict[str, Any]:
    """A task's presets and options."""
    presets = {preset: dict(values) for preset, values in cls.presets.items()}
    return {"presets": presets, "options": describe_options(cls.Options)}


def task_table(tasks: Mapping[str, type[Task]]) -> Table:
    """Every task with its presets and options."""
    table = _option_table("task", "Tasks")
    for name, cls in tasks.items():
        described = describe_task(cls)
        presets = {
            f"preset {preset}": ", ".join(f"{k}={v}" for k, v in values.items()) or "the defaults"
            for preset, values in described["presets"].items()
        }
        _add_options(table, name, (cls.__doc__ or "").strip().splitlines()[0], presets, described["options"])
    return table


def describe_mixers() -> tuple[dict[str, Any], list[UserError]]:
    """Every mixer's options and the size of its layers at `D_MODEL` (some alternate), and errors of those that fail."""
    known, described, problems = json.loads(MEASURED.read_bytes()), dict[str, Any](), list[UserError]()
    for name in MIXERS.names():
        try:
            measured = known[name] if name in BUILT_IN and name in known else measure(name)
            options = options_of(name)
        except UserError as error:
            problems.append(error)
            continue
        described[name] = {
            **measured,
            "options": describe_options(options),
            "positions": usual_positions(name),
            "family": getattr(options, "family", "custom"),
            "paper": getattr(options, "paper", ""),
        }
    return described, problems


def measure(name: str) -> dict[str, Any]:
    """What a mixer is, the class and size of its layers, and whether one has a short convolution; this builds them."""
    from mecheval.mixers import build_mixer
    from mecheval.sites import taps

    mixers = [build_mixer(name, D_MODEL, layer) for layer in range(LAYERS)]
    return {
        "about": (MIXERS.get(name).__doc__ or name).strip().splitlines()[0],
        "layers": [_describe_layer(mixer) for mixer in mixers],
        "short_conv": any(tap.kind == "short_conv" for mixer in mixers for _, tap in taps(mixer)),
    }


def _describe_layer(mixer: nn.Module) -> dict[str, Any]:
    """Class, trainable parameters, and the size of the state if the mixer reports it."""
    from mecheval.mixers import Mixer

    parameters = sum(p.numel() for p in mixer.parameters() if p.requires_grad)
    state = mixer.state_size(LENGTH) if isinstance(mixer, Mixer) else None
    return {"class": type(mixer).__name__, "parameters": parameters, "state": state}


def mixer_table(described: Mapping[str, Any]) -> Group:
    """What `describe_mixers` found: all mixers at a glance, then their options."""
    title = (
        f"Mixers; parameters and state (numbers carried after {LENGTH} tokens) of layers 0 and 1 at d_model {D_MODEL}\n"
        "(conv: whether there is a short convolution or token shift by default)"
    )
    glance = Table(title=title, title_justify="left", header_style="bold", box=None)
    for column in ("mixer", "family", "parameters", "state", "conv", "paper"):
        right = column in ("parameters", "state")
        glance.add_column(column, justify="right" if right else "left", no_wrap=column == "mixer")
    options = _option_table("mixer", "Options")
    for name, mixer in described.items():
        cells = []
        for what in ("parameters", "state"):
            each = ("unknown" if layer[what] is None else f"{layer[what]:,}" for layer in mixer["layers"])
            cells.append(" / ".join(dict.fromkeys(each)))
        conv = "yes" if mixer["short_conv"] else "no"
        glance.add_row(Text(name, "bold"), mixer["family"], *cells, conv, mixer["paper"])
        _add_options(options, name, mixer["about"], {}, mixer["options"])
    return Group(glance, "", options)


def describe_sites(mixer: str, layers: int | None, options: dict[str, Any], canon: str = "") -> list[dict[str, Any]]:
    """Every site of a model: its name, its axes, and whether it can only be read."""
    from mecheval.model.lm import LM

    taps = LM(1, D_MODEL, layers, mixer, options, canon=canon).taps()
    return [{"site": name, "shape": tap.shape.split(), "readonly": tap.readonly} for name, tap in taps.items()]


def site_table(described: Iterable[Mapping[str, Any]]) -> Table:
    """What `describe_sites` found."""
    table = Table("site", "axes", "", title="Sites; L is the position in the document", title_justify="left", box=None)
    for site in described:
        table.add_row(site["site"], " ".join(site["shape"]), Text("read only" if site["readonly"] else "", "dim"))
    return table


def _option_table(first: str, title: str) -> Table:
    return Table(first, "option", "default", "meaning", title=title, title_justify="left", header_style="bold")


def _add_options(table: Table, name: str, about: str, notes: Mapping[str, str], options: Mapping[str, Any]) -> None:
    """A section about `name`: what it is, notes such as presets, and its options."""
    table.add_row(Text(name, "bold"), "", "", escape(about))
    for what, said in notes.items():
        table.add_row("", Text(what, "magenta"), "", escape(said))
    for option, info in options.items():
        default = ",".join(info["default"]) if isinstance(info["default"], tuple) else str(info["default"])
        table.add_row("", Text(option, "cyan"), escape(default), escape(info["help"] or ""))
    table.add_section()
