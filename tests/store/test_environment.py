from __future__ import annotations

import json
import os
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from mecheval.store.environment import commit_of, environment


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


def test_environment_is_plain_data_and_quickly_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = min((timed() for _ in range(3)), key=lambda one: one[0])
    seconds, facts = found
    assert seconds < 0.1
    assert json.loads(json.dumps(facts)) == facts
    assert facts["mecheval"] == metadata.version("mecheval")
    assert facts["packages"]["torch"] == metadata.version("torch")
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["variables"] == {"OMP_NUM_THREADS": "3"}


def timed() -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    facts = environment()
    return time.perf_counter() - began, facts
