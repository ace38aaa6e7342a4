"""Registries of classes by name, to which other packages can add theirs through entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, Protocol, TypeVar

from mecheval.errors import UnknownName, UserError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Elsewhere(Protocol[T_co]):
    """Another source of classes by name, besides entry points."""

    def names(self) -> list[str]:
        """All names, without loading anything."""

    def find(self, name: str) -> T_co | None:
        """The class called `name`, or None if there is no such class."""


class Registry(Generic[T]):
    """The classes of one kind, by name.

    `group` is the entry-point group that other packages use, e.g. in their pyproject.toml::

        [project.entry-points."mecheval.mixers"]
        retnet = "their_package:RetNet"

    An entry point is loaded only when its name is asked for, so that a broken plug-in does no harm elsewhere. The same
    holds for `built_in`, name -> "module:attribute", because these may be slow to import.
    """

    def __init__(
        self, kind: str, group: str, elsewhere: Elsewhere[T] | None = None, built_in: Mapping[str, str] = {}
    ) -> None:
        self.kind, self.group, self._elsewhere, self._built_in = kind, group, elsewhere, built_in
        self._classes: dict[str, T] = {}
        self._found: dict[str, T] = {}  # from `elsewhere`; listed only as long as they are there

    def register(self, name: str) -> Callable[[T], T]:
        """Class decorator: `@TASKS.register("ar")`."""

        def add(cls: T) -> T:
            if name in self._built_in or (name in self._classes and self._classes[name] is not cls):
                raise UserError(f"{self.kind} {name!r} is already registered by {self.get(name)!r}.")
            self._classes[name] = cls
            return cls

        return add

    def replace(self, name: str, cls: T) -> None:
        """Register a class in place of any other with this name."""
        self._classes[name] = cls

    def registered(self) -> list[str]:
        """The built-in and registered names, without those of entry points."""
        return [*self._built_in, *self._classes]

    def names(self) -> list[str]:
        """All names, sorted: built in, registered, from entry points and from elsewhere."""
        others = [] if self._elsewhere is None else self._elsewhere.names()
        return sorted(
            {*self._built_in, *self._classes, *(point.name for point in entry_points(group=self.group)), *others}
        )

    def loadable(self) -> tuple[dict[str, T], list[UserError]]:
        """All classes that load, by name, and the errors of those that do not."""
        found, problems = {}, []
        for name in self.names():
            try:
                found[name] = self.get(name)
            except UserError as error:
                problems.append(error)
        return found, problems

    def get(self, name: str) -> T:
        """The class called `name`; an unknown name is an error that lists the choices."""
        if name not in self._classes and name in self._built_in:
            module, _, attribute = self._built_in[name].partition(":")
            self._classes[name] = getattr(import_module(module), attribute)
        if name not in self._classes and name not in self._found:  # reading all entry points is slow
            for point in entry_points(group=self.group, name=name):
                try:
                    self._classes[name] = point.load()
                except Exception as error:
                    raise UserError(f"{self.kind} {name!r} could not be loaded from {point.value}: {error}") from error
                break
            else:
                self._found[name] = self._from_elsewhere(name)
        return self._classes[name] if name in self._classes else self._found[name]

    def _from_elsewhere(self, name: str) -> T:
        found = None if self._elsewhere is None else self._elsewhere.find(name)
        if found is None:
            raise UnknownName(self.kind, name, self.names())
        return found
