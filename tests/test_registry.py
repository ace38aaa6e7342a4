from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

import mecheval as me
from mecheval import registry
from mecheval.custom import VARIABLE
from mecheval.errors import UnknownName, UserError
from mecheval.mixers import MIXERS
from mecheval.registry import Registry
from mecheval.tasks import TASKS


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = importlib.metadata.EntryPoints((
        importlib.metadata.EntryPoint("far", "collections:OrderedDict", "some.group"),
        importlib.metadata.EntryPoint("broken", "no_such_package:Thing", "some.group"),
    ))  # fmt: skip
    monkeypatch.setattr(registry, "entry_points", lambda **query: points.select(**query))


def test_entry_points_are_found_by_name(plugins: None) -> None:
    things: Registry[type] = Registry("thing", "some.group")
    things.register("near")(dict)
    assert things.names() == ["broken", "far", "near"]
    assert things.get("far").__name__ == "OrderedDict"
    assert things.get("near") is dict


def test_a_broken_plugin_harms_only_itself(plugins: None) -> None:
    things: Registry[type] = Registry("thing", "some.group")
    with pytest.raises(UserError, match="thing 'broken' could not be loaded from no_such_package:Thing"):
        things.get("broken")


def test_an_unknown_name_lists_the_choices_and_the_nearest() -> None:
    with pytest.raises(UnknownName) as error:
        me.build_task("attr")
    known = ", ".join(TASKS.names())
    assert str(error.value) == f"unknown task 'attr'. Did you mean 'atr'? Choices: {known}."


def test_a_name_cannot_be_taken_twice() -> None:
    things: Registry[type] = Registry("thing", "some.group")
    things.register("one")(dict)
    things.register("one")(dict)
    with pytest.raises(UserError, match="already registered"):
        things.register("one")(list)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("ar", {"pair": 3}, "unknown option of ar 'pair'. Did you mean 'pairs'?"),
        ("ar", {"pairs": "3"}, "ar: pairs: input should be a valid integer (got '3')"),
        ("ar", {"pairs": 9, "keys": 8}, "ar: pairs=9 distinct keys cannot be drawn from keys=8"),
        ("ar", {"pairs": 9, "values": 8}, "ar: pairs=9 distinct values cannot be drawn from values=8"),
        ("ar", {"pairs": 2, "queries": 3}, "ar: queries=3 cannot exceed pairs=2"),
        ("ar", {"query": "both"}, "ar: query: input should be 'key' or 'value' (got 'both')"),
        ("ar", {"holdout": 1.0}, "ar: holdout: input should be less than 1 (got 1.0)"),
        (
            "ar",
            {"preset": "papers"},
            "unknown preset of ar 'papers'. Did you mean 'paper'? Choices: laptop, paper.",
        ),
        ("atr", {"terminals": 0}, "atr: terminals: input should be greater than or equal to 1 (got 0)"),
        ("atr", {"query": "cousin"}, "unknown query type 'cousin'"),
        ("atr", {"query": ["parent", "parent"]}, "one or more different query types"),
        (
            "atr",
            {"query": 5},
            "atr: query: give query types: one or more of parent, sibling, child, grandparent (got 5)",
        ),
        ("atr", {"terminal_weight": float("inf")}, "atr: terminal_weight: input should be a finite number (got inf)"),
        ("atr", {"min_length": 9, "max_length": 8}, "atr: min_length=9 exceeds max_length=8"),
    ],
)
def test_bad_options_are_one_clear_line(task: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        me.build_task(task, **options)  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_custom_mixer_is_listed_only_while_its_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\nclass Mine(nn.Identity): ...\n")
    monkeypatch.setenv(VARIABLE, f"{file}:Mine")
    (name,) = set(MIXERS.names()) - set(MIXERS.registered())
    cls = MIXERS.get(name)
    monkeypatch.delenv(VARIABLE)
    assert name not in MIXERS.names()
    assert MIXERS.get(name) is cls  # a run that has begun keeps its mixer


@pytest.mark.parametrize(
    ("name", "choices", "hint"),
    [
        ("n_heads", ("threads", "warmup"), None),
        ("n_heads", ("threads", "num_heads"), "num_heads"),
        ("heads", ("threads", "num_heads"), "num_heads"),
        ("kee", ("value", "key"), "key"),
        ("mambo", ("mamba", "attention"), "mamba"),
        ("zz", ("mamba", "attention"), None),
    ],
)
def test_only_a_similar_name_is_suggested(name: str, choices: tuple[str, ...], hint: str | None) -> None:
    said = str(UnknownName("thing", name, choices))
    assert ("Did you mean" in said) == (hint is not None)
    assert hint is None or f"Did you mean {hint!r}?" in said
