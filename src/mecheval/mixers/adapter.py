"""How a mixer from elsewhere is called: by its own name for the width, by its config, with its own options.

A mixer is a class, or a function that makes one. Its arguments say how it takes the width of the model (`d_model`,
`dim`, `hidden_size`, ..., or an object with such a field); whatever could be read in two ways is an error that says how
to choose. Nothing here needs torch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from mecheval.custom import MADE_BY, MARK
from mecheval.errors import UnknownName, UserError, shown

INPUTS = (
    "input_size", "input_dim", "in_features", "in_dim", "in_channels", "d_in", "d_input", "dim_in", "dim_input",
)  # fmt: skip
"""Names of the width of what a mixer reads; its other sizes without a default are then the same."""
WIDTHS = (
    "d_model", "dim", "hidden_size", "embed_dim", "n_embd", "n_embed", "embedding_dim", "embedding_size", "emb_dim",
    "emb_size", "embed_size", "d_embed", "model_dim", "dim_model", "model_size", "hidden_dim", "dim_hidden", "d_hidden",
    "channels", "n_channels", "num_channels", *INPUTS,
)  # fmt: skip
"""Names of the width of the model; of several, `d_model` counts."""
OUTPUTS = (
    "output_size", "output_dim", "out_features", "out_dim", "out_channels", "d_out", "d_output", "dim_out",
    "dim_output",
)  # fmt: skip
"""Names of the width of what a mixer returns, which is that of what it reads."""
LAYERS = ("layer", "layer_idx", "layer_index", "layer_id", "layer_number")
"""Names of the number of the block."""
CONFIGS = ("config", "cfg", "conf", "configs", "args", "model_args", "params", "hparams", "options")
"""Names of an argument that takes a config object."""
CONFIG_CLASSES = ("config", "configuration", "args", "params", "hparams", "options", "cfg")
"""How the name of a config's class ends, in lower case."""
NUMBERS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}

Arguments = Mapping[str, Parameter]


@dataclass(frozen=True)
class Config:
    """The config object that a mixer takes as one of its arguments."""

    argument: str
    cls: type
    fields: Arguments
    any_name: bool
    by_call: bool  # whether its class is called with its fields; otherwise they are attributes that are set

    def build(self, values: Mapping[str, Any]) -> Any:
        """The object with these fields, and defaults for the others."""
        if self.by_call:
            return self.cls(**values)
        made = self.cls()
        for name, value in values.items():
            setattr(made, name, value)
        return made


@dataclass(frozen=True)
class Call:
    """The arguments with which a mixer is called, and the fields of its config among them."""

    name: str
    arguments: Mapping[str, Any]
    config: Config | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def run(self, factory: Callable[..., Any]) -> Any:
        """What the factory makes of the arguments."""
        if self.config is None:
            return factory(**self.arguments)
        return factory(**{self.config.argument: self.config.build(self.fields)}, **self.arguments)

    def __str__(self) -> str:
        config = self.config
        given = [] if config is None else [f"{config.argument}={config.cls.__name__}({_listed(self.fields)})"]
        return f"{self.name}({', '.join((*given, *([_listed(self.arguments)] if self.arguments else [])))})"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def option_names(factory: Callable[..., Any]) -> tuple[list[str], bool]:
    """Names of the options of a mixer from elsewhere, and whether it accepts any other keyword, too."""
    outer, any_name = _arguments(factory)
    config = _config(factory, outer)
    names = {**outer, **({} if config is None else config.fields)}
    widths = _widths(names, ())
    width = widths[:1] if _is_pair(widths, names) else []
    own = ("d_model", *width, *LAYERS, *([] if config is None else [config.argument]))
    return [name for name in names if name not in own], any_name or (config is not None and config.any_name)


