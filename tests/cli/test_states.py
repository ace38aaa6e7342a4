"""Other corruptions and directions, and the sweep over states, at the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mecheval as me
from cli.test_interventions import VERDICT, run_of, store  # noqa: F401 (a fixture)
from commands import Command
from mecheval.analysis.runs import probe
from mecheval.config import run_config
from mecheval.store import Store
from mecheval.types import ALL_ROLES
from training.runs import tiny

KINDS = ["corruption", "direction"]
BRIEF: dict[str, Any] = {"d_model": 16, "batch_size": 8, "data.documents": 100, "steps": 1, "evaluate.documents": 16}


def effects_of(path: str) -> pd.DataFrame:
    return Store(path).effects().set_index([*KINDS, "site", "role"]).sort_index()


def test_rows_of_other_kinds_stand_beside_each_other(command: Command, store: list[str]) -> None:  # noqa: F811
    run = run_of(store)
    assert VERDICT in command("intervene", run, *store)[1]
    first = effects_of(store[1])
    verdicts = Store(store[1]).verdicts()
    code, out, _ = command("intervene", run, "--corruption", "swap", *store)
    assert code == 0
    assert "Verdict" not in out
    assert "the swapped document's answer" in " ".join(out.split())
    code, out, _ = command("intervene", run, "--direction", "both", "--save", f"{store[1]}/m.json", *store)
    assert (code, out.count("layer 0"), "Destroyed share" in out) == (0, 2, True)
    titles = [json.loads(Path(f"{store[1]}/m-{way}.json").read_text())["title"] for way in ("restore", "destroy")]
    assert "key corrupted, destroy" in " ".join(titles[1]["text"])
    code, out, _ = command("intervene", run, "--corruption", "value", "--json", *store)
    data = json.loads(out)
    assert (code, data["corruption"], data["direction"], "verdict" in data) == (0, "value", "restore", False)
    second = effects_of(store[1])
    pd.testing.assert_frame_equal(Store(store[1]).verdicts(), verdicts)  # which only the standard call judges
    swapped = second.loc["swap", "destroy"]
    assert len(swapped) == 22 * len(ALL_ROLES)
    assert swapped.loc[("blocks.1.input", "value"), "hits"] == 1
    assert swapped.loc[("blocks.1.input", "key"), "hits"] == 0
    assert second.drop("swap")["hits"].isna().all()
    for kind in (("key", "restore"), ("value", "restore"), ("key", "destroy")):
        assert len(second.loc[kind].query("role in @ALL_ROLES")) == 22 * len(ALL_ROLES)
    kept = second.loc[first.index]  # nothing of the first call is lost, neither rows nor intervals
    assert kept["share_low"].equals(first["share_low"])
    assert kept["share_high"].equals(first["share_high"])
    pd.testing.assert_frame_equal(kept.loc["key", "restore"], first.loc["key", "restore"])
    probe(Store(store[1]).folder(run))  # once more, the standard call: what others measured stays
    pd.testing.assert_frame_equal(effects_of(store[1]), second)


def test_other_numbers_of_documents_are_not_kept(command: Command, store: list[str]) -> None:  # noqa: F811
    assert command("intervene", run_of(store), "-n", "4", "--corruption", "query", *store)[0] == 0
    assert Store(store[1]).effects().empty


def test_the_sweep_says_where_the_association_enters(command: Command, store: list[str]) -> None:  # noqa: F811
    picture = Path(store[1]) / "states.json"
    words = ["intervene", run_of(store), "--site", "state", "--save", str(picture), *store]
    code, out, err = command(*words)
    assert code == 0
    assert f"wrote {picture}" in err
    assert "after each position, counted from the key." in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    said = " ".join(out.split())
    assert "layer 0: what was corrupted enters the state at key (share 1.00) and is no longer needed there" in said
    assert "layer 1: what was corrupted enters the state at value (share 1.00) and stays in it (divider 1.00)" in said
    assert "layer 0 ▁▁█▁" in out
    assert "layer 1 ▁▁▁█" in out
    chart = json.loads(picture.read_text())
    assert chart["description"].endswith("half of it or more: layer 0 from key on, layer 1 from value on.")
    assert Store(store[1]).effects().empty
    data = json.loads(command(*words, "--json", "-n", "5", "--corruption", "value")[1])
    assert data["offsets"] == {"key": 0, "value": 1, "next_key": 2}
    share = {(row["layer"], row["role"], row["offset"]): row["share"] for row in data["states"]}
    assert share[1, "key", 0] == pytest.approx(0, abs=0.01)  # here the value is what was lost
    assert share[1, "key", 1] == pytest.approx(1, abs=0.02)


def test_a_sweep_of_a_run_that_learnt_nothing(command: Command, tmp_path: Path) -> None:
    folder = me.train(tiny(steps=1), tmp_path)
    code, out, _ = command("intervene", folder.id, "--site", "state", "--store", str(tmp_path))
    assert code == 0
    assert "The task is not learnt" in out
    words = ["--corruption", "swap", "--direction", "restore", "--store", str(tmp_path)]
    assert "swapped with another pair's, so there is nothing to restore" in " ".join(
        command("intervene", folder.id, *words)[1].split()
    )


def test_words_come_from_the_task(command: Command, tmp_path: Path) -> None:
    folder = me.train(run_config("copy", "attention", length=8, content=2, symbols=4, **BRIEF), tmp_path)
    for words in ([], ["--site", "state"]):
        out = " ".join(command("intervene", folder.id, *words, "--store", str(tmp_path))[1].split())
        assert "with the content corrupted, so there is nothing to restore" in out
        assert "key" not in out
    out = " ".join(command("explain", folder.id, "--store", str(tmp_path))[1].split())
    assert "in place of the content s" in out
    picture = tmp_path / "example.json"
    assert command("draw", "example", folder.id, "--save", str(picture), "--store", str(tmp_path))[0] == 0
    assert "another content" in picture.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--corruption", "vlaue"],
            "unknown corruption 'vlaue'. Did you mean 'value'? Choices: key, query, swap, value.",
        ),
        (["--direction", "destory"], "unknown direction 'destory'. Did you mean 'destroy'? Choices: both, destroy,"),
        (["--site", "stat"], "unknown site to sweep 'stat'. Did you mean 'state'? Choices: state."),
        (["--site", "state", "--sites", "all"], "--site state shows the states of all layers; leave out --sites."),
        (["--site", "state", "--direction", "both"], "--site state restores; leave out --direction both."),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, command: Command, store: list[str]) -> None:  # noqa: F811
    code, out, err = command("intervene", run_of(store), *words, *store)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"mecheval: {message}")
