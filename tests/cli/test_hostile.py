"""What users, files and stores can do to the command line: one line, an exit code, nothing that a terminal obeys."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from commands import Command
from mecheval.cli.clean import CleanConsole, clean_text
from mecheval.store import Store, tables
from store.examples import ID, write_run

BAD = "a\x1b[31mb\x1b]8;;http://x\x07c\x9b1md\u202ee\rf\bg\th\x7fi\u2028j"
SAFE = r"a\x1b[31mb\x1b]8;;http://x\x07c\x9b1md\u202ee\rf\x08g\th\x7fi\u2028j"
UNSAFE = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]")


@pytest.fixture
def store(tmp_path: Path) -> list[str]:
    """A store whose every text is hostile, as options of a command."""
    store = Store(tmp_path / "store")
    folder = write_run(store.folder(ID), "failed", message=BAD, mixer=BAD)
    write_run(store.folder("b" * 12), mixer=BAD)
    with folder.exclusive():
        folder.set_status(status="failed", task=BAD)
    return ["--store", str(store.path)]


def test_clean_text_writes_out_what_a_terminal_would_obey() -> None:
    assert clean_text(BAD) == SAFE
    assert clean_text("\ud800 Ünïcode – fine\n") == "\\ud800 Ünïcode – fine\n"
    assert clean_text("mam\u200bba\u2060 \xad\U000e0041") == r"mam\u200bba\u2060 \xad\U000e0041"


def test_no_text_of_a_store_commands_the_terminal(command: Command, store: list[str]) -> None:
    sql = "select message, mixer, '\x1b[2J' as \"\x1b[2Jname\" from runs"
    for words in (["runs"], ["query", sql], ["runs", "--json"], ["query", sql, "--json"]):
        out = command.prints(*words, *store)
        assert not UNSAFE.search(out), words
        assert "31m" in out
    [row, _] = json.loads(command.prints("runs", "--json", *store))
    assert row["message"] == BAD
    assert BAD.replace("\r", "") in command.prints("query", sql, "--csv", *store).replace(
        "\r", ""
    )  # a pipe has it exact


def test_csv_on_a_terminal_is_clean(command: Command, store: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert not UNSAFE.search(command.prints("query", "select message from runs", "--csv", *store))


@pytest.mark.parametrize(
    "words",
    [
        ["sample", BAD], ["sample", "ar", "--set", f"{BAD}=1"], ["sample", "ar", "--set", f"pairs={BAD}"], [BAD],
        ["runs", f"--{BAD}"], ["runs", "--status", BAD], ["runs", "--store", BAD], ["query", f"'{BAD}", "--store", "."],
        ["grammar", "--grammar", BAD], ["train", "--config", BAD], ["list", "sites", "--mixer", BAD],
        ["sample", "ar", "--split", "\udcff\n"],
    ],
)  # fmt: skip
def test_no_text_of_an_option_does(words: list[str], command: Command) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith("mecheval: ")
    assert err.count("\n") == 1
    assert not UNSAFE.search(err)


def test_colours_stay(capsys: pytest.CaptureFixture[str]) -> None:
    console = CleanConsole(force_terminal=True, color_system="standard", highlight=False)
    console.print("[red]r\x1b[5m[/red]")
    assert capsys.readouterr().out == "\x1b[31mr\\x1b[5m\x1b[0m\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--checkpoint-seconds", "nan"], "--checkpoint-seconds: must be from 0 to 1e+07 (got nan)"),
        (["train", "--checkpoint-seconds", "-1"], "--checkpoint-seconds: must be from 0 to 1e+07 (got -1.0)"),
        (["train", "--checkpoint-seconds", "1e400"], "--checkpoint-seconds: must be from 0 to 1e+07 (got inf)"),
        (["train", "--dry-run", "--betas", "[2,3]"], "optimiser: betas.0: input should be less than 1 (got 2)"),
        (["train", "--dry-run", "--steps", "9" * 6000], "a number has more than 100 digits"),
        (["train", "--dry-run", "--lr", "[" * 3000], "it is nested more than 100 deep"),
        (["study", "ar", "--cpus", "nan"], "--cpus: must be from 0 to 1e+06 (got nan)"),
        (["study", "ar", "--seeds", "1000000000"], "Invalid value for '--seeds'"),
        (["study", "ar", "--workers", "3000000000"], "Invalid value for '--workers'"),
        (["study", "ar", "--lr", "nan,0,-1"], "--lr takes positive numbers, comma-separated"),
        (["study", "ar", "--lr", "1e-3," * 200], "--lr takes at most 100 values"),
        (["study", "ar", "--only", "mixer=" + "a," * 3000], "--only takes at most 100 values"),
        (["query", "select 1", "--limit", "-1"], "--limit: must be from 1 to 10000 (got -1)"),
        (["sample", "ar", "-n", "1000000000"], "-n: at most 10,000 documents can be shown"),
        (["sample", "ar", "--set", "pairs=&a [*a,*a]"], "the alias *a does not refer to an earlier value"),
        (["sample", "atr", "--max-rules", "1000"], "at most 10,000 rules (got 40,000)"),
        (["list", "sites", "--layers", "1000000000"], "--layers: must be from 1 to 100"),
        (["list", "sites", "--mixer", "a" * 10_001], "a mixer has at most 10,000 characters (got 10,001)"),
        (["runs", "--nonsense"], "No such option: --nonsense. See `mecheval runs --help`."),
        (["query"], "Missing argument 'SQL'. See `mecheval query --help`."),
    ],
)
def test_numbers_without_measure_are_one_line(words: list[str], message: str, command: Command) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_grammar_too_large_to_show_whole(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"terminals": 2, "nonterminals": {"S": {"rules": [["t0", "t1"]] * 1500}}}))
    assert "… 500 more rules (--json shows all)" in command.prints("grammar", "--grammar", str(path))
    code, _, err = command("draw", "grammar", "--grammar", str(path), "--save", str(tmp_path / "g.svg"))
    assert code == 2
    assert "a drawing shows grammars of at most 500 rules" in err


VALUES: dict[str, Any] = {
    "'0b5e57e5-7e57-4e57-8e57-57e57e57e57e'::uuid": "0b5e57e5-7e57-4e57-8e57-57e57e57e57e",
    "'a\\xff'::blob": "61ff",
    "interval 3 days": "3 days 00:00:00",
    "[[1], [2, null]]": [[1], [2, None]],
    "{'a': 1.5::decimal(5, 2), 'b': [uuid '0b5e57e5-7e57-4e57-8e57-57e57e57e57e']}":
        {"a": 1.5, "b": ["0b5e57e5-7e57-4e57-8e57-57e57e57e57e"]},
    "map([1, 2], ['a', 'b'])": {"1": "a", "2": "b"},
    "170141183460469231731687303715884105727::hugeint": float(2**127),
    "'nan'::double": None, "'-inf'::double": None, "['inf'::double]": [None],
    "date '290000-01-01'": "290000-01-01T00:00:00", "timestamp '0001-01-01'": "0001-01-01T00:00:00",
    "time '10:00'": "10:00:00", "null::timestamp": None, "true": True, "'x'": "x", "0.1::double": 0.1,
}  # fmt: skip


def test_json_of_every_type(command: Command, store: list[str]) -> None:
    sql = "select " + ", ".join(f"{each} as x{i}" for i, each in enumerate(VALUES))
    [row] = json.loads(command.prints("query", sql, "--json", *store), parse_constant=pytest.fail)
    assert row == {f"x{i}": value for i, value in enumerate(VALUES.values())}
    for i, each in enumerate(VALUES):
        assert f"x{i}" in command.prints("query", f"select {each} as x{i}", *store)


@pytest.mark.parametrize(
    "sql",
    ["select " + "(" * 5000 + "1" + ")" * 5000, "select date 'infinity'", "select bignum '9'", "select 1 +", " ; "],
)
def test_sql_without_an_answer_is_one_line(sql: str, command: Command, store: list[str]) -> None:
    code, out, err = command("query", sql, "--json", *store)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_memory_is_bounded(command: Command, store: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few kilobytes can hold a table of gigabytes; here, of 80 MB and with less memory."""
    folder = Store(store[1]).folder("b" * 12)
    file = folder.path.parent / "large.parquet"
    columns = "'bbbbbbbbbbbb' as run, range as step, random() as lr, random() as loss"
    duckdb.execute(f"copy (select {columns} from range(1000000)) to '{file}' (format parquet)")
    with folder.exclusive():
        folder.write_files({"history.parquet": file.read_bytes()})
    monkeypatch.setitem(tables.SETTINGS, "memory_limit", "20MB")
    code, out, err = command("query", "select count(*) as n from history", "--csv", *store)
    assert (code, out) == (0, "n\n0\n")
    assert err.startswith("mecheval: run bbbbbbbbbbbb is left out: ")
    assert err.endswith("cannot read the table history: it takes more than 2GB of memory.\n")
    shutil.rmtree(folder.path)
    code, _, err = command("query", "select list(range) from range(100000000)", *store)
    assert err.startswith("mecheval: this takes too much memory; ask for fewer rows or columns.")
    monkeypatch.setattr(tables, "MAX_VALUES", 10)
    code, _, err = command("query", "select * from range(11)", *store)
    assert (code, err) == (2, "mecheval: the answer has more than 10 values; ask for fewer rows or columns.\n")


