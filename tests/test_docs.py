"""What the documentation says is true: links lead somewhere, examples run, commands exist, the site builds."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import mecheval as me
from commands import Command
from docs.tables import filled, sizes
from mecheval.cli.commands import tree
from mecheval.cli.options import given_options
from mecheval.cli.show.lists import MEASURED
from mecheval.config.presets import place
from mecheval.errors import UnknownName
from mecheval.mixers import MIXERS
from mecheval.store.published import pretrained_files, pretrained_origin
from mecheval.store.schema import TABLES
from mecheval.studies import STUDIES, scales, study_points
from mecheval.sweep import Job, LocalEngine, work
from mecheval.sweep.job import Report
from mecheval.sweep.ray_engine import RayEngine
from mecheval.sweep.ray_join import Connection
from mecheval.tasks import TASKS

ROOT = Path(__file__).parents[1]
PATTERNS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "docs/**/*.md")
PAGES = sorted(str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern))

LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
COMMAND = re.compile(r'^(?:\$ )?((?:mecheval|make)(?: (?:[^"\n]|"[^"]*")*)?)$', re.MULTILINE)
"""A line of ours; what is quoted may go on in the next."""
REFERENCE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
COLUMNS = "<!-- columns: checked against store/schema.py -->\n"
TEXT = re.compile(r">([^<>]+)</text>")
"""What a picture says, word for word."""
RUN = re.compile(r"\brun (?:= ')?([0-9a-f]{12})\b")
ELLIPSES = ("...", "…")
SHELL = ("|", ">", "&&", ";")
"""What ends a command of ours in a line."""


@dataclass(frozen=True)
class Page:
    """A page taken apart: its text without code, its code by language, its headings."""

    prose: str
    blocks: tuple[tuple[str, str], ...]  # language, text; indented code has none
    headings: tuple[str, ...]

    @property
    def python(self) -> list[str]:
        return [text for language, text in self.blocks if language == "python"]

    @property
    def anchors(self) -> set[str]:
        return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower())) for heading in self.headings} | {
            *REFERENCE.findall(self.prose)
        }


@cache
def read(name: str) -> Page:
    prose, blocks = [], []
    code: list[str] = []
    language: str | None = None
    for line in (ROOT / name).read_text().splitlines():
        if language is None and line.startswith("```"):
            language, code = line[3:].strip(), []
        elif language is not None and line.rstrip() == "```":
            blocks.append((language, "\n".join(code)))
            language = None
        elif language is not None:
            code.append(line)
        elif line.startswith("    "):
            blocks.append(("", line.strip()))
        else:
            prose.append(line)
    assert language is None, f"{name}: a code block is not closed"
    headings = [line.lstrip("#").strip() for line in prose if re.match(r"#+ ", line)]
    return Page("\n".join(prose), tuple(blocks), tuple(headings))


def has(name: str, part: Callable[[Page], object]) -> bool:
    return bool(part(read(name)))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    text = re.sub(r"`[^`\n]*`", "", read(name).prose)
    for target in (link or tag for link, tag in LINK.findall(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / name).parent / path if path else ROOT / name
        assert there.exists(), f"{name}: no file {target}"
        if anchor:
            assert anchor in read(os.path.relpath(there, ROOT)).anchors, f"{name}: no heading {target}"


def without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "join", lambda connection: None)
    monkeypatch.setattr(RayEngine, "room", lambda engine, threads: 2)


def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(engine: LocalEngine, jobs: list[Job], store: str, report: Report) -> None:
        for job in jobs:
            work(job, store, report)

    monkeypatch.setattr(LocalEngine, "run", run)  # each would import torch first


def at_a_tiny_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"pairs": 2, "keys": 8, "values": 8, "queries": 1, "batch_size": 4, "steps": 2, "evaluate.documents": 8}
    monkeypatch.setattr(scales, "BASE", {**scales.BASE, ("ar", "laptop"): {"preset": "laptop", **sizes}})
    monkeypatch.setattr(scales, "WIDTHS", {**scales.WIDTHS, ("ar", "laptop"): (16,)})
    without_workers(monkeypatch)


def with_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"pairs": 2, "keys": 8, "values": 8, "queries": 1, "d_model": 8, "steps": 2, "evaluate.documents": 8}
    me.train(me.run_config("ar", "attention", "laptop", **sizes), "mecheval-store")


BEFORE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "docs/how-to/cluster.md": without_a_cluster,
    "docs/how-to/own-mixer.md": at_a_tiny_scale,
    "docs/how-to/own-study.md": without_workers,
    "docs/how-to/report.md": with_a_run,
    "docs/how-to/store.md": with_a_run,
    "docs/how-to/trained-model.md": at_a_tiny_scale,
    "docs/studies.md": with_a_run,
    "README.md": at_a_tiny_scale,
}
"""What a page's examples take for granted, or what would make them slow here."""
SHOWN = ("docs/tutorial.md",)
"""Pages whose Python examples print, on every machine, the lines of the block `text` below them."""


