"""Errors that a user can cause: one line each, with the choices if there are any."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T", bound=BaseModel)

SHOWN = 80
"""Largest number of characters of a user's value that an error repeats."""
FEW, MANY = 50, 10_000
"""Largest numbers of choices that an error lists, and that it searches for a similar name."""


SIMILAR, SHORT = 0.72, 4
"""Smallest similarity, from 0 to 1, of a name that is suggested: `threads` (0.71) is none for `n_heads`.

For names of up to `SHORT` letters it is a half, because one wrong letter of few counts much.
"""


class UserError(ValueError):
    """A user's mistake; the command line prints it without a traceback and exits with code 2."""


class UnknownName(UserError):
    """A name that is not among the choices."""

    def __init__(self, kind: str, name: str, choices: Iterable[str]) -> None:
        self.kind, self.name, self.choices = kind, name, sorted(choices)
        known = {choice.lower(): choice for choice in self.choices[:MANY]}
        given = name[:SHOWN].lower()
        words = [each for each in known if given in each.split("_")[1:]]  # `num_heads` for `heads`
        near = words[:1] or difflib.get_close_matches(given, known, n=1, cutoff=SIMILAR if len(given) > SHORT else 0.5)
        hint = f" Did you mean {known[near[0]]!r}?" if near else ""
        super().__init__(f"unknown {kind} {shown(name)}.{hint} Choices: {_listed(self.choices) or 'none'}.")


def said(error: BaseException) -> str:
    """An error in one line: `ValueError: the message`."""
    return f"{type(error).__name__}: {in_one_line(error)}"


def in_one_line(error: BaseException) -> str:
    """The message of an error without its line breaks."""
    return " ".join(str(error).split())


def parse_options(model: type[T], owner: str, values: dict[str, Any]) -> T:
    """Build `model` from `values`; the first mistake becomes one clear line about `owner`."""
    for name in values:
        if name not in model.model_fields:
            raise UnknownName(f"option of {owner}", name, model.model_fields)
    try:
        return model(**values)
    except ValidationError as error:
        raise UserError(f"{owner}: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if not where or isinstance(problem.get("ctx", {}).get("error"), UserError):
        return message
    return f"{where}: {message[0].lower()}{message[1:]} (got {shown(problem['input'])})"


def shown(value: Any) -> str:
    """A user's value as an error repeats it: its `repr`, truncated."""
    if isinstance(value, str | bytes | list | tuple):
        value = value[:SHOWN]  # so that `repr` need not write out all of it
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with thousands of digits, or a deeply nested list
        return f"a {type(value).__name__} too long to show"
    return text if len(text) < SHOWN else text[: SHOWN - 3] + "..."


def _listed(choices: Sequence[str]) -> str:
    more = f", and {len(choices) - FEW:,} more" if len(choices) > FEW else ""
    return ", ".join(choice if len(choice) < SHOWN else shown(choice) for choice in choices[:FEW]) + more
