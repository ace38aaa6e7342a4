"""Plain data from text: YAML and JSON, read safely, strictly and in bounded time and memory.

The result consists of text, numbers, true, false, null, lists and dictionaries. 3e-3 is a number, a date or
time is text, and a name that is given twice is an error. YAML is built from its parser's events, one by one: there is
no recursion, and no object that a tag could ask for.
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from mecheval.errors import UserError, in_one_line, shown

MAX_BYTES = {"YAML": 1 << 24, "JSON": 1 << 26}
"""Largest size in bytes of a file, which is read in a few seconds; a grammar with 8,192 terminals fits."""
MAX_VALUES = {"YAML": 800_000, "JSON": 1_200_000}
"""Largest number of values (texts, numbers, lists, ...) in a file, with every alias written out."""
MAX_DEPTH = 100
"""Largest depth of nested lists and mappings."""
MAX_DIGITS = 100
"""Largest number of characters in a number, so that it still fits a float and Python converts it quickly."""

_YAML = "tag:yaml.org,2002:"
_PLAIN = [f"{_YAML}{kind}" for kind in ("null", "bool", "int", "float")]
_RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = {
    first: [(tag, pattern) for tag, pattern in known if tag in _PLAIN]
    for first, known in Resolver.yaml_implicit_resolvers.items()
}
"""Patterns of plain scalars, by their first character: those of YAML 1.1 without dates, times and merge keys."""
for _first in "-+0123456789":
    _RESOLVERS[_first].append((f"{_YAML}float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")))
_CONSTRUCTOR: Any = SafeConstructor()


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    data = load_file(path, "YAML")
    if not isinstance(data, dict):
        raise UserError(f"{path} must contain a mapping of names to values (got {type(data).__name__}).")
    return data


def load_file(path: str | Path, kind: str) -> Any:
    """The data in a file of kind "YAML" or "JSON"; every problem is an error that names the file."""
    text = read_text(path, MAX_BYTES[kind])
    try:
        return parse_yaml(text) if kind == "YAML" else parse_json(text)
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is not {kind}: {in_one_line(error)}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_text(path: str | Path, most: int) -> str:
    """The text (UTF-8) of a regular file of at most `most` bytes; a pipe or a device could be endless."""
    if "\0" in str(path):
        raise UserError(f"cannot read {shown(str(path))}: no file has a zero byte in its name.")
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise UserError(f"cannot read {path}: it is not a regular file.")
        # Some files in /proc count as regular but have nothing to read yet; the reader must not wait for them.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from None
    if content is None:
        raise UserError(f"cannot read {path}: there is nothing to read yet.")
    if len(content) > most:
        raise UserError(f"cannot read {path}: it is larger than {most >> 20} MB.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text.") from None


def parse_json(text: str) -> Any:
    """The data that JSON describes."""
    try:
        data = json.loads(text, parse_int=lambda digits: int(_short(digits)))
    except RecursionError:
        raise UserError(f"it is nested more than {MAX_DEPTH} deep.") from None
    level, depth, count = [data], 0, 0
    while level:
        depth, count = depth + 1, count + len(level)
        if depth > MAX_DEPTH:
            raise UserError(f"it is nested more than {MAX_DEPTH} deep.")
        if count > MAX_VALUES["JSON"]:
            raise UserError(f"it holds more than {MAX_VALUES['JSON']:,} values.")
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [value for values in inner for value in values]
    return data


def parse_yaml(text: str) -> Any:
    """The data that YAML describes; raises `yaml.YAMLError` if it is not YAML, and `UserError` beyond the limits."""
    builder = _Builder()
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is six times as fast
    line = 1
    try:
        for event in yaml.parse(text, Loader=loader):
            line = 1 if event.start_mark is None else event.start_mark.line + 1
            builder.take(event)
    except UnicodeEncodeError:
        raise UserError("it contains half a character (a surrogate).") from None
    except UserError as error:
        raise UserError(f"line {line}: {error}") from None
    return builder.result


@dataclass
class _Open:
    """A list or mapping that has begun and not ended."""

    value: list[Any] | dict[Any, Any]
    anchor: str | None
    size: int = 1
    key: tuple[Any, ...] = ()  # the name whose value comes next


@dataclass
class _Builder:
    """Turns the events of a YAML parser into data."""

    result: Any = None
    documents: int = 0
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str | None, tuple[Any, int]] = field(default_factory=dict)

    def take(self, event: yaml.Event) -> None:
        """Process the next event; raises a `UserError` if it is not allowed."""
        if isinstance(event, yaml.ScalarEvent):
            self._add(_scalar(event), 1, event.anchor)
        elif isinstance(event, yaml.CollectionStartEvent):
            is_list = isinstance(event, yaml.SequenceStartEvent)
            if event.tag not in (None, "!", f"{_YAML}{'seq' if is_list else 'map'}"):
                raise UserError(f"the tag {event.tag} is not allowed.")
            if len(self.stack) >= MAX_DEPTH:
                raise UserError(f"it is nested more than {MAX_DEPTH} deep.")
            self.stack.append(_Open([] if is_list else {}, event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self.stack.pop()
            self._add(done.value, done.size, done.anchor)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise UserError(f"the alias *{event.anchor} does not refer to an earlier value.")
            self._add(*self.anchors[event.anchor])
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise UserError("a second document begins; there can be only one.")

    def _add(self, value: Any, size: int, anchor: str | None = None) -> None:
        if anchor is not None:
            self.anchors[anchor] = value, size
        if not self.stack:
            self.result = value
            return
        parent = self.stack[-1]
        parent.size += size
        if parent.size > MAX_VALUES["YAML"]:
            raise UserError(f"it holds more than {MAX_VALUES['YAML']:,} values.")
        if isinstance(parent.value, list):
            parent.value.append(value)
        elif parent.key:
            parent.value[parent.key[0]], parent.key = value, ()
        elif isinstance(value, list | dict):
            raise UserError("a list or mapping cannot be a name.")
        elif value in parent.value:
            raise UserError(f"{shown(value)} is given twice")
        else:
            parent.key = (value,)


def _scalar(event: yaml.ScalarEvent) -> Any:
    """The value of a scalar: text, a number, true, false or null."""
    text: str = event.value
    tag = event.tag
    if tag is None and event.implicit[0] and ":" not in text:  # YAML 1.1 would read 1:30 as 90
        known = _RESOLVERS.get(text[:1], ())
        tag = next((resolved for resolved, pattern in known if pattern.match(text)), None)
    if tag in (None, "!", f"{_YAML}str"):
        return text
    if tag not in _PLAIN:
        raise UserError(f"the tag {tag} is not allowed.")
    kind, number = tag.removeprefix(_YAML), _short(text)
    if kind == "int" and number.isdigit() and number[0] != "0":
        return int(number)
    if kind == "float":
        with suppress(ValueError):  # .inf and .nan are only YAML's
            return float(number)
    try:
        return getattr(_CONSTRUCTOR, f"construct_yaml_{kind}")(yaml.ScalarNode(tag, number))
    except (ValueError, KeyError, IndexError):
        raise UserError(f"{shown(text)} is no {kind}.") from None


def _short(text: str) -> str:
    """The text itself, or an error if it is too long for a number."""
    if len(text) > MAX_DIGITS:
        raise UserError(f"a number has more than {MAX_DIGITS} digits.")
    return text


def parse_value(text: str) -> Any:
    """An option's value: a number, true, false, null or list as YAML reads it (3e-3 too); anything else is text."""
    try:
        if text.isascii():
            if re.fullmatch(r"\s*[-+]?[0-9_]+\s*", text):
                _short(text)
            for kind in (int, float):
                with suppress(ValueError):
                    return kind(text)
        return parse_yaml(text)
    except yaml.YAMLError:
        return text
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')} (got {shown(text)}).") from None


class _Dumper(yaml.SafeDumper):
    """Writes names below each other, lists on one line, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def dump_yaml(data: dict[str, Any]) -> str:
    """`data` as YAML, in the given order."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text
