"""What is in a state after each token: which pairs of an associative recall can be read from it, and what tokens wrote.

Two ways. A linear probe, trained on other documents, predicts from the state which value belongs to each key. And where
a mixer has keys, its own way of reading: the memory is read with the key of an earlier token, and what comes out is
compared with the values of all tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mecheval.errors import UserError
from mecheval.intervene.edits import capture
from mecheval.mixers.memory import MemoryMixer
from mecheval.model import LM
from mecheval.types import Batch

if TYPE_CHECKING:  # slow to import
    import pandas as pd

RIDGE = 1e-6
"""Penalty of the probe, relative to the mean square of the states."""
MOST_PAIRS = 4096
"""The largest number of different pairs, keys times values, that a probe can be taught with some hundred documents."""


def probed_pairs(lm: LM, train: Batch, test: Batch) -> pd.DataFrame:
    """How often a linear probe of each layer's state names the value of each pair, after each token up to the divider.

    Columns: layer, position, pair, accuracy, n. The probe of a position is a ridge regression on the states of the
    documents `train`, from the state to a one for every (key, value) that was written, and is tested on `test`. Layers
    whose mixer has no state as a tensor have no rows.
    """
    import pandas as pd

    (keys, values), (tested_keys, tested_values) = _pairs(train), _pairs(test)
    names, symbols = keys.unique(), values.unique()
    if len(names) * len(symbols) > MOST_PAIRS:
        raise UserError(f"stored pairs: a probe is for at most {MOST_PAIRS:,} different pairs of keys and values.")
    rows = []
    for layer in layers_with(lm, "state"):
        site = f"blocks.{layer}.mixer.state"
        seen, new = (capture(lm, batch, [site])[site].flatten(2).double() for batch in (train, test))
        for position in range(2 * keys.shape[1] + 2):
            written = min(keys.shape[1], position // 2)
            target = _targets(keys[:, :written], values[:, :written], names, symbols)
            guess = _ridge(seen[:, position], target.flatten(1), new[:, position]).view(-1, len(names), len(symbols))
            which = torch.searchsorted(names, tested_keys.contiguous())
            named = symbols[guess.gather(1, which[:, :, None].expand(-1, -1, len(symbols))).argmax(2)]
            right = (named == tested_values).double().mean(0).tolist()
            rows += [
                {"layer": layer, "position": position, "pair": pair, "accuracy": share, "n": len(new)}
                for pair, share in enumerate(right)
            ]  # fmt: skip
    return pd.DataFrame(rows, columns=["layer", "position", "pair", "accuracy", "n"])


def held(lm: LM, batch: Batch) -> dict[int, Tensor]:
    """Layer -> (L, L): how often what token s wrote is found again after token t, by reading with its own key.

    It is found if, of the values of all tokens up to t, its own is nearest in angle to what the memory gives. Layers
    without a memory from keys to values are not there, nor is MesaNet, which solves for what it reads.
    """
    found = {}
    for layer in layers_with(lm, "k"):
        sites = [f"blocks.{layer}.mixer.{name}" for name in ("k", "v", "state")]
        k, v, state = (x.double() for x in capture(lm, batch, sites).values())
        if state.shape[-2:] != (k.shape[-1], v.shape[-1]):
            continue
        read_BTSV = torch.einsum("bthev,bshe->btshv", state, k).flatten(3)
        v_BSV = v.flatten(2)
        nearness = torch.einsum("btsv,bpv->btsp", _unit(read_BTSV), _unit(v_BSV))
        length = k.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)  # (t, p): token p comes after t
        nearest = nearness.masked_fill(later[None, :, None, :], -2).argmax(3)
        right = (nearest == torch.arange(length)[None, None]).double().mean(0)
        found[layer] = right.masked_fill(later, 0)
    return found


def layers_with(lm: LM, site: str) -> list[int]:
    """The layers whose mixer has this site; for keys, only those with a matrix memory that keys read."""
    layers = [i for i in range(lm.n_layers) if f"blocks.{i}.mixer.{site}" in lm.taps()]
    return [i for i in layers if site == "state" or isinstance(lm.get_submodule(f"blocks.{i}.mixer"), MemoryMixer)]


def _pairs(batch: Batch) -> tuple[Tensor, Tensor]:
    """Keys and values of the documents of an associative recall, (n, pairs) each."""
    dividers = batch.roles["divider"].unique() if "divider" in batch.roles else torch.empty(0)
    if batch.meaning.key != "key" or len(dividers) != 1 or int(dividers) % 2 == 0:
        raise UserError("stored pairs: the documents must be of associative recall, all with as many pairs.")
    end = int(dividers)
    return batch.tokens[:, 1:end:2], batch.tokens[:, 2:end:2]


def _targets(keys: Tensor, values: Tensor, names: Tensor, symbols: Tensor) -> Tensor:
    """(n, names, symbols): a one for every pair of a document."""
    target = torch.zeros(len(keys), len(names), len(symbols), dtype=torch.float64)
    document = torch.arange(len(keys))[:, None].expand_as(keys)
    key, value = torch.searchsorted(names, keys.contiguous()), torch.searchsorted(symbols, values.contiguous())
    target[document, key, value] = 1
    return target


def _ridge(x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    """What a ridge regression with an intercept, fitted to x (n, N) and y (n, M), predicts for other rows (m, N)."""
    middle, level = x.mean(0), y.mean(0)
    x, new = x - middle, new - middle
    gram = x @ x.T
    penalty = RIDGE * gram.diagonal().mean().clamp(min=1e-30)
    weights = torch.linalg.solve(gram + penalty * torch.eye(len(x), dtype=x.dtype), y - level)
    guess: Tensor = level + (new @ x.T) @ weights
    return guess


def _unit(x: Tensor) -> Tensor:
    length: Tensor = x.norm(dim=-1, keepdim=True)
    return x / length.clamp(min=1e-30)