@pytest.mark.parametrize("name", [name for name in PAGES if has(name, lambda page: page.python)])
def test_python_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for registry in (TASKS, MIXERS):  # what a page registers is gone afterwards
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    if name in BEFORE:
        BEFORE[name](monkeypatch)
    names: dict[str, Any] = {"__name__": "example"}
    blocks = read(name).blocks
    for number, (language, block) in enumerate(blocks):
        if language != "python":
            continue
        exec(compile(block, f"{name}, example {number}", "exec", dont_inherit=True), names)
        printed = [line.split() for line in capsys.readouterr().out.splitlines()]
        if name in SHOWN and number + 1 < len(blocks) and blocks[number + 1][0] == "text":
            for line in blocks[number + 1][1].splitlines():
                assert line.split() in printed


QUOTED = re.compile(r"\$ mecheval ((?:intervene|explain) ar-attention\b.*)")
"""Commands on models of the package whose output the tutorial quotes; those of Mamba's would take ten seconds."""


def test_the_tutorial_quotes_what_models_of_the_package_give_everywhere(command: Command) -> None:
    shown = [block for language, block in read("docs/tutorial.md").blocks if language == "console"]
    quoted = [(found[1], block) for block in shown if (found := QUOTED.match(block))]
    assert len(quoted) == 2
    for words, block in quoted:
        _, printed, _ = command(*words.split())
        assert [line.rstrip() for line in printed.rstrip().splitlines()] == block.splitlines()[1:]


def commands(page: Page) -> Iterator[tuple[list[str], bool]]:
    """Every `mecheval ...` and `make ...` of a page as words, and whether it is whole: in the text it may be a part."""
    text = "\n".join(block for language, block in page.blocks if language not in ("python", "yaml", "toml"))
    spans = re.findall(r"`((?:mecheval|make) [^`]+)`", page.prose.replace("\n", " "))
    for line, whole in [*((line, True) for line in COMMAND.findall(text)), *((span, False) for span in spans)]:
        words = shlex.split(line, comments=True)
        end = next((i for i, word in enumerate(words) if word in SHELL), len(words))
        yield [word for word in words[:end] if word not in ELLIPSES], whole


def check_options(command: str, params: dict[str, Any], rest: list[str]) -> None:
    """Options that a command passes on, as --pairs 8, are looked up where the command looks them up."""
    for option in given_options(params.get("assignments"), rest):
        if command == "train":
            mixer = params["mixer"] or "attention"  # a file is a mixer that we do not have
            place(option, params["task"] or "ar", "attention" if ".py" in mixer else mixer)
            continue
        owner = {"sample": ("task", params.get("task_name")), "sites": ("mixer", params.get("mixer"))}
        kind, name = owner.get(command, ("task", "atr"))
        known = (TASKS if kind == "task" else MIXERS).get(name).Options.model_fields  # type: ignore[union-attr, arg-type]
        if option not in known:
            raise UnknownName(f"option of {name}", option, known)


def check_command(words: list[str]) -> None:
    """Parse a command line as the command line does, without running it."""
    command = tree()
    while hasattr(command, "commands"):
        if words[:1] in ([], ["--help"], *([option] for each in command.params for option in each.opts)):
            return
        assert words[0] in command.commands, f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    if "--help" not in words:
        context = command.make_context(command.name, list(words))
        if command.name != "evaluate":  # it passes them to a mixer that we do not have
            check_options(command.name, context.params, context.args)


