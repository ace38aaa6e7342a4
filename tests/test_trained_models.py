"""Small models, trained here and now where that is quick: the verdict finds in them what the paper found."""

from __future__ import annotations

from pathlib import Path

import pytest

import mecheval as me
from golden.make_trained import WEIGHTS
from mecheval.analysis import score
from mecheval.analysis.runs import documents, load_run
from mecheval.analysis.weights import load_weights
from mecheval.intervene.mechanism import depths_of
from mecheval.studies import scales
from mecheval.training.state import evaluation_set
from mecheval.types import CARRIERS

EXPECTED = {
    "attention": {"induction"},
    "delta_net": {"conv_association", "direct_retrieval"},
}
"""Mixers that learn the quickstart's task in 100 to 300 steps, with the verdicts of each way to recall."""


@pytest.mark.parametrize("mixer", EXPECTED)
def test_a_trained_model_recalls_as_in_the_paper(mixer: str, tmp_path: Path) -> None:
    settings = {**scales.QUICK, "stop_at": 0.98, "interchange_every": None}
    rate = scales.PREFERRED.get(mixer, scales.FAST)
    [point] = scales.runs("ar", "laptop", settings, mixer=(mixer,), d_model=(64,), lr=(rate,))
    folder = me.train(point.config, tmp_path)
    status, run = folder.status(), load_run(folder)
    untrained = score(point.config.build_lm(), evaluation_set(point.config, run.task, "test"))
    assert untrained.accuracy < 0.1  # it did not know the answers before
    assert status["test_accuracy"] > 0.95
    assert status["step"] < point.config.data.steps
    sites, roles = depths_of(run.lm.sites()).sites, [*CARRIERS, "random"]
    pair = documents(run.task, point.config, "test", 64)
    effects, found = me.interchange(run.lm, *pair, sites, roles), me.verdict(run.lm, *pair)
    assert found.label in EXPECTED[mixer], found
    assert found.agreement is not None
    assert found.agreement >= 0.95
    control = effects.query("site == 'blocks.1.input' and role == 'random'")["share"].iloc[0]
    assert abs(control) < 0.1


def test_a_trained_mamba_associates_by_its_convolution() -> None:
    lm, origin = load_weights(WEIGHTS)
    config = me.RunConfig.read(origin["config"])
    sites, roles = depths_of(lm.sites()).sites, [*CARRIERS, "random"]
    pair = documents(config.build_task(), config, "test", 64)
    effects, found = me.interchange(lm, *pair, sites, roles), me.verdict(lm, *pair)
    assert (found.label, found.finding.layer) == ("conv_association", 0), found
    assert found.agreement is not None
    assert found.agreement >= 0.95
    share = effects.set_index(["site", "role"])["share"]
    assert share["blocks.1.input", "query"] > 0.9
    assert abs(share["blocks.1.input", "random"]) < 0.1
