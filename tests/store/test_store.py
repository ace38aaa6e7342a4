from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from duckdb import DuckDBPyConnection

from commands import Command
from mecheval.errors import UserError
from mecheval.store import TABLES, Store, StoreWarning, Table
from mecheval.store.tables import load_runs
from store.examples import ID, write_run

DTYPES = {"INTEGER": "Int32", "BIGINT": "Int64", "DOUBLE": "float64", "TIMESTAMP": "datetime64[us]"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three whole runs and one of each other kind, written once."""
    store = Store(tmp_path_factory.mktemp("written"))
    for run, status in zip("abcdef", ("done", "diverged", "done", "failed", "interrupted", "running"), strict=True):
        write_run(store.folder(run * 12), status, message="why" if status == "failed" else None)
    return store.path


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Store:
    """A copy of those, which a test may change."""
    return Store(shutil.copytree(written, tmp_path / "store"))


def test_a_store_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    store = Store(tmp_path / "nothing")
    store.folder(ID)
    for read in (store.runs, store.effects, store.ids, lambda: store.query("from runs"), lambda: store.find("a")):
        with pytest.raises(UserError, match=r"there is no store at .*nothing; `mecheval train` makes one"):
            read()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["s3://bucket/runs", "gs://bucket", "file:///tmp/runs", Path("s3://bucket/runs")])
def test_a_url_is_refused_and_its_address_is_not_mangled(url: str | Path) -> None:
    address = "s3://bucket/runs" if isinstance(url, Path) else url.replace("file:///", "file://")
    with pytest.raises(UserError, match=f"^the store {address} is a URL; mount it as a folder"):
        Store(url)
    Store("a folder: with a colon/runs")


def test_a_path_that_is_not_utf8_is_refused_before_anything_is_computed(tmp_path: Path, command: Command) -> None:
    place = os.fsdecode(os.fsencode(tmp_path) + b"/st\xe9")
    for words in (["train", "--steps", "1"], ["study", "ar"], ["quickstart"], ["runs"], ["report"]):
        code, out, err = command(*words, "--store", place)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "st\\udce9: its path is not UTF-8" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "abc", "../../../etc", "0123456789AB", f"{ID}\n", f"{ID}0", "0123456789/b"])
def test_a_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="a run's id has 12 digits"):
        Store(tmp_path).folder(name)


def test_a_run_is_found_by_the_start_of_its_id(store: Store) -> None:
    write_run(store.folder("ab0000000000"))
    assert store.find("b").id == "b" * 12
    assert store.find("ab").path == store.path / "runs" / "ab0000000000"
    with pytest.raises(UserError, match=f"2 runs start with 'a': {'a' * 12}, ab0000000000"):
        store.find("a")
    with pytest.raises(UserError, match=f"no run starts with 'bbbbbbbbbbba'. There are: {'b' * 12}"):
        store.find("bbbbbbbbbbba")
    with pytest.raises(UserError, match=rf"give a run's id, or the start of it\. There are: {'a' * 12}, .*, …\.$"):
        store.find("")


@pytest.mark.parametrize("name", TABLES)
def test_frames_have_the_types_of_the_schema_empty_or_not(store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    full, empty = getattr(store, name)(), getattr(Store(tmp_path / "empty"), name)()
    assert len(empty) == 0 < len(full)
    for frame in (full, empty):
        assert list(frame.columns) == [column.name for column in TABLES[name].columns]
        for column in TABLES[name].columns:
            assert frame[column.name].dtype == DTYPES.get(column.type, "str")


def test_runs_lists_all_and_the_other_tables_only_whole_runs(store: Store) -> None:
    runs = store.runs()
    assert dict(zip(runs["run"].str[0], runs["status"], strict=True)) == {
        "a": "done", "b": "diverged", "c": "done", "d": "failed", "e": "interrupted", "f": "interrupted",
    }  # fmt: skip
    for name, rows in (
        ("history", 3),
        ("evaluations", 2),
        ("scores", 6),
        ("effects", 1),
        ("verdicts", 1),
        ("ablations", 1),
    ):
        expected = [run * 12 for run in "abc" for _ in range(rows)]
        assert list(getattr(store, name)()["run"]) == expected
        assert list(store.query(f"select run from {name} order by run")["run"]) == expected


def test_runs_are_in_the_order_in_which_they_began(store: Store) -> None:
    write_run(store.folder("0" * 12))
    write_run(store.folder("a" * 12), dev_loss=0.5)
    assert list(store.runs()["run"].str[0]) == list("abcdef0")


def test_whole_numbers_stay_whole_beside_missing_ones(store: Store) -> None:
    write_run(store.folder(ID), seed=2**63 - 1)
    (store.path / "runs" / ("a" * 12) / "status.json").write_text("{")
    with pytest.warns(StoreWarning, match=r"run a{12} is left out: cannot read .*status\.json"):
        seeds = store.runs().set_index("run")["seed"]
    assert seeds[ID] == 2**63 - 1
    assert seeds.isna()["a" * 12]


def test_one_bad_run_does_not_hide_the_others(store: Store) -> None:
    (store.path / "runs" / ("a" * 12) / "status.json").write_text("half of {")
    loop = store.path / "runs" / ("f" * 12) / "lock"
    loop.unlink()
    loop.symlink_to(loop)  # as unreadable as a file can be made
    (store.path / "runs" / "not a run").mkdir()
    (store.path / "runs" / ID).mkdir()  # no status yet
    (store.path / "runs" / ("9" * 12)).touch()
    with pytest.warns(StoreWarning) as warned:
        runs = store.runs().set_index("run")
    assert [str(each.message)[:28] for each in warned] == [f"run {run * 12} is left out" for run in "af"]
    assert list(runs.index) == [run * 12 for run in "bcdeaf"]
    assert list(runs["status"]) == ["diverged", "done", "failed", "interrupted", "failed", "failed"]
    assert "status.json: the file is damaged" in runs.loc["a" * 12, "message"]
    assert "lock is a symbolic link; a store holds only regular files" in runs.loc["f" * 12, "message"]
    with pytest.warns(StoreWarning):
        assert set(store.history()["run"]) == {"b" * 12, "c" * 12}


def test_runs_are_listed_from_their_status_alone(store: Store) -> None:
    expected = store.runs()
    for folder in (store.path / "runs").iterdir():
        for path in folder.iterdir():
            if path.name not in ("status.json", "lock"):
                path.write_text("garbage")
    assert store.runs().equals(expected)
    assert len(store.query("from runs")) == 6


@pytest.mark.parametrize("damage", ["truncated", "zeros", "empty"])
def test_a_damaged_table_is_named(store: Store, damage: str) -> None:
    path = store.folder("b" * 12).table("history")
    content = path.read_bytes()
    path.write_bytes(
        {"truncated": content[:-9], "zeros": content[:50] + bytes(60) + content[110:], "empty": b""}[damage]
    )
    with pytest.warns(StoreWarning, match=f"run b{{12}} is left out: {path} does not match its checksum"):
        assert set(store.history()["run"]) == {"a" * 12, "c" * 12}
    assert len(store.effects()) == 3


@pytest.mark.parametrize("name", ["a[1]*", "what?", "lr=3", "it's", "~", "ü {1,2} \\"])
def test_a_store_may_be_called_anything(tmp_path: Path, name: str) -> None:
    for other in ("a1", "a12", "what!"):  # what the first names match, as patterns
        write_run(Store(tmp_path / other).folder(ID), rows=7)
    store = Store(tmp_path / name)
    write_run(store.folder(ID))
    assert list(store.history()["run"]) == [ID] * 3
    assert len(store.query("from runs join history using (run) join effects using (run)")) == 3


def test_a_relative_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Store("here").folder(ID))
    assert len(Store("here").history()) == 3


def test_query_answers_with_a_frame(store: Store) -> None:
    sql = """
        select runs.run, config->>'$.task.pairs' as pairs, likelihood
        from Evaluations join RUNS using (run) where split = 'test' order by all
    """
    assert store.query(sql).to_dict("list") == {
        "run": [run * 12 for run in "abc"], "pairs": ["8"] * 3, "likelihood": [0.5] * 3,
    }  # fmt: skip
    assert list(store.query("show tables")["name"]) == sorted(TABLES)
    assert list(store.query("describe effects")["column_name"]) == [column.name for column in TABLES["effects"].columns]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select liklihood from evaluations", r'"liklihood" not found .* Candidate bindings: "likelihood"'),
        ("select * from hstory", 'Did you mean "history"'),
        ("selec 1", "syntax error"),
        ("select 'a\nLINE b'::int", "Could not convert string 'a LINE b'"),
        ("", "has no statement"),
        ("-- nothing", "has no statement"),
        ("select $1", "parameters"),
    ],
)
def test_a_mistake_in_sql_is_one_line_that_names_the_tables(store: Store, sql: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        store.query(sql)
    assert str(caught.value).endswith(" Tables: runs, history, evaluations, scores, effects, verdicts, ablations.")
    assert "\n" not in str(caught.value)


def test_sql_touches_no_file(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = store.folder("a" * 12).table("history")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for sql in (
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        f"select * from '{inside}'",
        f"copy runs to '{inside}'",
        "copy runs to 'out.csv'",
        "export database 'out'",
        "attach 'out.db'",
        "install httpfs",
        "load httpfs",
        "set lock_configuration = false",
        "set enable_external_access = true",
        "set allowed_directories = ['/']",
        "pragma enable_profiling = 'json'",
    ):
        with pytest.raises(UserError):
            store.query(sql)
    store.query("create table mine as from runs; delete from runs; insert into runs select * from mine")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_that_goes_while_it_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove_first(
        connection: DuckDBPyConnection, table: Table, files: dict[str, Path], *where: str
    ) -> dict[str, str]:
        shutil.rmtree(store.path / "runs" / ("a" * 12), ignore_errors=True)
        return load_runs(connection, table, files, *where)

    monkeypatch.setattr("mecheval.store.store.load_runs", remove_first)
    assert set(store.history()["run"]) == {"b" * 12, "c" * 12}  # and no warning: the run is simply gone


def test_importing_the_store_imports_nothing_slow() -> None:
    program = "import sys, mecheval.store; print([n for n in ('torch', 'duckdb', 'pandas') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
