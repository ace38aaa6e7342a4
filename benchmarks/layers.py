"""Whole layers against peers on the CPU, forward and backward: Mamba at d=64, batch 32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.harness import Row, interleaved, show
from mecheval.mixers import build_mixer


def round_trip(layer: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], length: int) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, length, 64, generator=generator, requires_grad=True)
    cotangent = torch.randn(32, length, 64, generator=generator)

    def run() -> None:
        torch.autograd.grad(layer(x), [x, *parameters], cotangent)

    return run


def run() -> list[Row]:
    from mambapy.mamba import MambaBlock
    from mambapy.mamba import MambaConfig as PyConfig
    from transformers.models.mamba.configuration_mamba import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    rows = []
    for length in (36, 128):
        ours = build_mixer("mamba", 64)
        config = MambaConfig(hidden_size=64, state_size=16, expand=2, conv_kernel=4, use_bias=False)
        layers: dict[str, nn.Module] = {
            "ours": ours,
            "transformers": MambaMixer(config, layer_idx=0),
            "mambapy": MambaBlock(PyConfig(d_model=64, n_layers=1)),
        }
        times = interleaved({
            name: round_trip(layer, list(layer.parameters()), length) for name, layer in layers.items()
        })  # fmt: skip
        for peer, target in (("transformers", 5.0), ("mambapy", 3.0)):
            rows.append(Row(f"Mamba layer, length {length}, against {peer}", times["ours"], times[peer], target))
    return rows


if __name__ == "__main__":
    show(run())
