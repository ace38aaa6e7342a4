"""Verdicts on groups of documents."""

from __future__ import annotations

import json

import numpy as np
import pytest

import mecheval as me
from commands import Command
from mecheval.errors import UserError
from mecheval.intervene.groups import groups
from mecheval.model.handmade import handmade


def test_groups_have_equal_or_neighbouring_values_and_enough_documents() -> None:
    values = [3, 1, 1, 2, 9, 1, 3, 2, 7, 3]
    found = groups(values, 3)
    assert {said: rows.tolist() for said, rows in found.items()} == {
        "1": [1, 2, 5], "2 to 9": [0, 3, 4, 6, 7, 8, 9],
    }  # fmt: skip
    assert sorted(np.concatenate(list(groups(values, 2).values())).tolist()) == list(range(10))
    assert list(groups(values, 2)) == ["1", "2", "3", "7 to 9"]
    assert list(groups(values, 11)) == ["1 to 9"]
    assert list(groups([4, 4], 1)) == ["4"]


def test_a_group_has_the_verdict_of_its_documents_alone() -> None:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    lm, clean = handmade("induction", task), task.sample(80, "test")
    [[said, found]] = me.verdicts_by(lm, clean, task.corrupt(clean), "distance").items()
    whole = me.verdict(lm, clean, task.corrupt(clean))
    assert said == "1"
    assert (str(found), found.n) == (str(whole), whole.n)
    assert found.original > 0.9
    assert found.corrupted < 0.1
    with pytest.raises(UserError, match=r"unknown fact of these documents 'distanc'\. Did you mean 'distance'\?"):
        me.verdicts_by(lm, clean, task.corrupt(clean), "distanc")


def test_mamba_recalls_near_parents_otherwise_than_farther_ones(command: Command) -> None:
    """What is mixed over all documents is one place at each distance."""
    words = ("intervene", "atr-mamba-32", "--by", "distance", "-n", "640")
    found = json.loads(command(*words, "--json")[1])["by"]
    shares = {
        group["distance"]: {
            row["role"]: row["share"]
            for row in group["shares"]
            if (row["site"], row["corruption"], row["direction"]) == ("blocks.1.input", "key", "restore")
        }
        for group in found
    }
    assert (shares["1"]["key"] > 0.8) & (shares["1"]["between"] < 0.2)
    assert (shares["2"]["key"] < 0.2) & (shares["2"]["between"] > 0.8)
    assert next(group["label"] for group in found if group["distance"] == "1") == "conv_association"
    _, shown, _ = command(*words)
    assert "distance  documents  original  corrupted" in shown
    assert "layer 1 joins key and value at the" in shown


def test_options_that_are_not_about_verdicts_are_refused(command: Command) -> None:
    for option in (("--edit", "zero"), ("--site", "state"), ("--sites", "heads"), ("--corruption", "value")):
        code, _, error = command("intervene", "atr-mamba-32", "--by", "distance", *option)
        assert (code, error) == (
            2, "mecheval: --by gives verdicts, which are about restoring corrupted keys; leave out other options.\n",
        )  # fmt: skip


def test_a_mixed_verdict_says_what_is_restored_at_each_distance() -> None:
    task, lm = me.build_task("atr"), me.load_pretrained("atr-mamba-32")
    clean = task.sample(320, "test")
    found = me.verdict(lm, clean, task.corrupt(clean))
    [said] = [sentence for sentence in found.evidence if "by distance from key to value" in sentence]
    assert found.label == "mixed"
    shares = {
        group.split(": ")[0]: [float(share) for share in group.split(": ")[1].split(", ")]
        for group in said.partition("and query: ")[2].rstrip(".").split("; ")
    }
    assert shares["1"][0] > 0.8
    assert shares["2"][1] > 0.8
    pairs = me.build_task("ar", pairs=4, keys=16, values=16)  # always at the same distance
    clean = pairs.sample(40, "test")
    mixed = me.verdict(handmade("mixture", pairs), clean, pairs.corrupt(clean))
    assert mixed.label == "mixed"
    assert not any("by distance" in sentence for sentence in mixed.evidence)
