"""Mixers and sites as they look in a terminal; apart from `show`, which does not wait for torch."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import nn

from mecheval.errors import UserError
from mecheval.mixers import MIXERS, Mixer, build_mixer
from mecheval.model.lm import LM
from mecheval.show import describe_options

D_MODEL, LENGTH, LAYERS = 64, 36, 2


def describe_mixers() -> tuple[dict[str, Any], list[UserError]]:
    """Of every mixer: options, and the size of its layers 0 and 1 at d=64 (some alternate); and what did not build."""
    factories, problems = MIXERS.loadable()
    described = {}
    for name, factory in factories.items():
        try:
            mixers = [build_mixer(name, D_MODEL, layer) for layer in range(LAYERS)]
        except UserError as error:
            problems.append(error)
            continue
        described[name] = {
            "about": (factory.__doc__ or name).strip().splitlines()[0],
            "options": describe_options(getattr(factory, "Options", None)),
            "layers": [describe_layer(mixer) for mixer in mixers],
            "positions": getattr(factory, "positions", "none"),
        }
    return described, problems


def describe_layer(mixer: nn.Module) -> dict[str, Any]:
    """Class, trainable parameters, and state size where the mixer tells it."""
    parameters = sum(p.numel() for p in mixer.parameters() if p.requires_grad)
    state = mixer.state_size(LENGTH) if isinstance(mixer, Mixer) else None
    return {"class": type(mixer).__name__, "parameters": parameters, "state": state}


def mixer_table(described: dict[str, Any]) -> Table:
    """The same for people."""
    title = f"Mixers; parameters and state (numbers carried after {LENGTH} tokens) of layers 0 and 1 at d={D_MODEL}"
    table = Table("mixer", "option", "default", "meaning", title=title, title_justify="left", header_style="bold")
    for name, mixer in described.items():
        table.add_row(Text(name, "bold"), "", "", escape(mixer["about"]))
        for i, layer in enumerate(mixer["layers"]):
            state = "not told" if layer["state"] is None else f"{layer['state']:,}"
            size = f"{layer['parameters']:,} parameters, state {state}"
            table.add_row("", Text(f"layer {i}", "magenta"), "", f"{layer['class']}: {size}")
        for option, info in mixer["options"].items():
            table.add_row("", Text(option, "cyan"), escape(str(info["default"])), escape(info["help"] or ""))
        table.add_section()
    return table


def describe_sites(mixer: str, layers: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Of every site: its name, its axes, and whether it can only be read."""
    taps = LM(1, D_MODEL, layers, mixer, options).taps()
    return [{"site": name, "shape": tap.shape.split(), "readonly": tap.readonly} for name, tap in taps.items()]


def site_table(described: list[dict[str, Any]]) -> Table:
    """The same for people."""
    table = Table("site", "axes", "", title="Sites; L is the position in the document", title_justify="left", box=None)
    for site in described:
        table.add_row(site["site"], " ".join(site["shape"]), Text("read only" if site["readonly"] else "", "dim"))
    return table
