"""Train the Mamba whose verdict `test_trained_models.py` checks: two minutes, so its weights are kept.

Run it again (`python tests/golden/make_trained.py`) when the weights cannot be loaded any more.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import mecheval as me
from mecheval.studies import scales

WEIGHTS = Path(__file__).parent / "data" / "mamba_ar.safetensors"
"""The last state of the quickstart's run of Mamba."""

if __name__ == "__main__":
    [point] = scales.preferred("ar", "laptop", mixers=("mamba",))
    with tempfile.TemporaryDirectory() as store:
        shutil.copy(me.train(point.config, store).weights / "last.safetensors", WEIGHTS)
