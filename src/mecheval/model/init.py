"""The initialisation of a model's parameters, with the same distributions as in the published program."""

from __future__ import annotations

import math

from torch import nn

from mecheval.mixers import Mixer
from mecheval.mixers.parts import OwnLinear
from mecheval.model.block import Block

STD = 0.02


def init_transformer(blocks: list[Block], layers: int) -> None:
    """All linear maps N(0, 0.02) with zero bias; those named out_proj or fc2 N(0, 0.02/√(2 layers)).

    Convolutions, norms and bare parameters keep the values of their constructors, and so does a custom mixer
    and every `OwnLinear`. `layers` is the number of layers of the model.
    """
    residual_std = STD / math.sqrt(2 * layers)
    for block in blocks:
        parts = [*([block.mlp] if block.has_mlp else []), *([block.mixer] if isinstance(block.mixer, Mixer) else [])]
        for name, module in ((n, m) for part in parts for n, m in part.named_modules()):
            if isinstance(module, nn.Linear) and not isinstance(module, OwnLinear):
                scaled = name.rsplit(".", 1)[-1] in ("out_proj", "fc2")
                nn.init.normal_(module.weight, std=residual_std if scaled else STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def init_mamba(blocks: list[Block], layers: int) -> None:
    """Linear maps keep PyTorch's uniform default; each out_proj is divided by √layers.

    Their only bias, dt_proj's, keeps the softplus inverse that Mamba gave it.
    """
    for block in blocks:
        out_proj = getattr(block.mixer, "out_proj", None)
        if isinstance(block.mixer, Mixer) and isinstance(out_proj, nn.Linear):
            nn.init.kaiming_uniform_(out_proj.weight, a=math.sqrt(5))
            out_proj.weight.data /= math.sqrt(layers)