def call_of(factory: Callable[..., Any], name: str, d_model: int, layer: int, options: Mapping[str, Any]) -> Call:
    """How a mixer from elsewhere is called with these options, or an error in one line."""
    name = name.partition(MARK)[0]
    outer, any_name = _arguments(factory)
    config = _config(factory, outer)
    inner = {} if config is None else config.fields
    known = {each: known for each, known in {**inner, **outer}.items() if config is None or each != config.argument}
    for option, value in options.items():
        if option in known:
            _check_type(name, known[option], value)
        elif not any_name and (config is None or not config.any_name):
            raise UnknownName(f"option of {name}", option, option_names(factory)[0])
    widths = _widths(known, options) or (["d_model"] if any_name or (config and config.any_name) else [])
    if not widths:
        raise UserError(_no_width(factory, name, outer))
    if len(widths) > 1 and not _is_pair(widths, known):
        both = " and ".join(widths)
        ways = ", or ".join(f"--set {each}=VALUE" for each in widths[::-1])
        raise UserError(f"{name} takes {both}, and one of them is the width of the model: give the other ({ways}).")
    given = {**dict.fromkeys(widths, d_model), **options}
    for each in (each for each in LAYERS if each in known and each not in options):
        given[each] = layer
    first = known.get("batch_first")
    if first is not None and first.default is False and "batch_first" not in options:
        given["batch_first"] = True
    missing = [each for each, one in known.items() if one.default is one.empty and each not in given]
    if missing:
        commands = " ".join(f"--set {each}=VALUE" for each in missing)
        python = ", ".join(f"{each!r}: ..." for each in missing)
        raise UserError(f"{name} needs {', '.join(missing)}; give {commands} (in Python options={{{python}}}).")
    inside = {each: value for each, value in given.items() if each not in outer and (each in inner or not any_name)}
    return Call(name, {each: value for each, value in given.items() if each not in inside}, config, inside)


def _arguments(factory: Callable[..., Any]) -> tuple[dict[str, Parameter], bool]:
    """A mixer's arguments by name, and whether it accepts any other keyword, too.

    Where a class without a width of its own takes `**kwargs`, it passes them on: those of its base class are added.
    """
    if isinstance(factory, partial):
        known, any_name = _arguments(factory.func)
        names = list(known)[len(factory.args) :]
        own = {each: known.get(each) or Parameter(each, Parameter.KEYWORD_ONLY) for each in (*names, *factory.keywords)}
        return {each: _with_default(one, factory.keywords) for each, one in own.items()}, any_name
    if not isinstance(factory, type):
        return _named(_signature(factory))
    if MADE_BY in vars(factory):
        return _arguments(vars(factory)[MADE_BY])
    found: dict[str, Parameter] = {}
    any_name = False
    for base in factory.__mro__[:-1]:
        if base.__module__ == "torch.nn.modules.module":
            break
        if "__init__" in vars(base):
            _, *parameters = _signature(base.__init__)  # type: ignore[misc]  # read, not called
            known, any_name = _named(parameters)
            if base.__module__ == "torch.nn.modules.rnn" and base is not factory:
                known.pop("mode", None)  # which GRU, LSTM and RNN give themselves
            found = {**known, **found}
            if not any_name or _widths(found, ()):  # the arguments of its base class are then its own affair
                break
    return found, any_name


def _with_default(one: Parameter, defaults: Mapping[str, Any]) -> Parameter:
    return one.replace(kind=Parameter.KEYWORD_ONLY, default=defaults.get(one.name, one.default))


def _named(parameters: list[Parameter]) -> tuple[dict[str, Parameter], bool]:
    named = {one.name: one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    return named, any(one.kind is one.VAR_KEYWORD for one in parameters)


def _signature(function: Any) -> list[Parameter]:
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, AttributeError, TypeError, SyntaxError):  # annotations that only a type checker can read
        return list(inspect.signature(function).parameters.values())


def _widths(known: Arguments, given: Mapping[str, Any] | tuple[()]) -> list[str]:
    """The arguments that can only be the width, or those among which it is; arguments that options give are not."""
    if "d_model" in known:
        return ["d_model", *_needed(known, given, OUTPUTS)]
    needed = _needed(known, given, WIDTHS)
    if needed:
        return [*needed, *_needed(known, given, OUTPUTS)]
    return [each for each in known if each in WIDTHS and each not in given]


def _needed(known: Arguments, given: Mapping[str, Any] | tuple[()], names: tuple[str, ...]) -> list[str]:
    return [each for each in known if each in names and known[each].default is Parameter.empty and each not in given]


