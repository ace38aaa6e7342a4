"""What layers read from where, and how their states grow: looking at a model without intervening on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.intervene.answering import evaluating, uncompiled
from mecheval.intervene.places import listening, positions
from mecheval.mixers import Mixer
from mecheval.model import LM
from mecheval.types import Batch

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Reads:
    """What the mixer of every layer reads in some documents.

    The result of a mixer at position t is a sum of weighted values of earlier tokens. A token's share is the part of
    the result that its value makes up: the length of its projection on the result, relative to the result's. Shares
    have signs and sum to one over the tokens, for every mixer, whether its weights do or not.
    """

    batch: Batch
    shares: Tensor  # (layers, n, L, L): of the result at position t, from token s
    norms: Tensor  # (layers, n, L): of the recurrent state after each position; NaN where a mixer has none as a tensor
    changes: Tensor  # (layers, n, L): norm of the difference to the state before; NaN likewise

    def table(self, roles: Sequence[str] = ("key", "value", "next_key", "query"), at: str = "query") -> pd.DataFrame:
        """Means over documents: layer, role, share of what is read from the role at the position of role `at`, n."""
        import pandas as pd

        where = positions(self.batch, [at, *roles])
        asked = where[at] if where[at].ndim == 1 else where[at].amax(1)
        rows = []
        for role in roles:
            places = where[role].reshape(len(asked), -1)
            there = (asked >= 0) & (places >= 0).any(1)
            number = torch.arange(len(asked))[there]
            for layer, shares in enumerate(self.shares):
                read_NL = shares[number, asked[there]]
                found = read_NL.gather(1, places[there].clamp(min=0)) * (places[there] >= 0)
                share = float(found.sum(1).mean()) if len(number) else float("nan")
                rows.append({"layer": layer, "role": role, "share": share, "n": len(number)})
        return pd.DataFrame(rows)

    def states(self, roles: Sequence[str] = ("key", "value", "next_key", "query")) -> pd.DataFrame:
        """Means over documents: layer, role, norm of the state after the role's token, and its change there, n.

        The change is that by the token, relative to the norm after it: small where a state is large and hardly moves,
        1 where the token writes all there is. Both are NaN in layers whose mixer has no state as a tensor.
        """
        import pandas as pd

        where = positions(self.batch, roles)
        rows = []
        for role in roles:
            places = where[role].reshape(len(self.batch), -1)
            number, column = (places >= 0).nonzero(as_tuple=True)
            at = places[number, column]
            for layer, (norms, changes) in enumerate(zip(self.norms, self.changes, strict=True)):
                norm = norms[number, at]
                change = changes[number, at] / norm.clamp(min=1e-30)
                found = {"norm": float(norm.mean()), "change": float(change.mean())}
                rows.append({"layer": layer, "role": role, **found, "n": len(at)})
        return pd.DataFrame(rows)


@torch.no_grad()
def reads(lm: nn.Module, batch: Batch) -> Reads:
    """What the mixer of every layer of an `LM` reads from which token, in every document of a batch."""
    lm = uncompiled(lm)
    if not isinstance(lm, LM):
        raise UserError("reads: give an LM; other models do not say which of their parts are weights and values.")
    wanted: set[str] = set()
    declared: dict[int, list[str]] = {}
    for i in range(lm.n_layers):
        mixer = lm.get_submodule(f"blocks.{i}.mixer")
        if not isinstance(mixer, Mixer):
            raise UserError(f"reads: the mixer of layer {i} does not say which of its parts are weights and values.")
        declared[i] = [f"blocks.{i}.mixer.{name}" for name in mixer.weighs[:2]]
        wanted |= {*declared[i], f"blocks.{i}.mixer.state"}
    found: dict[str, Tensor] = {}

    def listener(name: str) -> Callable[[Tensor], Tensor]:
        def listen(x: Tensor) -> Tensor:
            found[name] = x
            return x

        return listen

    there = [site for site in lm.taps() if site in wanted]
    with evaluating(lm), listening(lm, {site: listener(site) for site in there}):
        lm(batch.tokens)
    shares = torch.stack([_shares(found[weights], found[values]) for weights, values in declared.values()])
    states = [found.get(f"blocks.{i}.mixer.state") for i in declared]
    missing = torch.full(batch.tokens.shape, torch.nan)
    norms = [missing if state is None else state.flatten(2).norm(dim=2) for state in states]
    changes = [missing if state is None else _change(state.flatten(2)) for state in states]
    return Reads(batch, shares, torch.stack(norms), torch.stack(changes))


def _shares(weights_BHLS: Tensor, values: Tensor) -> Tensor:
    """(n, L, S): the part of each result that each token's weighted values make up."""
    n, heads, length, _ = weights_BHLS.shape
    values_BSHV = values.reshape(n, length, heads, -1)
    result_BLHV = torch.einsum("bhls,bshv->blhv", weights_BHLS, values_BSHV)
    along_BHLS = torch.einsum("blhv,bshv->bhls", result_BLHV, values_BSHV)
    whole_BL = result_BLHV.square().sum((2, 3)).clamp(min=1e-30)
    return (weights_BHLS * along_BHLS).sum(1) / whole_BL.unsqueeze(2)


def _change(state_BLN: Tensor) -> Tensor:
    before = torch.cat([torch.zeros_like(state_BLN[:, :1]), state_BLN[:, :-1]], dim=1)
    change: Tensor = (state_BLN - before).norm(dim=2)
    return change
