"""Loads checkpoints of zoology and tinylang as an `LM`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval.errors import UserError
from mecheval.mixers.options import LONG
from mecheval.model.lm import LM

UPSTREAM_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "deltanet": ("delta_net", {}),
    "mamba_without_conv": ("mamba", {"d_conv": 0}),
    "base_conv_long_only": ("base_conv", {"kernel_size": LONG}),
    "based_long_only": ("based", {"kernel_size": LONG}),
}
"""Names of mixers in tinylang, with our names and options."""

RENAMED = (
    (r"^backbone\.embeddings\.word_embeddings\.", "embed."),
    (r"^backbone\.embeddings\.position_embeddings\.", "embed_positions."),
    (r"^backbone\.layers\.", "blocks."),
    (r"^backbone\.ln_f\.", "norm."),
    (r"(^blocks\.\d+)\.norm\.", r"\1.norm1."),
    (r"(^blocks\.\d+)\.sequence_mixer\.mixer\.", r"\1.mixer."),
    (r"(^blocks\.\d+)\.sequence_mixer\.", r"\1.mixer."),
    (r"(^blocks\.\d+)\.state_mixer\.", r"\1.mlp."),
)


def our_name(name: str) -> str:
    """Our name of a parameter of zoology's language model."""
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def load_zoology(state_dict: Mapping[str, Tensor | NDArray[Any]], mixer: str, **mixer_options: Any) -> LM:
    """An `LM` with the weights of a zoology or tinylang language model.

    Sizes and most options follow from the shapes; what shapes do not show (attention's num_heads, Mamba run without
    its convolution) is given as options, or through tinylang's own name of the mixer (`mamba_without_conv`, ...).
    """
    name, implied = UPSTREAM_NAMES.get(mixer, (mixer, {}))
    weights: dict[str, Tensor] = {}
    for old, value in state_dict.items():
        if old == "lm_head.weight":
            continue  # tied to the embedding
        weights[our_name(old)] = torch.as_tensor(np.asarray(value) if not isinstance(value, Tensor) else value)
    if "embed.weight" not in weights:
        raise UserError("load_zoology: no backbone.embeddings.word_embeddings.weight among the names.")
    vocab_size, d_model = weights["embed.weight"].shape
    layers = 1 + max((int(m[1]) for key in weights if (m := re.match(r"blocks\.(\d+)\.", key))), default=-1)
    table = weights.get("embed_positions.weight")
    lm = LM(
        vocab_size, d_model, layers, name,
        {**options_from_shapes(name, weights, d_model), **implied, **mixer_options},
        positions="none" if table is None else "learned",
        max_length=1024 if table is None else len(table),
    )  # fmt: skip
    try:
        lm.load_state_dict(weights)
    except RuntimeError as error:
        detail = " ".join(str(error).split())
        raise UserError(f"load_zoology: these weights are not those of {name!r}: {detail[:300]}") from None
    return lm


def options_from_shapes(name: str, weights: Mapping[str, Tensor], d_model: int) -> dict[str, Any]:
    """The mixer options that follow from the shapes of its parameters."""

    def shape(pattern: str) -> list[torch.Size]:
        return [w.shape for key, w in sorted(weights.items()) if re.fullmatch(rf"blocks\.\d+\.mixer\.{pattern}", key)]

    def width(layer: int) -> int:
        taps = weights.get(f"blocks.{layer}.mixer.conv.conv.weight")
        return LONG if taps is None else taps.shape[-1]

    if name == "mamba" and (A := shape("A_log")) and (conv := shape(r"conv1d\.weight")):
        return {"d_state": A[0][1], "expand": A[0][0] // d_model, "d_conv": conv[0][-1]}
    options: dict[str, Any] = {}
    if z := shape(r".*pos_emb\.z"):
        options["l_max"] = z[0][1]
    if name == "base_conv":
        options["kernel_size"] = [width(layer) for layer in range(len(shape(r"projection\.weight")))] or LONG
    elif name == "based":
        options["kernel_size"] = width(0)
        if q := shape(r"proj_q\.weight"):
            options["feature_dim"] = q[0][0]
    elif name == "hyena" and (taps := shape(r"short_filter\.weight")):
        options["short_filter_order"] = taps[0][-1]
        options["filter_order"] = shape(r"filter_fn\.implicit_filter\.0\.weight")[0][0]
    elif name == "h3" and (B := shape(r"ssm_k_kernel\.kernel\.B")):
        options |= {"d_state": B[0][1], "head_dim": d_model // shape("D")[0][0]}
    elif name == "delta_net" and (norm := shape(r"o_norm\.weight")):
        options |= {"num_heads": d_model // norm[0][0], "use_short_conv": False}
        if conv := shape(r"q_conv1d\.weight"):
            options |= {"use_short_conv": True, "conv_size": conv[0][-1]}
    return options
