"""Hybrids: models whose layers differ in their mixer, written as a pattern of layers. Nothing here needs torch.

`mamba+attention` is a layer of each, `3*mamba+attention` three layers of Mamba and one of attention; a comma means the
same as a plus. A pattern repeats until a model has all of its layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from mecheval.custom import MARK
from mecheval.errors import UnknownName, UserError, shown
from mecheval.mixers import adapter
from mecheval.mixers.options import MIXERS, options_of

MOST_LAYERS = 1000
"""Largest number of layers in a pattern and in a model."""
_PART = re.compile(r"\s*(?:(\d{1,6})\s*\*)?\s*([^\s*]+)\s*")


def is_pattern(name: str) -> bool:
    """Whether this is a pattern of layers rather than one mixer for all layers."""
    return any(sign in name for sign in "+*,")


def read_pattern(text: str) -> list[str]:
    """The mixers of a pattern, layer by layer."""
    layers: list[str] = []
    for part in re.split("[+,]", text):
        found = _PART.fullmatch(part)
        count = int(found[1] or 1) if found else 0
        if found is None or not count:
            raise UserError(f"mixer: write layers as mamba+attention or 3*mamba+attention (got {shown(text)}).")
        if len(layers) + count > MOST_LAYERS:
            raise UserError(f"mixer: a pattern has at most {MOST_LAYERS:,} layers (got {shown(text)}).")
        layers += [found[2]] * count
    return layers


def as_pattern(given: Any) -> Any:
    """A list of names, as in YAML, converted into a pattern; anything else is returned unchanged."""
    names = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
    return "+".join(given) if names else given


def mixers_of(name: str) -> list[str]:
    """The distinct mixers in a mixer's name, which may be a pattern of layers."""
    return list(dict.fromkeys(read_pattern(name))) if is_pattern(name) else [name]


def fill(layers: Sequence[Any], n_layers: int | None) -> list[Any]:
    """The pattern, repeated until there are `n_layers` layers, or once if that is None."""
    if n_layers is not None and n_layers % len(layers):
        own = len(layers)
        raise UserError(
            f"n_layers={n_layers} is not a multiple of the pattern's {own} layers; give {own}, {2 * own}, ..."
        )
    return [*layers] * (1 if n_layers is None else n_layers // len(layers))


def pattern_name(layers: Sequence[str]) -> str:
    """The shortest pattern that gives these layers, so that a model has one name however it was written."""
    n = len(layers)
    period = next(p for p in range(1, n + 1) if n % p == 0 and layers == [*layers[:p]] * (n // p))
    runs = [(name, len(list(run))) for name, run in groupby(layers[:period])]
    return "+".join(name if count == 1 else f"{count}*{name}" for name, count in runs)


def option_names(name: str, factory: Callable[..., Any] | None = None) -> set[str]:
    """The names of a mixer's options: those that it declares, or the arguments of its factory."""
    declared = options_of(name) if factory is None else getattr(factory, "Options", None)
    if declared is not None:
        return set(declared.model_fields)
    return set(adapter.option_names(factory or MIXERS.get(name))[0])


def split_options(known: Mapping[str, set[str]], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of each mixer of a model; `known` has the names of the options of each mixer.

    `d_state` is for all mixers that have it; `mamba.d_state` is for one mixer and overrides it. A custom mixer is
    given by its name or its class. Options of a single mixer are checked where it is built, not here.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in known}
    for option, value in sorted(options.items(), key=lambda each: bool(owners_of(each[0], known)[0])):
        owners, field = owners_of(option, known)
        takers = owners or [name for name in known if option in known[name] or len(known) == 1]
        if not takers:
            dotted = {f"{name}.{each}" for name in known for each in known[name]}
            choices = dotted if "." in option else set().union(*known.values())
            raise UnknownName(f"option of {'+'.join(known)}", option, choices)
        for name in takers:
            found[name][field] = value
    return found


def owners_of(option: str, mixers: Iterable[str]) -> tuple[list[str], str]:
    """The mixers that an option such as `mamba.d_state` is for, and the option's name; none without a mixer's name."""
    full = [name for name in mixers if option.startswith(f"{name}.")]
    owners = full or [name for name in mixers if option.startswith(f"{name.partition(MARK)[0]}.")]
    prefix = owners[0] if full else owners[0].partition(MARK)[0] if owners else ""
    return owners, option[len(prefix) + 1 :] if owners else option
