from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from mecheval.machine import changed, commit_of, cores, environment


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *settings, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that a repository tracks."""
    package = tmp_path / "src" / "thing"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "README").touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return package


def test_the_commit_of_a_checkout_and_whether_the_package_was_changed(package: Path) -> None:
    commit = git(package, "rev-parse", "HEAD")
    (package.parents[1] / "README").write_text("changes elsewhere do not count")
    assert commit_of(package) == (commit, False)
    (package / "__init__.py").write_text("x = 1")
    assert commit_of(package) == (commit, True)
    git(package, "checkout", "-q", ".")
    (package / "new.py").touch()
    assert commit_of(package) == (commit, True)


def test_the_users_own_repository_says_nothing_about_an_installed_package(package: Path) -> None:
    installed = package.parents[1] / "venv" / "thing"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    assert commit_of(installed) == (None, None)


def test_a_repository_named_in_the_environment_is_not_asked(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(package, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(package / "nowhere"))
    assert commit_of(package) == (commit, False)


def test_no_repository_no_commit_or_no_git(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(package, "update-ref", "-d", "HEAD")
    assert commit_of(package) == (None, None)
    assert commit_of(tmp_path / "nothing") == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(package) == (None, None)
    assert environment()["commit"] is None


def part(cpu: str, capability: str = "AVX2", torch: str = "2.13") -> dict[str, Any]:
    return {"cpu": cpu, "capability": capability, "packages": {"torch": torch}}


def test_what_changed_between_the_parts_of_a_run_is_said_in_words() -> None:
    first, same = {"training from step 0": part("A")}, {"training from step 7": part("A")}
    assert changed(first, same) == ""
    assert changed(first | same | {"interventions on last, test": part("B")}) == ""
    moved = first | {"training from step 7": part("A", "AVX512")}
    assert changed(moved) == "on different kinds of CPU: A (AVX2), then A (AVX512)"
    assert "different versions" in changed(first, {"training from step 7": part("A", torch="2.14")})


def test_environment_is_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    facts = environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["mecheval"] == metadata.version("mecheval")
    assert facts["packages"]["torch"] == metadata.version("torch")
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["variables"]["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("name", ["NUMBA_OPT", "NUMBA_DISABLE_JIT", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"])
def test_what_changes_the_last_digits_is_recorded_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = environment()
    monkeypatch.setenv(name, "1")
    assert environment()["variables"] == before["variables"] | {name: "1"}
    said = changed({"training from step 0": before}, {"training from step 7": environment()})
    assert said == f"with different values of {name} (see environment.json)"


def test_settings_of_numba_in_a_file_are_recorded_too(tmp_path: Path) -> None:
    (tmp_path / ".numba_config.yaml").write_text("opt: 1\n")
    program = (
        "from mecheval.kernels import check_compiled\nfrom mecheval.machine import environment\ncheck_compiled()\n"
    )
    program += "assert environment()['variables']['NUMBA_OPT'] == '1'"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_there_is_at_least_one_core() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
