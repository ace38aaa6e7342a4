"""Custom mixers: classes in files that a user names, registered under a name with a digest of their source.

A run is named by its config and never trained twice, but a mixer changes while its author works on it. As
`MyMixer@3f9a2c1b`, an edited file is another mixer, and its runs stand beside those of the one before.

Other processes find such mixers through the environment: MECHEVAL_MIXERS=path/to/file.py:MyMixer, comma-separated.
Only files that are named there, or on the command line, are ever executed, and never anything from a store.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from mecheval.errors import UnknownName, UserError, said
from mecheval.files import sha256

if TYPE_CHECKING:  # slow to import
    from torch import nn

VARIABLE = "MECHEVAL_MIXERS"
MARK = "@"
"""The sign between the name of a class and its digest."""
DIGITS = 8
"""Number of hexadecimal digits in a digest."""
MADE_BY = "made_by"
"""The attribute of a class that stands for a function (`as_class`): the function."""
LIBRARIES = ("torch", "mecheval", "builtins", "abc", "typing")
"""Packages whose base classes are not part of a custom mixer."""
_ENTRY = re.compile(r"\s*(.+?):([^\W\d]\w*)\s*(?:,|$)")
"""An entry file.py:Class. A comma ends it only after the class, so paths may contain commas and colons."""
_IN_PATTERN = re.compile(r"[^\s+*,][^+*,]*\.py\b(?::\w+)?")
"""file.py:Class in a pattern of layers; such a path cannot contain the signs of a pattern."""
LONGEST_PATTERN = 10_000
"""Largest number of characters in a pattern of layers, because the time to find paths in it grows quadratically."""

_loaded: dict[tuple[Path, str], ModuleType] = {}
_loading: list[Path] = []


def digest(content: bytes) -> str:
    """The first digits of the SHA-256 of a source."""
    return sha256(content)[:DIGITS]


def read_file(path: Path) -> bytes:
    """The content of a Python file."""
    if path.suffix != ".py":
        raise UserError(f"{path} is not a Python file (.py).")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from None


def load_file(path: Path) -> ModuleType:
    """Execute a Python file as a module. The same content is executed only once."""
    content, place = read_file(path), path.resolve()
    known = place, digest(content)
    if known in _loaded:
        return _loaded[known]
    module = ModuleType(f"mecheval_own_{known[1]}")
    module.__file__ = str(place)
    sys.modules[module.__name__] = module  # dataclasses, for example, look up their module
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))  # at the end, so that files next to it can be imported but hide nothing
    _loading.append(path)
    try:
        exec(compile(content, str(place), "exec", dont_inherit=True), vars(module))
    except UserError as error:
        raise UserError(f"{path}{line_in(place, error)}: {error}") from None
    except SyntaxError as error:
        raise UserError(f"{path}{_at(error.lineno)} is not Python: {error.msg}.") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}{line_in(place, error)} failed when it was imported: {said(error)}") from None
    finally:
        _loading.pop()
    _loaded[known] = module
    return module


def not_while_loading(what: str) -> None:
    """Raise an error if a file calls `what` while it is only imported for its mixer."""
    if _loading:
        raise UserError(f'{what} is called when the file is imported; put that below `if __name__ == "__main__":`.')


def modules_in(module: ModuleType) -> list[str]:
    """Names of what can be a mixer in a file: the torch modules that it defines.

    If there are none, these are the functions that it defines and the torch modules that it imports.
    """
    from torch import nn

    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    classes = [name for name, value in public.items() if isinstance(value, type) and issubclass(value, nn.Module)]
    own = [name for name in classes if public[name].__module__ == module.__name__]
    functions = [name for name, value in public.items() if isinstance(value, FunctionType)]
    partials = [name for name, value in public.items() if isinstance(value, partial)]
    return own or [*(each for each in functions if public[each].__module__ == module.__name__), *partials, *classes]


def line_in(path: Path | None, error: BaseException) -> str:
    """`, line 12`: the last line of a file in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return _at(next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None))


def file_of(cls: type | FunctionType) -> Path | None:
    """The file in which a class or a function is defined; None for one from a notebook or a prompt."""
    try:
        path = Path(inspect.getfile(cls))
    except (TypeError, OSError):
        return None
    return path if path.is_file() else None


