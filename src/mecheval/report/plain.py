"""Tables and numbers as small plain data: what a page holds, it holds as text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mecheval.studies.axes import ordered, plain, say

if TYPE_CHECKING:  # slow to import
    import pandas as pd

DIGITS = 4
"""Significant digits of a number in the page: more than anyone reads."""
EXACT = 17
"""Digits with which a number is itself again."""
ESCAPED = {sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
"""What could end a script element, or a line of it; in JSON text these signs are only ever inside strings."""


def tidy(value: Any, digits: int = DIGITS) -> Any:
    """The same with short numbers; None for what is not a finite one, at any depth."""
    if value is None or type(value) in (str, int, bool):
        return value
    if type(value) is float:
        return _short(value, digits)
    if isinstance(value, Mapping):
        return {str(name): tidy(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [tidy(each, digits) for each in value]
    value = plain(value)
    return _short(value, digits) if isinstance(value, float) else value


def _short(value: float, digits: int) -> float | int | None:
    """3 for 3.0, which is one sign instead of three."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 2**53 else short


def text_of(data: Any) -> str:
    """JSON that can stand inside a script element of a page, whatever texts are in it."""
    text = json.dumps(tidy(data, EXACT), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, written in ESCAPED.items():
        text = text.replace(sign, written)
    return text.encode("utf-8", "replace").decode()


def levels(axis: str, values: Sequence[Any]) -> dict[str, Any]:
    """A column of few different values: their texts in the order of charts, and the number of each row's."""
    there = ordered(axis, values)
    return {"levels": [say(axis, value) for value in there], "codes": [there.index(plain(value)) for value in values]}


def columns(frame: pd.DataFrame, names: Iterable[str]) -> dict[str, list[Any]]:
    """Columns of a table as lists: names are written once, and not in every row."""
    return {name: [tidy(value) for value in frame[name]] for name in names}
