"""A user's own mixer: a class in a file, registered under a name that carries a digest of its source.

A run is named by its config and never trained twice, but a mixer changes while someone works on it. As
`MyMixer@3f9a2c1b`, an edited file is another mixer, and its runs stand beside those of the one before.

Other processes find such mixers through the environment: MECHEVAL_MIXERS=path/to/file.py:MyMixer, more of them with
commas between. Only files that are named there, or to a command, are ever executed; what a store says never is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mecheval.errors import UnknownName, UserError
from mecheval.mixers.sourcecode import class_digest, digest, load_file, modules_in, read_file

if TYPE_CHECKING:  # slow to import
    from torch import nn

VARIABLE = "MECHEVAL_MIXERS"
MARK = "@"
_ENTRY = re.compile(r"\s*(.+?):([^\W\d]\w*)\s*(?:,|$)")
"""file.py:Class. A comma ends an entry only after a class, so paths may hold commas and colons."""


class Source(NamedTuple):
    """Where a mixer is written."""

    path: Path
    cls: str

    @classmethod
    def read(cls, text: str) -> Source:
        """From `path/to/file.py:Class`."""
        path, colon, name = text.rpartition(":")
        if colon and path and name.isidentifier():
            return cls(Path(path).expanduser(), name)
        if text.endswith(".py"):
            there = ", ".join(modules_in(load_file(Path(text).expanduser()))) or "none"
            raise UserError(f"name a class in the file, {text}:MyMixer; torch modules there: {there}.")
        raise UserError(f"name a file and a class in it, path/to/file.py:MyMixer (got {text!r}).")

    @property
    def name(self) -> str:
        """The name under which this mixer is registered; nothing is executed to know it."""
        return f"{self.cls}{MARK}{digest(read_file(self.path))}"

    def load(self) -> type[nn.Module]:
        """The class. This executes the file."""
        module = load_file(self.path)
        found = vars(module).get(self.cls)
        if found is None:
            raise UnknownName(f"torch module in {self.path}", self.cls, modules_in(module))
        return checked(found, f"{self.cls} in {self.path}")

    def __str__(self) -> str:
        return f"{self.path.absolute()}:{self.cls}"


class OwnMixers:
    """The mixers of the files in MECHEVAL_MIXERS, as a place where a registry looks."""

    def names(self) -> list[str]:
        """Of the files that are there."""
        return [source.name for source in sources() if source.path.is_file()]

    def find(self, name: str) -> type[nn.Module] | None:
        """Load the one of this name; None for a name that is not of this kind."""
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
        raise UserError(f"mixer {name!r} is someone's own; to load it, set {VARIABLE}=path/to/file.py:{cls}.")


def sources() -> list[Source]:
    """What MECHEVAL_MIXERS lists."""
    text, place, found = os.environ.get(VARIABLE, ""), 0, []
    while text[place:].strip(" ,"):
        entry = _ENTRY.match(text, place)
        if entry is None:
            raise UserError(f"{VARIABLE} lists path/to/file.py:MyMixer, with commas between (got {text!r}).")
        found.append(Source(Path(entry[1]).expanduser(), entry[2]))
        place = entry.end()
    return found


def announce(source: Source) -> None:
    """Have this process, and those that it starts, find the mixer."""
    os.environ[VARIABLE] = ",".join(dict.fromkeys(str(each) for each in (*sources(), source)))


def environment() -> dict[str, str]:
    """What a process elsewhere needs in its environment to find the same mixers: absolute paths."""
    listed = ",".join(str(source) for source in sources())
    return {VARIABLE: listed} if listed else {}


def own_name(cls: type[nn.Module]) -> str:
    """The name for a class at hand; the same as for its file, where the class is what the file says now."""
    return f"{cls.__name__}{MARK}{class_digest(cls)}"


def checked(given: object, what: str) -> type[nn.Module]:
    """A torch module class, or an error that says what it is instead."""
    from torch import nn

    if not isinstance(given, type):
        raise UserError(f"{what} is no class, but of type {type(given).__name__}; give a torch module class.")
    if not issubclass(given, nn.Module):
        raise UserError(f"{what} is not a torch module; write `class {given.__name__}(torch.nn.Module)`.")
    if not given.__name__.isidentifier():  # it becomes part of names and pages
        raise UserError(f"{what}: its class must have a Python name (got {given.__name__!r}).")
    return given
