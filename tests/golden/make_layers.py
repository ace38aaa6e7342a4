"""Compute the vectors of the newer mixers with their published layers.

    python tests/golden/make_layers.py FOLDER

FOLDER holds the package `fla` from a wheel of flash-linear-attention beside that of fla-core (0.6.0 when the files
were made; `pip download --no-deps` and unpack both). Its layers are run as they are, but for their Triton kernels:
recurrences are its own readable ones (`ops/*/naive.py`), and the stand-ins below do the rest in plain PyTorch. Mamba-2
and RG-LRU are those of transformers (5.22), on their slow paths. A file holds what `cases.py` says.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

DATA = Path(__file__).parent / "data"
LENGTH, WIDTH, BATCH = 37, 16, 2
ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    "swish": F.silu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    None: lambda x: x,
}


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


class RMSNorm(nn.Module):
    """Also the gated one."""

    def __init__(
        self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5, activation: str = "swish", **_: Any
    ) -> None:
        super().__init__()
        self.weight, self.eps, self.activation = nn.Parameter(torch.ones(hidden_size)), eps, activation

    def forward(self, x: Tensor, g: Tensor | None = None) -> Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return y if g is None else y * ACTIVATIONS[self.activation](g)


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, backend: str) -> tuple[Tensor, None]:
    y = F.conv1d(x.mT, weight[:, None], bias, padding=weight.shape[1] - 1, groups=len(weight))[..., : x.shape[1]]
    return ACTIVATIONS[activation](y.mT), None


class ShortConvolution(nn.Conv1d):
    backend = "torch"

    def __init__(self, hidden_size: int, kernel_size: int, bias: bool, activation: str) -> None:
        super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor, **_: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        return causal_conv1d(x, self.weight[:, 0], self.bias, self.activation, self.backend)


class RotaryEmbedding(nn.Module):
    """By way of transformers' Llama."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, q: Tensor, k: Tensor, **_: Any) -> Any:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        speed = 10_000.0 ** (-torch.arange(0, self.dim, 2) / self.dim)
        angle = torch.cat([torch.outer(torch.arange(q.shape[1]), speed)] * 2, dim=-1)[None]
        return apply_rotary_pos_emb(q, k, angle.cos(), angle.sin(), unsqueeze_dim=2)


def gate_of(x: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    steps = F.softplus(x + dt_bias.view(x.shape[2:]))
    return -A_log.exp().view(-1, *[1] * (x.ndim - 3)) * steps


def gated_delta_rule(naive: Any) -> Callable[..., Any]:
    def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any) -> Any:
        assert options["use_qk_l2norm_in_kernel"]
        strength = torch.sigmoid(beta) * (2 if options["allow_neg_eigval"] else 1)
        decay = gate_of(g, options["A_log"], options["dt_bias"])
        return naive(q=unit(q), k=unit(k), v=v, beta=strength, g=decay)

    return run


def retention(naive: Any) -> Callable[..., Any]:
    return lambda q, k, v, **_: (naive(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), None)


def rwkv7(naive: Any) -> Callable[..., Any]:
    def run(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **_: Any) -> Any:
        scaled = r * r.shape[-1] ** 0.5  # which the readable recurrence divides by
        o, S = naive(*(x.transpose(1, 2) for x in (scaled, k, v, a, b, w)))
        return o.transpose(1, 2), S

    return run


def mesa(naive: Any) -> Callable[..., Any]:
    return lambda q, k, v, g, beta, lamb, **_: naive(unit(q), unit(k), v, g, lamb, beta)


