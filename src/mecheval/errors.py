"""Errors that a user can cause: each is one line that names the choices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T", bound=BaseModel)


class UserError(ValueError):
    """A mistake in what the user asked for; the command line prints it without a traceback, exit code 2."""


class UnknownName(UserError):
    """A name that is not among the choices."""

    def __init__(self, kind: str, name: str, choices: Iterable[str]) -> None:
        self.kind, self.name, self.choices = kind, name, sorted(choices)
        near = difflib.get_close_matches(name, self.choices, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Choices: {', '.join(self.choices) or 'none'}.")


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
    got = repr(problem["input"])
    return f"{where}: {message[0].lower()}{message[1:]} (got {got if len(got) < 80 else got[:77] + '...'})"