def class_digest(cls: type) -> str:
    """A digest of the class's whole file if that is unchanged since the import, otherwise of the class itself.

    Values that a class defined inside a function takes from that function are added, because they are not in the file.
    """
    if MADE_BY in vars(cls):
        return digest(_of_function(vars(cls)[MADE_BY]))
    content = _unchanged_file(cls)
    return digest((_described(cls) if content is None else content) + _enclosed(cls))


def _of_function(made_by: Any) -> bytes:
    """The unchanged file of a function that builds a mixer, or else its code and that of the classes that it names.

    What a `functools.partial` fills in counts, too.
    """
    if isinstance(made_by, partial):
        given, func = (*made_by.args, *sorted(made_by.keywords.items())), made_by.func
        inner = class_digest(func).encode() if isinstance(func, type) else _of_function(func)
        return inner + repr([getattr(each, "__qualname__", each) for each in given]).encode()
    code, path = made_by.__code__, file_of(made_by)
    with suppress(OSError, SyntaxError, ValueError):
        content = b"" if path is None else path.read_bytes()
        if code in _inside(compile(content, str(path), "exec", dont_inherit=True)):
            return content
    named = [made_by.__globals__.get(name) for name in code.co_names]
    classes = [_described(each) for each in named if isinstance(each, type)]
    return repr((_code(code), made_by.__defaults__, made_by.__kwdefaults__, classes)).encode()


def _unchanged_file(cls: type) -> bytes | None:
    """The content of the class's file; None if the file or the class's code has changed since the import."""
    path = file_of(cls)
    if path is None:
        return None
    try:
        content = path.read_bytes()
        known = set(_inside(compile(content, str(path), "exec", dont_inherit=True)))
    except (OSError, SyntaxError, ValueError):
        return None
    named = any(code.co_name == cls.__name__ for code in known)
    return content if named and all(method.__code__ in known for method in _methods(cls)) else None


def _described(cls: type) -> bytes:
    """A description of a class without a file: bytecode, defaults and plain attributes, also of its custom bases."""
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] not in LIBRARIES]
    parts: list[Any] = []
    for base in bases:
        for name, value in vars(base).items():
            if isinstance(value, FunctionType):
                parts.append((name, _code(value.__code__), value.__defaults__, value.__kwdefaults__))
            elif isinstance(value, bool | int | float | str | tuple) and name not in ("__module__", "__firstlineno__"):
                parts.append((name, value))
    return repr(parts).encode()


def _enclosed(cls: type) -> bytes:
    cells = [(method.__code__.co_freevars, method.__closure__ or ()) for method in _methods(cls)]
    pairs = [(name, cell) for names, closure in cells for name, cell in zip(names, closure, strict=True)]
    found = [(name, cell.cell_contents) for name, cell in pairs if name != "__class__"]
    return repr(found).encode() if found else b""


def _methods(cls: type) -> list[FunctionType]:
    return [value for value in vars(cls).values() if isinstance(value, FunctionType)]


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inside(constant)


def _code(code: CodeType) -> Any:
    """Code without file and line numbers; sets are sorted, because their order differs between processes."""
    constants = [
        _code(each) if isinstance(each, CodeType) else sorted(map(repr, each)) if isinstance(each, frozenset) else each
        for each in code.co_consts
    ]
    return code.co_name, code.co_code, code.co_names, code.co_varnames, constants


def _at(line: int | None) -> str:
    return "" if line is None else f", line {line}"


class Source(NamedTuple):
    """The file and the class of a custom mixer."""

    path: Path
    cls: str

    @classmethod
    def read(cls, text: str) -> Source:
        """Parse `path/to/file.py:Class`; the class may be left out if the file has only one torch module."""
        path, colon, name = text.rpartition(":")
        if colon and path and name.isidentifier():
            return cls(Path(path).expanduser(), name)
        if text.endswith(".py"):
            there = modules_in(load_file(Path(text).expanduser()))
            if len(there) == 1:
                return cls(Path(text).expanduser(), there[0])
            names = ", ".join(there) or "none"
            raise UserError(f"name a class in the file, {text}:MyMixer; torch modules there: {names}.")
        raise UserError(f"name a file and a class in it, path/to/file.py:MyMixer (got {text!r}).")

    @property
    def name(self) -> str:
        """The name under which this mixer is registered, found without executing anything."""
        return f"{self.cls}{MARK}{digest(read_file(self.path))}"

    def load(self) -> type[nn.Module]:
        """Execute the file, and return the class, or a class that stands for the function with this name."""
        module = load_file(self.path)
        found = vars(module).get(self.cls)
        if found is None:
            raise UnknownName(f"torch module in {self.path}", self.cls, modules_in(module))
        return checked(found, f"{self.cls} in {self.path}", self.cls)

    def __str__(self) -> str:
        return f"{self.path.absolute()}:{self.cls}"