def test_an_answer_of_enormous_texts_is_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    store = ("--store", str(tmp_path))
    code, _, err = command("query", "select repeat('x', 10000001) as long", *store)
    assert code == 2
    said = "column long has a value of 10,000,001 characters; the limit is 10,000,000"
    assert err == f"mecheval: {said}, and left(long, 100) takes the first 100.\n"
    monkeypatch.setattr(tables, "MAX_BYTES", 100_000)
    code, _, err = command("query", "select repeat('x', 1000) as a from range(200)", *store)
    assert (code, err) == (2, "mecheval: the answer has more than 100,000 bytes; ask for fewer rows or columns.\n")
    assert command("query", "select repeat('x', 1000) as a from range(50)", "--json", *store)[0] == 0
    monkeypatch.setattr("mecheval.store.store.MOST_MEMORY", 1 << 26)
    code, _, err = command("query", "select repeat('x', 200000000)", *store)
    assert code == 2
    assert err.startswith("mecheval: this takes too much memory; ask for fewer rows or columns.")


def test_rows_are_written_some_at_a_time(command: Command, store: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "select range as a, 'b' as b from range({}) order by 1"
    whole = [command.prints("query", sql.format(n), kind, *store) for n in (0, 4, 5) for kind in ("--json", "--csv")]
    monkeypatch.setattr("mecheval.cli.runs.ROWS", 2)
    again = [command.prints("query", sql.format(n), kind, *store) for n in (0, 4, 5) for kind in ("--json", "--csv")]
    assert again == whole
    assert [len(json.loads(each)) for each in again[::2]] == [0, 4, 5]
    assert [each.count("\n") for each in again[1::2]] == [1, 5, 6]


def test_sql_that_does_not_end_is_stopped(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    store = ("--store", str(tmp_path))
    endless = "with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t"
    for sql in (endless, "select * from range(8000000)"):  # the second is stopped while its answer is fetched
        code, _, err = command("query", sql, "--seconds", "0.1", *store)
        assert (code, err.count("\n")) == (2, 1)
        said = "this takes too long; ask for fewer rows or columns, or allow more time with --seconds."
        assert err.startswith(f"mecheval: {said}")
    ended: list[str] = []
    monkeypatch.setattr(tables, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr("mecheval.cli.runs._end_late", lambda: ended.append("here"))
    unheeding = "select levenshtein(repeat('a', 9000), repeat('b', 9000 + range)) from range(6)"
    command("query", unheeding, "--seconds", "0.1", *store)  # which takes a second
    assert ended
    monkeypatch.setattr(tables, "LONGEST_LIST", 2)
    code, _, err = command("query", "select [1, 2, 3] as a", *store)
    assert (code, err) == (2, "mecheval: column a has a list of more than 2 elements.\n")
    assert command("query", "select '\ud800'", *store)[::2] == (
        2,
        "mecheval: this SQL contains half a character (a surrogate).\n",
    )


STOPPED = """
import os, signal, sys, threading, time
what = sys.argv.pop(1)
def look(event, arguments):
    if event == "import" and arguments[0] == what or event == what:
        os.kill(os.getpid(), signal.SIGINT)
if what == "query":
    def wait():
        while "duckdb" not in sys.modules or not hasattr(sys.modules["duckdb"], "connect"):
            time.sleep(0.05)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=wait, daemon=True).start()
else:
    sys.addaudithook(look)
from mecheval.cli import main
main()
"""


@pytest.mark.parametrize("moment", ["typing", "typer", "pydantic", "mecheval.store.store", "duckdb", "query"])
def test_ctrl_c_is_one_word_at_any_moment(moment: str, store: list[str]) -> None:
    """While our commands are imported, while libraries are, and inside of DuckDB."""
    words = ["query", "select count(*) from range(1000000000000)", *store]
    done = subprocess.run([sys.executable, "-c", STOPPED, moment, *words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "stopped.\n")
