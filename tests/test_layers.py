"""Data flows one way; imports never point back up the line."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import mecheval

ROOMS = [
    "errors",
    "lazy",
    "files",
    "plain",
    "machine",
    "registry",
    "custom",
    "kernel_cache",
    "kernels",
    "rng",
    "types",
    "tasks",
    "ops",
    "sites",
    "mixers",
    "model",
    "intervene",
    "config",
    "store",
    "analysis",
    "training",
    "sweep",
    "studies",
    "figures",
    "paper",
    "report",
    "evaluation",
    "explore",
    "cli",
]
SRC = Path(mecheval.__file__).parent


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "cli"


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mecheval"):
            full = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "mecheval" else [node.module]
            )
            found |= {room(name) for name in full}
    return found


def test_imports_never_point_back_up_the_line() -> None:
    for path in sorted(SRC.rglob("*.py")):
        if path == SRC / "__init__.py":
            continue
        here = path.relative_to(SRC).parts[0].removesuffix(".py")
        assert here in ROOMS, f"{here} has no place in the line: add it to ROOMS"
        for other in imported(path):
            assert ROOMS.index(other) <= ROOMS.index(here), f"{path.name} imports {other}, which comes after {here}"


def test_importing_the_package_imports_nothing_slow() -> None:
    """So that the command line can say what Ctrl-C does before anything else."""
    program = (
        "import sys, mecheval, mecheval.cli; slow = {'numpy', 'numba', 'pydantic', 'typer', 'torch', 'duckdb'};"
        "print(slow & set(sys.modules), mecheval.errors.UserError.__name__, mecheval.Store.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set() UserError Store\n"


READING = (
    "--help", "list studies", "runs", "runs --json", "query 'select * from runs'", "compare ar --table claims",
    "compare ar --json", "draw study ar --save {folder}/ar.json", "verify", "clean --dry-run",
)  # fmt: skip


def test_commands_that_only_read_results_never_import_torch(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    stores = ["" if words == "--help" else f" --store {tmp_path}" for words in READING]
    lines = [shlex.split(words.format(folder=tmp_path) + store) for words, store in zip(READING, stores, strict=True)]
    program = (
        "import sys; from mecheval.cli import main\n"
        f"for words in {lines}:\n"
        "    sys.argv = ['mecheval', *words]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        print(words, end.code or 0, 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == [f"{words} 0 False" for words in lines]


SLOW = ("torch", "numba", "pandas", "duckdb")
LISTING = (
    "--version",
    "--help",
    "list mixers",
    "list tasks --json",
    "list pretrained",
    "list studies --store {folder}",
)


def test_listing_loads_no_library_that_is_slow_to_import_but_duckdb_for_verdicts(tmp_path: Path) -> None:
    lines = [shlex.split(words.format(folder=tmp_path)) for words in LISTING]
    program = (
        "import sys; from mecheval.cli import main\n"
        f"for words in {lines}:\n"
        "    sys.argv = ['mecheval', *words]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n"
        f"        print(words, end.code or 0, *({{*{SLOW}}} & sys.modules.keys()), file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MECHEVAL_MIXERS"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == [*(f"{words} 0" for words in lines[:-1]), f"{lines[-1]} 0 duckdb"]


def test_nothing_is_pickled() -> None:
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not any("pickle" in alias.name for alias in node.names), path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
                assert node.attr not in ("load", "save"), f"{path}: torch.{node.attr} pickles"


def test_only_what_draws_itself_reaches_down_the_line() -> None:
    found = {
        (path.relative_to(SRC).as_posix(), ast.literal_eval(node.args[0]))
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "later"
    }
    assert found == {
        ("intervene/sentences.py", "figures.points.shares"),
    }