def _is_pair(widths: list[str], known: Arguments) -> bool:
    """Whether these are the width of the input and sizes that follow from it, as in nn.GRU(input_size, hidden_size)."""
    sizes = [each for each in widths if each not in OUTPUTS]
    return len(sizes) == 1 or (
        any(each in INPUTS for each in sizes) and all(known[each].default is Parameter.empty for each in sizes)
    )


def _no_width(factory: Callable[..., Any], name: str, outer: Arguments) -> str:
    config = next((each for each in outer if each in CONFIGS), None)
    if config is not None:
        there = ", ".join(each.__name__ for each in _config_classes(factory))
        what = f"several classes with one ({there})" if there else "no class with one (d_model, dim, hidden_size, ...)"
        return (
            f"{name} takes its width as a field of {config}, and its file has {what}; write `{config}: ItsClass`, or "
            f"name a function: def make(d_model): return {name}(...)."
        )
    argument = next((each for each, one in outer.items() if one.default is one.empty), "width")
    return (
        f"{name} must take its width by a known name (d_model, dim, hidden_size, embed_dim, n_embd, ...); rename the "
        f"argument, or name a function: def make(d_model): return {name}({argument}=d_model)."
    )


def _config(factory: Callable[..., Any], outer: Arguments) -> Config | None:
    """The config object that a mixer takes, if its arguments have no width, but one of them can be such an object."""
    if _widths(outer, ()):
        return None
    for name, one in outer.items():
        kinds = [each for each in (one.annotation, *get_args(one.annotation)) if isinstance(each, type)]
        for cls in (*kinds, type(one.default)):
            if (read := _read_config(name, cls)) is not None:
                return read
    argument = next((name for name in outer if name in CONFIGS), None)
    there = _config_classes(factory) if argument else []
    return _read_config(argument, there[0]) if argument and len(there) == 1 else None


def _config_classes(factory: Callable[..., Any]) -> list[type]:
    """The classes of the mixer's file that can be its config."""
    while isinstance(factory, partial):
        factory = factory.func
    module = sys.modules.get(getattr(factory, "__module__", ""))
    values = dict.fromkeys(value for value in vars(module or object).values() if isinstance(value, type))
    named = [value for value in values if value.__name__.lower().endswith(CONFIG_CLASSES)]
    return [value for value in named if not hasattr(value, "forward") and _read_config("", value) is not None]


def _read_config(argument: str, cls: type) -> Config | None:
    """How to build a config of this class, if it has a field for the width."""
    if cls.__module__ in ("builtins", "typing", "collections", "types") or cls is Parameter.empty:
        return None
    try:
        fields, any_name = _named(_signature(cls))
    except (ValueError, TypeError):
        return None
    if _widths(fields, ()):
        return Config(argument, cls, fields, any_name, by_call=True)
    try:
        made = cls()
    except Exception:  # a class of another kind
        return None
    names = {**{name: getattr(cls, name, None) for name in dir(cls)}, **getattr(made, "__dict__", {})}
    plain = {name: value for name, value in names.items() if not name.startswith("_") and not callable(value)}
    fields = {name: Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in plain.items()}
    return Config(argument, cls, fields, False, by_call=False) if _widths(fields, ()) else None


def _check_type(name: str, one: Parameter, value: Any) -> None:
    """Raise an error for text in place of a number and the like, as far as the argument says what it takes."""
    annotation = one.annotation
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if one.annotation is one.empty or isinstance(annotation, str):
        kinds = (type(one.default),) if type(one.default) in (int, float) else ()
        kinds = (int, float) if kinds else ()  # without an annotation, a whole default may stand for any number
    plain = isinstance(value, (*NUMBERS, list, dict, NoneType))  # others only come from Python, and may be numbers, too
    if not plain or not kinds or not all(kind in (*NUMBERS, NoneType) for kind in kinds):
        return
    fits = any(isinstance(value, (int, float) if kind is float else kind) for kind in kinds)
    if fits and not (isinstance(value, bool) and bool not in kinds):
        return
    known = [NUMBERS[kind] for kind in kinds if kind in NUMBERS and not (kind is int and float in kinds)]
    default = "" if one.default is one.empty else f"; its default is {shown(one.default)}"
    raise UserError(f"{name}: {one.name} must be {' or '.join(known)} (got {shown(value)}){default}.")
