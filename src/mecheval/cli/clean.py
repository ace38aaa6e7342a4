r"""Text on its way to a terminal: nothing in a store, a file or an option can control the terminal.

Escape sequences move the cursor, rename the window, hide text or make links; direction marks reorder text, and
invisible characters make different names look alike. All of them are printed as Python would write them (`\x1b`,
`\u202e`), and only this module does that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from contextlib import suppress

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_UNSAFE = (
    "\0-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\U000e0000-\U000e007f"
)
"""Control characters except the newline, direction marks, line separators, invisible characters, and surrogates."""
_PATTERN = re.compile(f"[{_UNSAFE}]")
LONGEST = 2000
"""Largest number of characters in an error message."""


def clean_text(text: str) -> str:
    """`text` without any character that controls a terminal; newlines stay."""
    return _PATTERN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def complain(text: str) -> None:
    """Print on standard error, in one line, what is wrong."""
    line = clean_text(" ".join(text[:LONGEST].split("\n"))) + ("…" if len(text) > LONGEST else "")
    with suppress(OSError):  # there is nobody to tell, or no room
        sys.stderr.write(f"mecheval: {line}\n")
        sys.stderr.flush()


def write(text: str) -> None:
    """Write to standard output: cleaned in a terminal, and unchanged in a pipe or file."""
    sys.stdout.write(clean_text(text) if sys.stdout.isatty() else text)


class CleanConsole(Console):
    """A console that cleans all text; what rich itself adds, such as colours, stays."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The cleaned segments of anything that is printed, at any depth."""
        for segment in super().render(renderable, options):
            if segment.control is None and _PATTERN.search(segment.text):
                yield Segment(clean_text(segment.text), segment.style)
            else:
                yield segment