@pytest.mark.parametrize("name", [name for name in PAGES if has(name, lambda page: list(commands(page)))])
def test_commands_exist_with_their_options(name: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words, whole in commands(read(name)):
        if words[0] == "make":
            assert set(words[1:]) <= set(targets), f"{name}: {' '.join(words)}"
            continue
        try:
            check_command(words[1:])
        except Exception as error:
            if type(error).__name__ == "MissingParameter" and not whole:
                continue
            raise AssertionError(f"{name}: {shlex.join(words)}: {error}") from error


def test_runs_that_pages_show_are_those_that_a_reader_gets() -> None:
    ids = {point.config.id for study in STUDIES.values() for point in study_points(study, "laptop")}
    ids |= {pretrained_origin(path)["run"] for path in pretrained_files().values()}
    shown = {run for name in PAGES for _, block in read(name).blocks for run in RUN.findall(block)}
    assert shown
    assert shown <= ids, f"{shown - ids} are not runs of the studies any more: show the outputs of new ones"


@pytest.mark.parametrize(
    ("words", "figure"),
    [
        (("paper", "ar"), "ar-paper"),
        (("paper", "atr"), "atr-paper"),
        (("mixers",), "mixers"),
    ],
)
def test_the_figures_at_the_papers_size_show_the_published_results(
    words: tuple[str, ...], figure: str, command: Command, tmp_path: Path
) -> None:
    """Only their texts are compared, because a new version of the library may draw the same chart otherwise."""
    drawn, shown = tmp_path / "drawn.svg", ROOT / f"docs/figures/{figure}.svg"
    assert command("draw", *words, "--store", str(tmp_path / "none"), "--save", str(drawn))[0] == 0
    now, then = (TEXT.findall(path.read_text()) for path in (drawn, shown))
    assert len(now) > 40
    assert now == then, "draw it anew: python docs/tables.py"


@pytest.mark.parametrize("name", [page for page in PAGES if "<!-- table " in (ROOT / page).read_text()])
def test_tables_of_results_are_those_that_come_with_the_package(name: str) -> None:
    text = (ROOT / name).read_text()
    assert filled(text) == text, "write them anew: python docs/tables.py"


def test_mixers_are_listed_with_the_sizes_that_they_have() -> None:
    assert MEASURED.read_text() == sizes(), "write them anew: python docs/tables.py"


def test_the_claims_in_the_docs_are_those_that_the_command_prints(command: Command, tmp_path: Path) -> None:
    printed = command("compare", "all", "--scale", "paper", "--markdown", "--store", str(tmp_path / "none"))[1]
    rows, (counted,) = (re.findall(pattern, printed, re.MULTILINE) for pattern in (r"^\| (.*) \|$", r"^\d+ claims .*"))
    shown = (ROOT / "docs/paper.md").read_text()
    assert len(rows) > 2
    assert counted in shown
    assert counted in (ROOT / "README.md").read_text()
    assert all(" | ".join(row.split(" | ")[:3]) in shown for row in rows if not row.startswith("---"))


def test_the_table_of_columns_is_the_schema() -> None:
    wanted = []
    for table in TABLES.values():
        rows = [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns]
        wanted += [f"\n### {table.name}\n", "| column | type | meaning |", "|---|---|---|", *rows]
    text = (ROOT / "docs/how-to/store.md").read_text()
    shown = text[text.index(COLUMNS) + len(COLUMNS) :].rstrip()
    assert shown == "\n".join(wanted), "the end of store.md should be:\n" + "\n".join(wanted)


def test_the_reference_has_every_public_name_once() -> None:
    pages = [page for page in PAGES if page.startswith("docs/reference/")]
    shown = [name for page in pages for name in REFERENCE.findall(read(page).prose)]
    public = [name.removeprefix("mecheval.") for name in shown if name.count(".") == 1]
    assert sorted(public) == sorted(me.__all__)
    listed = re.findall(r"`(\w+)`", re.sub(r"(?m)^(?!\|).*$", "", read("docs/reference/index.md").prose))
    assert sorted(listed) == sorted(me.__all__)


class Resources(HTMLParser):
    """What a page has a browser load, and the ids in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        self.loaded += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]
        if tag == "link":
            self.loaded.append(given.get("href", ""))


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path: Resources(path) for path in tmp_path.rglob("*.html")}
    for path, resources in pages.items():
        assert not [address for address in resources.loaded if re.match(r"(https?:)?//", address)], path
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()), style
    ids = set().union(*(resources.ids for resources in pages.values()))
    assert ids >= {f"mecheval.{name}" for name in me.__all__}
    assert "mecheval-train" in ids  # a section for every command
    assert not (tmp_path / "hooks.py").exists()
