from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from mecheval.errors import UnknownName, UserError, shown
from mecheval.plain import MAX_BYTES, dump_yaml, load_file, load_yaml, parse_json, parse_value, parse_yaml

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: [1.5, -2, 3e-3, 1E5, .inf, 0x1f, 010, 1_000]\nc: {d: null, e: ~, f: yes, g: Off}",
        "- 'quoted 1'\n- \"2\"\n- |\n  lines\n  more\n- !!str 3\n- !!float 4\n- !!int '5'",
        "a: &x {b: [1, 2]}\nc: *x\nd: [*x, *x]",
        "", "~", "text", "[]", "{}", "? a\n: b",
    ],
)  # fmt: skip
def test_yaml_means_what_it_means_elsewhere(text: str) -> None:
    numbers = {"3e-3": 0.003, "1E5": 1e5}  # which PyYAML takes for text
    expected = yaml.safe_load(text)
    if isinstance(expected, dict) and "b" in expected:
        expected["b"] = [numbers.get(value, value) for value in expected["b"]]
    assert parse_yaml(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "line 1: it is nested more than 100 deep"),
        ("- " * 100_000, "line 1: it is nested more than 100 deep"),
        ("{a: " * 101, "line 1: it is nested more than 100 deep"),
        (LAUGHS, "line 7: it holds more than 800,000 values"),
        ("a: &a [*a]", "line 1: the alias *a does not refer to an earlier value"),
        ("a: *b", "line 1: the alias *b does not refer to an earlier value"),
        ("? [a]\n: 1", "line 1: a list or mapping cannot be a name"),
        ("x: 1\n{a: 1}: 2", "line 2: a list or mapping cannot be a name"),
        ("x: 1\nx: 2", "line 2: 'x' is given twice"),
        ("seed: " + "9" * 6000, "line 1: a number has more than 100 digits"),
        ("seed: 0x" + "f" * 200, "line 1: a number has more than 100 digits"),
        (
            "a: !!python/object/apply:os.system [x]",
            "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system is",
        ),
        ("a: !!set {b}", "line 1: the tag tag:yaml.org,2002:set is not allowed"),
        ("a: !!binary aGk=", "line 1: the tag tag:yaml.org,2002:binary is not allowed"),
        ("a: !!int b", "line 1: 'b' is no int"),
        ("a: 1\n---\nb: 2", "line 2: a second document begins"),
        ("a\0b", "control characters are not allowed"),
        ("\ud800", "half a character"),
    ],
)
def test_yaml_that_goes_too_far_is_one_line(text: str, message: str) -> None:
    with pytest.raises((UserError, yaml.YAMLError)) as raised:
        parse_yaml(text)
    assert message in str(raised.value)


def test_dates_times_and_merge_keys_are_text() -> None:
    text = "a: 2020-13-45\nb: 2020-01-02\nc: 1:30\nd: 1:30:00.5\n<<: 1"
    assert parse_yaml(text) == {"a": "2020-13-45", "b": "2020-01-02", "c": "1:30", "d": "1:30:00.5", "<<": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 100 deep"),
        ("[" * 101 + "]" * 101, "nested more than 100 deep"),
        ("9" * 5000, "a number has more than 100 digits"),
    ],
)
def test_json_too(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), (" 8 ", 8), ("08", 8), ("1_000", 1000), ("3e-3", 0.003), ("true", True), ("null", None),
        ("[1, 2]", [1, 2]), ("٣", "٣"), ("2020-13-45", "2020-13-45"), ("a: [", "a: ["), ("1e400", float("inf")),
        ("abc", "abc"), ("9" * 100, int("9" * 100)),
    ],
)  # fmt: skip
def test_values_of_options(text: str, value: Any) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["9" * 101, "-" + "9" * 6000, "[" * 300, "&a [*a, *a]", "!!python/name:os.system x"])
def test_values_that_no_option_has(text: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_value(text)
    assert len(str(raised.value)) < 250


def test_files_that_are_none_of_ours(tmp_path: Path) -> None:
    def problem(path: str | Path, kind: str = "YAML") -> str:
        with pytest.raises(UserError) as raised:
            load_file(path, kind)
        return str(raised.value)

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        assert problem(path) == f"cannot read {path}: it is not a regular file."
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_BYTES["JSON"] + 1)
    assert problem(tmp_path / "large") == f"cannot read {tmp_path / 'large'}: it is larger than 16 MB."
    assert problem(tmp_path / "large", "JSON") == f"cannot read {tmp_path / 'large'}: it is larger than 64 MB."
    (tmp_path / "bytes").write_bytes(b"a: \xff")
    assert problem(tmp_path / "bytes") == f"{tmp_path / 'bytes'} is not text."
    assert "no file has a zero byte in its name" in problem("a\0b")
    assert "File name too long" in problem("x" * 5000)
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfa: 1")
    assert load_yaml(tmp_path / "marked") == {"a": 1}


def test_a_file_of_proc_that_has_nothing_to_read_yet_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as /proc/kmsg, which is called regular; here, a pipe that is called so, too."""
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    late = threading.Timer(5, os.close, [writer])  # a reader that waits would get an empty file
    late.start()
    monkeypatch.setattr("mecheval.plain.stat.S_ISREG", lambda mode: True)
    try:
        with pytest.raises(UserError, match="there is nothing to read yet"):
            load_file(tmp_path / "pipe", "YAML")
    finally:
        late.cancel()
        late.join()
    os.close(writer)


def test_what_is_written_is_read_back() -> None:
    shared = [1, 2]
    data = {"a": shared, "b": {"c": shared}, "date": "2020-01-02", "text": "\x1b[31m\u202e", "float": 3e-3}
    text = dump_yaml(data)
    assert "&" not in text
    assert parse_yaml(text) == data


def test_errors_repeat_only_a_little_of_what_they_are_about() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for value in ("x" * 10**6, [1] * 10**6, 10**5000, nested, {"a": "x" * 10**6}):
        assert len(shown(value)) <= 80
    while nested:  # or Python would free them in a recursion
        nested = nested[0]
    error = str(UnknownName("symbol", "x" * 10**6, [f"t{i}" for i in range(100_000)]))
    assert "and 99,950 more." in error
    assert len(error) < 1000
    assert json.loads(json.dumps(error)) == error
