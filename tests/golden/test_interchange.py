"""Interchange interventions that pyvene made on the published models, made here.

`ii_<model>.npz` names the file with the parameters and holds source and base tokens (4, L), the tried positions (4, T)
and, for each component, layer and tried position, the logits (4, L, V) of the base run in which each document's own
position has the source's activation. The files are thinned: `at` (4, 12) says where the logits of each document
are kept: at the tried positions, one before them, the last one, and evenly between. A file without `at` has them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from golden.cases import DATA, LM_CASES, Case, relative_error
from mecheval.intervene import Intervention, Take, capture, patch
from mecheval.model import load_zoology
from mecheval.ops import dispatch
from mecheval.types import Batch

FILES = sorted(DATA.glob("ii_*.npz"))
TOLERANCE = 1e-5
SITES = {
    "block_input": "input", "block_output": "output",
    "attention_input": "mixer.input", "attention_output": "mixer.output",
    "mlp_input": "mlp.input", "mlp_output": "mlp.output",
}  # fmt: skip


def documents(tokens: Tensor, tried: Tensor) -> Batch:
    """Documents whose roles are the tried positions: "0", "1", ..."""
    n, length = tokens.shape
    return Batch(
        tokens=tokens,
        lengths=torch.full((n,), length),
        answers=tokens[:, -1],
        roles={str(j): tried[:, j] for j in range(tried.shape[1])},
        predict_at=torch.full((n, 1), length - 2),
        targets=tokens[:, -1:],
        facts={},
        index=torch.arange(n),
    )


@pytest.mark.parametrize("path", ["reference", "fast"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_interventions_equal_upstream(file: Path, path: dispatch.Path) -> None:
    case = Case(file)
    parameters = Case(DATA / str(case.arrays["lm_params_file"])).group("param/")
    mixer, options = LM_CASES[file.stem.removeprefix("ii_")]
    lm = load_zoology(parameters, mixer, **options)
    source, base = (documents(case[f"{name}_tokens"], case["positions"]) for name in ("source", "base"))
    rows = torch.arange(len(base))[:, None]
    kept = case["at"] if "at" in case.arrays else torch.arange(base.tokens.shape[1])

    def check(batch: Batch, name: str) -> None:
        assert relative_error(lm(batch.tokens)[rows, kept], case[name]) <= TOLERANCE, name

    with dispatch.path(path), torch.no_grad():
        check(source, "logits_source")
        check(base, "logits_base")
        for name in case.group("intervened/"):
            component, layer, role = name.split("/")
            site = f"blocks.{layer}.{SITES[component]}"
            found = capture(lm, source, [site], [role])[site]
            assert isinstance(found, dict)
            with patch(lm, [Intervention(site, role, Take(found[role]))], base):
                check(base, f"intervened/{name}")
        check(base, "logits_base")  # no trace is left


def test_both_kinds_of_block_are_among_the_files() -> None:
    tried = {file.stem: {name.split("/")[0] for name in Case(file).group("intervened/")} for file in FILES}
    assert tried["ii_attention"] == set(SITES)
    assert tried["ii_mamba"] == {name for name in SITES if not name.startswith("mlp")}
