"""Cases of the linear recurrence, forward and backward, batch 32, width 64: against public loops, and over lengths.

Peers are the readable files of flash-linear-attention and the slow paths of transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import Row, interleaved, show
from benchmarks.peers import naive
from mecheval.mixers import build_mixer
from mecheval.mixers.rg_lru import Gates
from mecheval.ops.diagonal_recurrence import diagonal_recurrence
from mecheval.ops.gated_recurrence import gated_recurrence
from mecheval.ops.linear_recurrence import linear_recurrence
from mecheval.ops.ridge import ridge

BATCH, WIDTH, LENGTH = 32, 64, 128
TARGET, FLAT = 5.0, 0.8
"""How many times faster than a loop we mean to be, and the least speed at length 1024 beside that at length 64."""
LAYERS = ("gated_delta_net", "gla", "kda", "mamba2", "mesa_net", "retnet", "rg_lru", "rwkv7", "sliding_attention")


def inputs(length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(BATCH, length, 1, *shape, generator=generator)

    q, k, a = (F.normalize(random(WIDTH), dim=-1) for _ in range(3))
    leaves = {"q": q, "k": k, "v": random(WIDTH), "head": -0.1 * random().sigmoid()}
    leaves |= {"channel": -0.1 * random(WIDTH).sigmoid(), "beta": random().sigmoid(), "a": -a, "b": 0.5 * a}
    return {name: x.requires_grad_() for name, x in leaves.items()}


def step(rule: Callable[..., Any], leaves: list[Tensor]) -> object:
    found = rule(*leaves)
    o = found[0] if isinstance(found, tuple) else found
    return torch.autograd.grad(o, leaves, torch.ones_like(o))


def heads_first(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: rule(*(each.transpose(1, 2) for each in x))


def mesa(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    x = ridge(q, k, g, beta, torch.ones(1, WIDTH))
    return linear_recurrence(x, beta.unsqueeze(3) * k, v, g=g)


def cases() -> dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Name -> leaves after q, k and v, our rule, and the peer's."""
    ours = linear_recurrence
    simple = naive("simple_gla").naive_recurrent_simple_gla
    gated, dplr = naive("gated_delta_rule"), naive("generalized_delta_rule/dplr").dplr_recurrence
    return {
        "retnet": ("head", lambda q, k, v, g: ours(q, k, v, g=g), simple),
        "gla": ("channel", lambda q, k, v, g: ours(q, k, v, g=g), naive("gla").naive_recurrent_gla),
        "gated_delta_net": (
            "head beta", lambda q, k, v, g, beta: ours(q, k, v, g=g, beta=beta),
            lambda q, k, v, g, beta: gated.naive_recurrent_gated_delta_rule(q, k, v, beta, g),
        ),
        "kda": (
            "channel beta", lambda q, k, v, g, beta: ours(q, k, v, g=g, beta=beta), naive("kda").naive_recurrent_kda
        ),
        "rwkv7": (
            "channel a b", lambda q, k, v, g, a, b: ours(q, k, v, g=g, a=a, b=b),
            heads_first(lambda q, k, v, g, a, b: dplr(q, k, v, a, b, g)),
        ),
        "mesa_net": (
            "head beta", mesa,
            lambda q, k, v, g, beta: naive("mesa_net").naive_mesa_net_exact(q, k, v, g, torch.ones(1, WIDTH), beta),
        ),
    }  # fmt: skip


def layer(name: str, length: int, documents: int = BATCH) -> Callable[[], object]:
    mixer = build_mixer(name, WIDTH)
    x = torch.randn(documents, length, WIDTH, requires_grad=True)
    return partial(step, lambda x, *_: mixer(x), [x, *mixer.parameters()])


