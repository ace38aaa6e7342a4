from __future__ import annotations

import signal
from pathlib import Path

import pandas as pd
import pytest

import mecheval as me
from mecheval.analysis.runs import Measured, beside, documents, judge, kept_evidence, load_run, probe
from mecheval.errors import UserError
from mecheval.intervene import Rule, Verdict, interchange
from mecheval.intervene.finding import Finding
from mecheval.store import Store
from mecheval.training import Interrupted, train
from training.runs import Recorder, SignalAt, published, tiny


def test_a_probe_is_stored_with_its_run_and_replaces_itself(tmp_path: Path) -> None:
    config = tiny(mixer="mamba", steps=14)
    folder = train(config, tmp_path)
    store = Store(tmp_path)
    assert store.effects().empty
    found = probe(folder)
    trained = load_run(folder)
    expected = interchange(trained.lm, *documents(trained.task, config, "test"))
    assert found.effects["restored"].tolist() == expected["restored"].tolist()
    stored = store.effects()
    assert sorted(stored["restored"]) == sorted(expected["restored"])
    assert set(stored["state"]) == {"last"}
    assert (stored["n"] <= 16).all()
    shares = found.verdict.shares
    decides = stored.merge(shares, on=["site", "role"])  # no other site has an interval
    assert stored["share_low"].notna().sum() == decides["low"].notna().sum()
    probe(folder)
    assert len(store.effects()) == len(stored)
    assert probe(folder, n=5).effects["n"].max() == 5
    assert store.effects()["n"].max() == 16  # another number of documents is looked at, not kept
    probe(folder, state="best", split="dev")
    assert len(store.effects()) == 2 * len(stored)
    verdicts = store.verdicts()
    assert sorted(zip(verdicts["state"], verdicts["split"], strict=True)) == [("best", "dev"), ("last", "test")]
    assert set(verdicts["label"]) == {"not_learnt"}
    assert store.runs()["status"].tolist() == ["done"]


def test_an_interval_is_stored_with_the_share_that_it_belongs_to() -> None:
    cell = {"site": "blocks.1.input", "kind": "stream", "role": "value", "corruption": "key", "direction": "restore"}
    effects = pd.DataFrame([{**cell, "share": 0.41, "n": 320}])  # of all documents
    shares = pd.DataFrame([{**cell, "share": 0.51, "low": 0.44, "high": 0.59}]).drop(
        columns="kind"
    )  # of those that the verdict counts
    verdict, task = Verdict(Finding("undetermined"), 1.0, shares, ()), me.build_task("ar", pairs=4)
    clean = task.sample(4, "test")
    nothing = me.evidence(me.LM(task.vocab_size, 16, seed=0), clean, task.corrupt(clean))
    [row] = Measured(effects, nothing, verdict).rows("last", 1, "test")["effects"]
    assert [row[name] for name in ("share", "share_low", "share_apart", "share_high")] == [0.41, 0.44, 0.51, 0.59]
    [kept] = beside(
        [{**row, "share_low": None, "share_high": None, "share_apart": None, "n": 400}], [row], judged=False
    )
    assert (kept["n"], kept["share_apart"]) == (400, 0.51)


def test_evidence_is_kept_with_a_run_and_judged_again_without_weights(tmp_path: Path) -> None:
    folder = train(tiny(mixer="mamba", steps=14), tmp_path)
    with pytest.raises(UserError, match=r"keeps no evidence for a verdict on last, test; `mecheval intervene"):
        judge(folder, Rule())
    found = probe(folder)
    for path in folder.weights.iterdir():
        path.unlink()
    kept = kept_evidence(folder)
    assert kept is not None
    assert kept.cells == found.evidence.cells
    assert kept.original == pytest.approx(found.evidence.original, abs=0)
    assert str(judge(folder, Rule())) == str(found.verdict)
    few = judge(folder, Rule(documents=17))
    assert few.finding.reason == "a verdict needs 17 documents (got 16)"
    file = folder.path / "evidence-last-test.npz"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="does not match its checksum"):
        judge(folder, Rule())


def test_a_run_that_is_not_finished_cannot_be_probed(tmp_path: Path) -> None:
    config = tiny()
    with pytest.raises(Interrupted):
        train(config, tmp_path, [SignalAt(5, signal.SIGINT)])
    with pytest.raises(UserError, match="has no last weights; its status is interrupted"):
        probe(Store(tmp_path).folder(config.id))


def test_the_mechanism_over_training_time(tmp_path: Path) -> None:
    config = tiny(mixer="mamba", steps=20, interchange_every=8, interchange_documents=6)
    recorder = Recorder()
    whole = train(config, tmp_path / "whole", [recorder])
    effects, verdicts = Store(tmp_path / "whole").effects(), Store(tmp_path / "whole").verdicts()
    assert sorted(set(effects["step"])) == [8, 16] == verdicts["step"].tolist()
    assert set(effects["state"]) == {"training"}
    assert set(effects["split"]) == {"dev"}
    assert effects["n"].max() == 6
    assert set(effects["site"]) == {"blocks.1.input", "blocks.0.mixer.conv", "blocks.1.mixer.conv"}
    train(tiny(steps=2, every=2, n_layers=1, interchange_every=2, interchange_documents=6), tmp_path / "one")
    assert {"blocks.0.input", "blocks.0.mixer.output"} <= set(Store(tmp_path / "one").effects()["site"])
    assert recorder.ends[0][1]["interchange_seconds"] > 0
    plain = train(tiny(mixer="mamba", steps=20), tmp_path / "plain")
    a, b = (published(folder) for folder in (plain, whole))
    assert a["history.parquet"] != b["history.parquet"]  # the run's own id is in every row
    assert (me.Store(tmp_path / "plain").history().drop(columns="run")).equals(
        me.Store(tmp_path / "whole").history().drop(columns="run")
    )  # but looking changes nothing
    with pytest.raises(Interrupted):
        train(config, tmp_path / "cut", [SignalAt(11, signal.SIGTERM)])
    assert published(train(config, tmp_path / "cut")) == published(whole)
    assert len(published(whole)) == 6
    probe(whole)
    assert set(Store(tmp_path / "whole").effects()["state"]) == {"training", "last"}
