"""Vectors computed by the published implementations (d = 16), and how to build the same thing here.

A file holds parameters, an input, the output, and gradients of sum(output * cotangent); of whole models also the
loss and its parameter gradients. Every parameter is off its initial value, so that no factor is trivially 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

DATA = Path(__file__).parent / "data"

MIXER_CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "attention": ("attention", 0, {}),
    "base_conv_k3": ("base_conv", 0, {}),
    "base_conv_long": ("base_conv", 1, {}),
    "based": ("based", 1, {}),
    "deltanet": ("delta_net", 0, {}),
    "deltanet_h2": ("delta_net", 0, {"num_heads": 2}),
    "deltanet_noconv": ("delta_net", 0, {"use_short_conv": False}),
    "h3": ("h3", 0, {}),
    "hyena": ("hyena", 0, {}),
    "hyena_filterbias": ("hyena", 0, {"filter_bias": True}),
    "mamba_dconv1": ("mamba", 0, {"d_conv": 1}),
    "mamba_dconv2": ("mamba", 0, {"d_conv": 2}),
    "mamba_dconv3": ("mamba", 0, {"d_conv": 3}),
    "mamba_dconv4": ("mamba", 0, {}),
    "mamba_noconv": ("mamba", 0, {"d_conv": 0}),
}

LM_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("attention", {}),
    "base_conv": ("base_conv", {}),
    "base_conv_long_only": ("base_conv_long_only", {}),
    "based": ("based", {}),
    "deltanet": ("delta_net", {}),
    "h3": ("h3", {}),
    "hyena": ("hyena", {}),
    "mamba": ("mamba", {}),
    "mamba_without_conv": ("mamba", {"d_conv": 0}),
}


class Case:
    """One file."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as data:
            self.arrays = {name: data[name] for name in data.files if name != "config"}

    def __getitem__(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name].copy())

    def group(self, prefix: str) -> dict[str, Tensor]:
        """E.g. all `param/...`, without the prefix."""
        return {name.removeprefix(prefix): self[name] for name in self.arrays if name.startswith(prefix)}


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference over the largest value."""
    scale = float(theirs.detach().abs().max())
    difference = float((ours.detach() - theirs).abs().max())
    return difference / scale if scale > 0 else difference