def shifted(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return F.pad(x, (0, 0, 1, -1)) - x, None


def corrected(o: Tensor, r: Tensor, k: Tensor, r_k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return (o + ((r * k * r_k).sum(-1, keepdim=True) * v).flatten(2)) * g


class Package:
    """flash-linear-attention without Triton: layers by path, everything else a stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "fla"
        gla, delta, kda = (self.load(f"ops/{op}/naive.py") for op in ("gla", "gated_delta_rule", "kda"))
        run = {
            "gated_delta_rule": gated_delta_rule(delta.naive_recurrent_gated_delta_rule),
            "kda": gated_delta_rule(kda.naive_recurrent_kda),
            "gla": lambda q, k, v, gk, **_: gla.naive_recurrent_gla(q, k, v, gk),
            "retention": retention(self.load("ops/retention/naive.py").naive_retention),
            "mesa_net": mesa(self.load("ops/mesa_net/naive.py").naive_mesa_net_exact),
            "rwkv7": rwkv7(self.load("ops/generalized_delta_rule/dplr/naive.py").dplr_recurrence),
        }
        names: dict[str, dict[str, Any]] = {
            f"fla.ops.{op}": {f"{kind}_{op}": f for kind in ("chunk", "fused_chunk", "fused_recurrent", "parallel")}
            for op, f in run.items()
        }
        names["fla.ops.mesa_net"]["mesa_net_decoding_one_step"] = names["fla.ops.rwkv7"][
            "fused_mul_recurrent_rwkv7"
        ] = None
        names |= {
            "fla": {}, "fla.ops": {}, "fla.layers": {}, "fla.ops.utils": {},
            "fla.ops.utils.index": {"prepare_lens_from_mask": None},
            "fla.modules": {
                "FusedRMSNormGated": RMSNorm, "RMSNorm": RMSNorm, "ShortConvolution": ShortConvolution,
                "GroupNorm": nn.GroupNorm,
            },
            "fla.modules.convolution": {"causal_conv1d": causal_conv1d},
            "fla.modules.activations": {"ACT2FN": ACTIVATIONS},
            "fla.modules.l2norm": {"l2_norm": unit},
            "fla.modules.rotary": {"RotaryEmbedding": RotaryEmbedding},
            "fla.modules.token_shift": {"token_shift": shifted},
            "fla.ops.rwkv7.fused_addcmul": {
                "fused_addcmul_rwkv7": lambda x, delta, *shares: [x + delta * share for share in shares]
            },
            "fla.ops.rwkv7.fused_k_update": {"fused_k_rwkv7": lambda k, a, k_a: k * (1 + (a - 1) * k_a)},
            "fla.ops.rwkv7.gate_output_correction": {"gate_output_correction": corrected},
            "fla.ops.rwkv6": {"chunk_rwkv6": None, "fused_recurrent_rwkv6": None},
            "fla.layers.utils": {
                "get_layer_cache": lambda *_, **__: None, "update_layer_cache": lambda *_, **__: None,
                "repad_hidden_states": lambda hidden_states, *_, **__: hidden_states,
                "unpad_hidden_states": lambda hidden_states, *_, **__: (hidden_states, None, None),
            },
        }  # fmt: skip
        for name, values in names.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(values)
        sys.modules["fla.layers.rwkv6"] = self.load("layers/rwkv6.py")

    def load(self, path: str) -> Any:
        spec = importlib.util.spec_from_file_location(
            "fla_" + path.removesuffix(".py").replace("/", "_"), self.folder / path
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def layers(package: Package) -> dict[str, tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]]:
    """Name of a file -> a layer, and how it is called."""
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    def first(layer: Any, x: Tensor) -> Tensor:
        return layer(x)[0]  # type: ignore[no-any-return]

    d: dict[str, Any] = {"hidden_size": WIDTH}
    gdn, kda = package.load("layers/gated_deltanet.py").GatedDeltaNet, package.load("layers/kda.py").KimiDeltaAttention
    gla = package.load("layers/gla.py").GatedLinearAttention
    retnet = package.load("layers/multiscale_retention.py").MultiScaleRetention
    mesa_net, rwkv = package.load("layers/mesa_net.py").MesaNet, package.load("layers/rwkv7.py").RWKV7Attention
    ranks = dict.fromkeys(("decay_low_rank_dim", "gate_low_rank_dim", "a_low_rank_dim"), 5)
    sizes: dict[str, Any] = {
        "num_heads": 4,
        "head_dim": 8,
        "state_size": 5,
        "n_groups": 1,
        "chunk_size": 8,
        "num_hidden_layers": 1,
    }
    griffin = RecurrentGemmaConfig(**d, lru_width=24, num_attention_heads=2, conv1d_width=4)
    block = RecurrentGemmaRecurrentBlock(griffin, 0)
    for parameter in block.rg_lru.parameters():  # which it leaves uninitialised
        nn.init.normal_(parameter, std=0.3)
    place = torch.arange(LENGTH).expand(BATCH, LENGTH)
    found: dict[str, Any] = {
        "gated_delta_net": gdn(**d, num_heads=1, head_dim=12),
        "gated_delta_net_h2": gdn(**d, num_heads=2, head_dim=6, expand_v=1.5, use_gate=False, use_short_conv=False,
                                  allow_neg_eigval=True),
        "kda": kda(**d, num_heads=1, head_dim=16),
        "kda_h2": kda(**d, num_heads=2, head_dim=6, expand_v=1.5, use_short_conv=False, allow_neg_eigval=True),
        "gla": gla(**d, num_heads=1),
        "gla_h2": gla(**d, num_heads=2, use_short_conv=True, use_output_gate=False),
        "retnet": retnet(**d, num_heads=2),
        "retnet_h4": retnet(**d, num_heads=4, expand_k=0.5, use_short_conv=True, use_output_gate=False),
        "rwkv7": rwkv(**d, head_dim=8, layer_idx=0, num_hidden_layers=2, **ranks),
        "mesa_net": mesa_net(**d, num_heads=2, head_dim=8),
        "mesa_net_gate": mesa_net(**d, num_heads=3, head_dim=5, use_output_gate=True),
    }  # fmt: skip
    return {
        **{name: (layer, first) for name, layer in found.items()},
        "mamba2": (Mamba2Mixer(Mamba2Config(**d, **sizes), 0), lambda layer, x: layer(x)),
        "rg_lru": (block, lambda layer, x: layer(x, place, None, use_cache=False)[0]),
    }


def main(folder: str) -> None:
    torch.manual_seed(1234)
    for name, (layer, run) in layers(Package(Path(folder))).items():
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        x, cotangent = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True), torch.randn(BATCH, LENGTH, WIDTH)
        output = run(layer, x)
        parameters = dict(layer.named_parameters())
        dx, *dp = torch.autograd.grad((output * cotangent).sum(), [x, *parameters.values()])
        arrays = {"input": x, "output": output, "cotangent": cotangent, "dinput": dx}
        arrays |= {f"param/{n}": p for n, p in parameters.items()}
        arrays |= {f"pgrad/{n}": g for n, g in zip(parameters, dp, strict=True)}
        plain: dict[str, Any] = {n: a.detach().numpy() for n, a in arrays.items()}
        np.savez_compressed(DATA / f"{name}__d16__L37__pert.npz", **plain)


if __name__ == "__main__":
    main(sys.argv[1])
