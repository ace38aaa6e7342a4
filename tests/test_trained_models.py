"""Small models, trained here and now: the verdict finds in them what the paper found in large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mecheval as me
from mecheval.intervene.mechanism import depths_of
from mecheval.training.probe import documents, load_run
from mecheval.types import CARRIERS

SETTINGS: dict[str, dict[str, Any]] = {
    "attention": {},
    "based": {"batch_size": 64},
    "mamba": {"keys": 8, "values": 8, "queries": 2, "batch_size": 32, "lr": 3e-3, "steps": 2000},
}
"""Changes to the preset `laptop` with which these learn, for every seed, in the shortest time."""

EXPECTED = {
    "attention": {"induction"},
    "based": {"induction"},
    "mamba": {"conv_association", "direct_retrieval"},
}


@pytest.mark.parametrize("mixer", SETTINGS)
def test_a_trained_model_recalls_as_in_the_paper(mixer: str, tmp_path: Path) -> None:
    tables = []
    for seed in (0, 1, 2):
        config = me.run_config("ar", mixer, "laptop", seed=seed, stop_at=0.98, **SETTINGS[mixer])
        folder = me.train(config, tmp_path)
        assert folder.status()["test_accuracy"] > 0.95
        run = load_run(folder)
        sites = depths_of(run.lm.sites()).sites
        tables.append(me.interchange(run.lm, *documents(run.task, config, "test", 128), sites, [*CARRIERS, "random"]))
        alone = me.verdict(tables[-1])
        assert alone.label in EXPECTED[mixer], alone
        assert alone.agreement is not None
        assert alone.agreement >= 0.95
    together = me.verdict(tables)
    assert together.label in EXPECTED[mixer], together
    control = tables[0].query("site == 'blocks.1.input' and role == 'random'")["share"].iloc[0]
    assert abs(control) < 0.1
