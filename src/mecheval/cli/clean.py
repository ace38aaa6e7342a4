r"""Text on its way to a terminal: whatever a store, a file or an option says, it never commands the terminal.

Escape sequences move the cursor, rename the window, hide text or make links; marks of writing direction show text in
another order than it has. All of them are written as Python would (`\x1b`, `\u202e`), here and nowhere else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_UNSAFE = "\0-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
"""Control characters but the newline, marks of direction, separators of lines, and halves of characters."""
_PATTERN = re.compile(f"[{_UNSAFE}]")
LONGEST = 2000
"""Most characters of an error."""


def clean_text(text: str) -> str:
    """`text` without any character that a terminal would obey; newlines stay."""
    return _PATTERN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def complain(text: str) -> None:
    """Say in one line on standard error what is wrong."""
    line = clean_text(" ".join(text[:LONGEST].split("\n"))) + ("…" if len(text) > LONGEST else "")
    sys.stderr.write(f"mecheval: {line}\n")


def write(text: str) -> None:
    """Write to standard output; to a terminal, cleanly, and otherwise as it is, for machines."""
    sys.stdout.write(clean_text(text) if sys.stdout.isatty() else text)


class CleanConsole(Console):
    """A console that cleans all text; what rich itself adds, such as colours, is kept apart and stays."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of anything that is printed, also of what is inside something else."""
        for segment in super().render(renderable, options):
            if segment.control is None and _PATTERN.search(segment.text):
                yield Segment(clean_text(segment.text), segment.style)
            else:
                yield segment