class OwnMixers:
    """The mixers in the files that MECHEVAL_MIXERS lists, as a source for a registry."""

    def names(self) -> list[str]:
        return [source.name for source in sources() if source.path.is_file()]

    def find(self, name: str) -> type[nn.Module] | None:
        """Load the mixer of this name; None for a name without a digest."""
        cls, mark, _ = name.rpartition(MARK)
        if not mark:
            return None
        here = [source for source in sources() if source.cls == cls]
        for source in here:
            if source.name == name:
                return source.load()
        if here:
            now = f"it is {here[-1].name} now"
            raise UserError(f"mixer {name!r} cannot be loaded: {here[-1].path} has changed since ({now}).")
        raise UserError(f"mixer {name!r} is a custom mixer; to load it, set {VARIABLE}=path/to/file.py:{cls}.")


def sources() -> list[Source]:
    """The mixers that MECHEVAL_MIXERS lists."""
    text, place, found = os.environ.get(VARIABLE, ""), 0, []
    while text[place:].strip(" ,"):
        entry = _ENTRY.match(text, place)
        if entry is None:
            raise UserError(f"{VARIABLE} lists path/to/file.py:MyMixer, comma-separated (got {text!r}).")
        found.append(Source(Path(entry[1]).expanduser(), entry[2]))
        place = entry.end()
    return found


def announce(source: Source) -> None:
    """Make a mixer known to this process and to those that it starts."""
    os.environ[VARIABLE] = ",".join(dict.fromkeys(str(each) for each in (*sources(), source)))


def announced(pattern: str) -> str:
    """Announce every file.py:Class in a mixer or pattern of layers, and return the pattern with their names instead."""

    def name(found: re.Match[str]) -> str:
        source = Source.read(found[0])
        announce(source)
        return source.name

    if len(pattern) > LONGEST_PATTERN:
        raise UserError(f"a mixer has at most {LONGEST_PATTERN:,} characters (got {len(pattern):,}).")
    return _IN_PATTERN.sub(name, pattern)


def environment() -> dict[str, str]:
    """The environment variables by which another process finds the same mixers, with absolute paths."""
    listed = ",".join(str(source) for source in sources())
    return {VARIABLE: listed} if listed else {}


def own_name(cls: type[nn.Module]) -> str:
    """The name of a class, which is that by its file if the file is unchanged."""
    return f"{cls.__name__}{MARK}{class_digest(cls)}"


def as_class(made_by: Callable[..., Any], name: str) -> type[nn.Module]:
    """A class that stands for a function: called like it, it returns what the function returns.

    So everything that takes a mixer takes one kind of thing, whose name and arguments it can ask for.
    """
    from torch import nn

    def new(cls: type, **given: Any) -> Any:
        return made_by(**given)

    inner = getattr(made_by, "func", made_by)  # partials of partials are flat
    own = {"positions": inner.positions} if hasattr(inner, "positions") else {}
    module = getattr(inner, "__module__", None) or "__main__"
    return type(name, (nn.Module,), {"__new__": new, "__module__": module, MADE_BY: made_by, **own})


def checked(given: object, what: str, name: str | None = None) -> type[nn.Module]:
    """Return a torch module class, also for a function that builds one, or raise an error that says what was given."""
    from torch import nn

    if isinstance(given, nn.Module):
        cls = type(given).__name__
        raise UserError(
            f"{what} is a mixer that is built already, and models of several widths need their own; give its class "
            f"{cls}, or a function that builds one: def make(d_model): return {cls}(...)."
        )
    if isinstance(given, partial | FunctionType):
        own = str(getattr(getattr(given, "func", given), "__name__", "")).strip("<>")
        given = as_class(given, name or own or "make")
    if not isinstance(given, type):
        kind = type(given).__name__
        raise UserError(f"{what} is of type {kind}; give a torch module class, or a function that builds one.")
    if not issubclass(given, nn.Module):
        raise UserError(f"{what} is not a torch module; write `class {given.__name__}(torch.nn.Module)`.")
    if not given.__name__.isidentifier():  # the name becomes part of file names and pages
        raise UserError(f"{what}: its class must have a Python name (got {given.__name__!r}).")
    return given
