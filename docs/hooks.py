"""What the site has beyond the files in docs: every command's help, and the two pages that live above docs.

Run by `mkdocs build` (`hooks` in mkdocs.yml), so that none of it can be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ABOVE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that a reader of the repository looks for at its top: file -> page of the site."""
COMMANDS = "<!-- every command -->"
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<to>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that live above docs."""
    for name, page in ABOVE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the commands, and follow links that leave docs."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, "\n".join(command_pages()))
    here = Path(page.file.src_uri).parent
    return LINK.sub(lambda link: _inside(link, here), markdown)


def _inside(link: re.Match[str], here: Path) -> str:
    """A link out of docs: to one of the pages above, else only its text, because the site has no such file."""
    outside = re.fullmatch(r"(?:\.\./)+(?P<path>.+)", link["to"])
    if outside is None or link["to"].count("../") <= len(here.parts):
        return link[0]
    page = ABOVE.get(outside["path"])
    return f"[{link['text']}]({'../' * len(here.parts)}{page}{link['anchor'] or ''})" if page else link["text"]


def command_pages() -> Iterator[str]:
    """A section for every command: what it does, how it is called, its arguments and options."""
    from mecheval.cli.commands import tree

    yield from _sections(tree(), "mecheval")


def _sections(command: Any, words: str) -> Iterator[str]:
    context = command.context_class(command, info_name=words)
    children = getattr(command, "commands", {})
    if not children:
        yield f"\n## {words}\n\n{_text(command.help)}\n"
        yield f"```console\n$ {words} {' '.join(command.collect_usage_pieces(context))}\n```\n"
        yield from ("| argument or option | meaning |", "|---|---|")
        records = [each.get_help_record(context) for each in command.params if not each.hidden]
        yield from (f"| `{_cell(name)}` | {_cell(_text(meaning))} |" for name, meaning in records)
    for name, child in children.items():
        yield from _sections(child, f"{words} {name}")


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
