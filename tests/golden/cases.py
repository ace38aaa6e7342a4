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
    "gated_delta_net": ("gated_delta_net", 0, {}),
    "gated_delta_net_h2": (
        "gated_delta_net", 0,
        {"num_heads": 2, "expand_v": 1.5, "use_gate": False, "use_short_conv": False, "allow_neg_eigval": True},
    ),
    "gla": ("gla", 0, {}),
    "gla_h2": ("gla", 0, {"num_heads": 2, "use_short_conv": True, "use_output_gate": False}),
    "kda": ("kda", 0, {}),
    "kda_h2": (
        "kda", 0,
        {"num_heads": 2, "head_dim": 6, "expand_v": 1.5, "use_short_conv": False, "allow_neg_eigval": True},
    ),
    "mamba2": ("mamba2", 0, {"num_heads": 4, "d_state": 5}),
    "mesa_net": ("mesa_net", 0, {}),
    "mesa_net_gate": ("mesa_net", 0, {"num_heads": 3, "head_dim": 5, "use_output_gate": True}),
    "retnet": ("retnet", 0, {}),
    "retnet_h4": (
        "retnet", 0, {"num_heads": 4, "expand_k": 0.5, "use_short_conv": True, "use_output_gate": False}
    ),
    "rg_lru": ("rg_lru", 0, {"lru_width": 24, "num_heads": 2}),
    "rwkv7": ("rwkv7", 0, {"num_heads": 2, "low_rank_dim": 5}),
}  # fmt: skip
"""Name of a file -> mixer, layer and options. `make_layers.py` made those from gated_delta_net on."""

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