def rg_lru() -> list[Row]:
    """The RG-LRU against transformers': its recurrence alone, of which no document starts anew, and with its gates."""
    from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

    config: Any = RecurrentGemmaConfig(hidden_size=WIDTH, num_attention_heads=1, lru_width=WIDTH)
    griffin: Any = RecurrentGemmaRglru(config)  # type: ignore[no-untyped-call]
    anew = torch.zeros(BATCH, LENGTH, 1, dtype=torch.bool)
    place = torch.arange(LENGTH).expand(BATCH, LENGTH)
    gates = Gates(WIDTH, 1)
    griffin.load_state_dict(gates.state_dict())

    def gated(u: Tensor, *_: Tensor) -> Tensor:
        griffin.recurrent_states = None  # it would go on from the call before
        found: Tensor = griffin(u, place)
        return found

    a, u = (f(BATCH, LENGTH, WIDTH).requires_grad_() for f in (torch.rand, torch.randn))
    loop = {
        "ours": partial(step, diagonal_recurrence, [a, u]),
        "peer": partial(step, lambda a, x: griffin._rnn_scan(x, a, anew, None), [a, u]),
    }
    whole = {
        "ours": partial(
            step, lambda u, *_: gated_recurrence(u, *gates.maps, gates.steepness), [u, *gates.parameters()]
        ),
        "peer": partial(step, gated, [u, *griffin.parameters()]),
    }
    rows = []
    for name, fns in (("loop", loop), ("RG-LRU with its gates", whole)):
        ms = interleaved(fns, rounds=5)
        rows.append(Row(f"rg_lru, L {LENGTH}, against transformers' {name}", ms["ours"], ms["peer"], TARGET))
    return rows


def slow_layers() -> dict[str, tuple[str, Callable[[Tensor], Tensor], list[Tensor]]]:
    """transformers' layers of the same sizes: name -> mixer, layer, parameters."""
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = Mamba2Config(hidden_size=WIDTH, num_heads=2, head_dim=64, state_size=64, n_groups=1, num_hidden_layers=1)
    mamba2 = Mamba2Mixer(config, 0)
    griffin = RecurrentGemmaRecurrentBlock(
        RecurrentGemmaConfig(hidden_size=WIDTH, num_attention_heads=1, lru_width=WIDTH, conv1d_width=4), 0
    )
    griffin.load_state_dict(build_mixer("rg_lru", WIDTH).state_dict())
    place = torch.arange(LENGTH).expand(BATCH, LENGTH)
    return {
        "Mamba-2": ("mamba2", mamba2, list(mamba2.parameters())),
        "RecurrentGemma": ("rg_lru", lambda x: griffin(x, place, None, use_cache=False)[0], list(griffin.parameters())),
    }


def run() -> list[Row]:
    rows = []
    for name, (parts, ours, theirs) in cases().items():
        leaves = inputs(LENGTH)
        given = [leaves[each] for each in ("q", "k", "v", *parts.split())]
        ms = interleaved({"ours": partial(step, ours, given), "peer": partial(step, theirs, given)}, rounds=5)
        rows.append(Row(f"{name}, L {LENGTH}, against a public loop", ms["ours"], ms["peer"], TARGET))
    rows += rg_lru()
    for name, (mixer, theirs, parameters) in slow_layers().items():
        x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
        peer = partial(step, lambda x, *_, theirs=theirs: theirs(x), [x, *parameters])
        ms = interleaved({"ours": layer(mixer, LENGTH), "peer": peer}, rounds=5)
        rows.append(Row(f"{mixer} layer, L {LENGTH}, against transformers' {name}", ms["ours"], ms["peer"], TARGET))
    for (
        name
    ) in LAYERS:  # as many tokens, which shows the length alone; then as many documents, whose tensors outgrow caches
        fns = {f"{n} x 1024": layer(name, 1024, n) for n in (BATCH * 64 // 1024, BATCH)}
        ms = interleaved({"short": layer(name, 64), **fns}, rounds=5)
        for size, documents in zip(fns, (BATCH * 64 // 1024, BATCH), strict=True):
            took = ms[size] * BATCH * 64 / (documents * 1024)
            rows.append(Row(f"{name} layer, a token of {size} against {BATCH} x 64", took, ms["short"], FLAT))
    return rows


if __name__ == "__main__":
    show(run())
