"""Models in files that describe themselves: safetensors whose header has the arguments of the `LM`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor

from mecheval.custom import checked, own_name
from mecheval.errors import UserError, shown
from mecheval.files import HEADER, safetensors_body, sha256
from mecheval.mixers import MIXERS
from mecheval.mixers.pattern import MOST_LAYERS, pattern_name

if TYPE_CHECKING:
    from mecheval.model.lm import LM, Factory

ARGUMENTS: dict[str, type | tuple[type, ...]] = {
    "vocab_size": int, "d_model": int, "n_layers": int, "mixer": str, "mixer_options": dict, "positions": str,
    "max_length": int, "canon": str, "mlp": bool,
}  # fmt: skip
"""The arguments of an `LM` in the header of its file, and their types."""


def pack(weights: Mapping[str, Tensor], origin: Mapping[str, Any]) -> bytes:
    """The content of a weights file: its origin and a checksum of the tensors are in the header."""
    separate = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}  # tied ones share memory
    body = sha256(safetensors_body(save(separate)))
    return save(separate, metadata={HEADER: json.dumps({**origin, "tensors_sha256": body})})


def saved_name(name: str, factory: Factory) -> str:
    """The name of a mixer in a file; a class that was given as such is known by it from now on in this process."""
    with suppress(UserError):
        if MIXERS.get(name) is factory:
            return name
    cls = checked(factory, name)
    MIXERS.replace(own_name(cls), cls)
    return own_name(cls)


def arguments(lm: LM, layers: list[tuple[str, Factory]], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that build this model again, as plain data."""
    names = {name: saved_name(name, factory) for name, factory in dict(layers).items()}
    data = {
        "vocab_size": lm.vocab_size, "d_model": lm.d_model, "n_layers": lm.n_layers, "positions": lm.positions,
        "mixer": pattern_name([names[name] for name, _ in layers]), **given,
    }  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError):
        raise UserError(
            f"save: options of mixers must be plain data to be kept (got {shown(data['mixer_options'])})."
        ) from None
    return found


def rebuilt(given: Any, tensors: Mapping[str, Tensor], name: str) -> LM:
    """The model that a file describes, with its initial weights; errors call the file `name`.

    Its sizes must be those of its tensors, so that a damaged header cannot ask for more memory than the file has.
    """
    from mecheval.model.lm import LM

    known = isinstance(given, dict) and given.keys() == ARGUMENTS.keys()
    if not known or any(type(given[each]) is not kind for each, kind in ARGUMENTS.items()):
        raise UserError(f"{name} is damaged: its header does not contain the arguments of a model.")
    embed, table = tensors.get("embed.weight"), tensors.get("embed_positions.weight")
    layers = {int(found[1]) for each in tensors if (found := re.match(r"blocks\.(\d{1,6})\.", each))}
    sizes = embed is not None and tuple(embed.shape) == (given["vocab_size"], given["d_model"])
    depth = given["n_layers"] <= MOST_LAYERS and layers == set(range(given["n_layers"]))
    if embed is None or not sizes or not depth or (table is not None and len(table) != given["max_length"]):
        raise UserError(f"{name} is damaged: its tensors are not those of the model that its header describes.")
    return LM(**given, seed=0).to(embed.dtype if embed.is_floating_point() else torch.float32)
