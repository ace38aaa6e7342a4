from __future__ import annotations

import io
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console

from commands import Command
from mecheval.cli.show.lists import mixer_table
from mecheval.mixers import BUILT_IN


def test_version_and_help(command: Command) -> None:
    assert command.prints("--version") == f"mecheval {metadata.version('mecheval')}\n"
    out = command.prints("--help")
    assert all(word in out for word in ("list", "sample", "grammar", "train", "runs", "query", "export"))


def test_list_tasks_names_every_option(command: Command) -> None:
    listed = json.loads(command.prints("list", "tasks", "--json"))
    assert set(listed) == {"ar", "atr", "copy", "induction", "joint", "khop", "mqar", "track", "words"}
    assert listed["ar"]["options"]["pairs"]["default"] == 16
    table = command.prints("list", "tasks")
    assert all(name in table for task in listed.values() for name in task["options"])
    assert json.loads(command.prints("list", "tasks", "ar", "--json")) == {"ar": listed["ar"]}


def test_sample_json_is_the_sample(command: Command) -> None:
    data = json.loads(command.prints("sample", "ar", "-n", "2", "--set", "pairs=3", "--keys", "9", "--json"))
    assert data["options"]["pairs"] == 3
    assert data["options"]["keys"] == 9
    [first, second] = data["documents"]
    assert len(first["tokens"]) == 11
    assert first["symbols"][first["roles"]["query"]] == first["symbols"][first["roles"]["key"]]
    assert second["index"] == 1
    assert data["statistics"]["n"] == 1000
    assert data["statistics"]["length"]["mean"] == 11


def test_sample_shows_documents_roles_and_statistics(command: Command) -> None:
    out = command.prints("sample", "ar", "-n", "1", "--preset", "laptop")
    assert "BOS k47 v18" in out
    assert "key 13, value 14, next_key 15, divider 17, query 18; k22 -> v6" in out
    assert "1,000 documents" in out


def test_tree_draws_the_derivation(command: Command, tmp_path: Path) -> None:
    grammar = tmp_path / "g.json"
    nonterminals = {
        "S": {"heads": {"d": 1}, "rules": [["X", "a"]]},
        "X": {"heads": {"c": 1}, "rules": [["a", "b"]]},
    }
    grammar.write_text(json.dumps({"terminals": list("abcd"), "start": ["S"], "nonterminals": nonterminals}))
    out = command.prints("sample", "atr", "-n", "1", "--tree", "--grammar", str(grammar))
    drawn = [line.rstrip() for line in out.splitlines() if "@" in line]
    assert drawn == ["S d @5", "├── X c @3", "│   ├── a @1", "│   └── b @2", "└── a @4"]


def test_grammar_is_shown_saved_and_read_back(command: Command, tmp_path: Path) -> None:
    path = str(tmp_path / "g.json")
    assert "expected length" in command.prints("grammar", "--preset", "paper")
    command.prints("grammar", "--grammar-seed", "4", "--save", path)
    again = json.loads(command.prints("grammar", "--grammar", path, "--json"))
    assert again == json.loads(command.prints("grammar", "--grammar-seed", "4", "--json"))


def test_list_mixers_shows_options_and_sizes(command: Command) -> None:
    listed = json.loads(command.prints("list", "mixers", "--json"))
    assert set(listed) == set(BUILT_IN)
    assert list(BUILT_IN)[:7] == ["attention", "base_conv", "based", "delta_net", "h3", "hyena", "mamba"]
    assert all(mixer["paper"] and mixer["family"] != "custom" for mixer in listed.values())
    assert {name for name, mixer in listed.items() if not mixer["short_conv"]} == {
        "attention", "gla", "retnet", "sliding_attention"
    }  # fmt: skip
    assert listed["mamba"]["options"]["d_conv"]["default"] == 4
    assert listed["mamba"]["layers"][0] == {"class": "Mamba", "parameters": 32640, "state": 2432}
    assert [layer["class"] for layer in listed["based"]["layers"]] == ["BaseConv", "TaylorAttention"]
    assert json.loads(command.prints("list", "mixers", "h3", "gla", "--json")).keys() == {"h3", "gla"}
    table = command.prints("list", "mixers")
    assert all(option in table for mixer in listed.values() for option in mixer["options"])
    glance = table[: table.index("Options")]
    assert max(len(line) for line in glance.splitlines()) <= 100
    assert ["mamba2", "state", "space", "34,310", "8,960", "yes"] in [line.split()[:6] for line in glance.splitlines()]
    with io.StringIO() as narrow:
        Console(width=80, file=narrow).print(mixer_table(listed))
        assert set(BUILT_IN) <= {line.split()[0] for line in narrow.getvalue().splitlines() if line.strip()}


def test_list_sites_names_them_with_their_axes(command: Command) -> None:
    listed = json.loads(command.prints("list", "sites", "--mixer", "mamba", "--layers", "1", "--json"))
    assert {"site": "blocks.0.mixer.conv", "shape": ["B", "L", "E"], "readonly": False} in listed
    out = command.prints("list", "sites", "--mixer", "mamba", "--d-conv", "0")
    assert "blocks.1.mixer.dt" in out
    assert "mixer.conv" not in out
    words = ["list", "sites", "--mixer", "mamba+2*attention", "--set", "mamba.d_conv=0", "--canon", "B", "--json"]
    sites = [row["site"] for row in json.loads(command.prints(*words))]
    assert "blocks.0.mixer.conv" not in sites
    assert [site for site in sites if "canon" in site] == ["blocks.1.canon_b", "blocks.2.canon_b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "arr"], "unknown task 'arr'. Did you mean 'ar'?"),
        (["sample", "ar", "--pairs", "100", "--keys", "8"], "cannot be drawn from keys=8"),
        (["sample", "ar", "--pairs", "-3"], "pairs: input should be greater than or equal to 1 (got -3)"),
        (["sample", "ar", "--pairs"], "option --pairs needs a value"),
        (["sample", "ar", "pairs"], "unexpected argument 'pairs'"),
        (["sample", "ar", "--set", "pairs"], "--set takes NAME=VALUE"),
        (["sample", "ar", "--tree"], "ar documents have no tree"),
        (["sample", "ar", "-n", "-2"], "must be positive"),
        (["sample", "ar", "--seed", "-1"], "a seed is a whole number"),
        (["sample", "ar", "--split", "eval"], "Choices: dev, test, train."),
        (["sample", "atr", "--preset", "big"], "Choices: laptop, paper, paper_long, paper_vocab."),
        (["list", "sites", "--mixer", "mambo"], "unknown mixer 'mambo'. Did you mean 'mamba'?"),
        (["list", "sites", "--mixer", "mamba", "--canon", "B"], "Letters that apply: A."),
        (["list", "sites", "--mixer", "mamba+", "--layers", "2"], "mixer: write layers as mamba+attention"),
        (["list", "sites", "--mixer", "mamba", "--dconv", "0"], "Did you mean 'd_conv'?"),
        (["grammar", "--grammar", "none.json"], "cannot read none.json: No such file"),
        (["grammar", "--save", "no/such/folder/g.json"], "cannot write no/such/folder/g.json"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: list[str], message: str, command: Command) -> None:
    code, out, err = command(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


def test_the_installed_command_survives_a_closed_pipe() -> None:
    program = Path(sys.executable).with_name("mecheval")
    with subprocess.Popen(
        [program, "list", "tasks", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
