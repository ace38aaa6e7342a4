"""Models from elsewhere, as users have them: sound ones, and some with one fault each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import mecheval as me

TASK = me.build_task("ar", pairs=4, keys=12, values=12)


class Elsewhere(nn.Module):
    """A language model as a plain module: other names, no `at`, no sites."""

    def __init__(self, lm: me.LM) -> None:
        super().__init__()
        self.wte, self.wpe, self.norm = lm.embed, lm.embed_positions, lm.norm
        self.h = nn.ModuleList(Layer(block) for block in lm.blocks)

    def forward(self, tokens: Tensor) -> Any:
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(tokens.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.norm(x) @ self.wte.weight.mT


class Layer(nn.Module):
    """What the block does."""

    ln1: nn.Module
    attn: nn.Module
    ln2: nn.Module
    mlp: nn.Module

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.ln1, self.attn, self.ln2, self.mlp = block.norm1, block.mixer, block.norm2, block.mlp

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attn(self.ln1(hidden))
        out: Tensor = hidden + self.mlp(self.ln2(hidden))
        return out


class Direct(nn.Module):
    """Recalls by construction: layer 0 joins each value with the key before it, layer 1 is idle."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TASK.vocab_size, TASK.vocab_size)
        nn.init.eye_(self.embed.weight)
        self.h = nn.ModuleList([Retrieve(), Idle()])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = torch.cat([x, torch.zeros_like(x)], dim=-1)  # what is read, what is answered
        for layer in self.h:
            x = layer(x)
        logits: Tensor = x[..., TASK.vocab_size :] * 20
        return logits


class Retrieve(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = Previous()

    def forward(self, x: Tensor) -> Tensor:
        symbol, answer = x.chunk(2, dim=-1)
        scores = (symbol @ self.conv(symbol).mT).tril()
        return torch.cat([symbol, answer + scores @ symbol], dim=-1)


class Previous(nn.Module):
    """The token before, where it is a key."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)


class Idle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0


def small() -> me.LM:
    return me.LM(TASK.vocab_size, 8, 2, "attention", max_length=TASK.max_tokens, seed=0)


class Base(Elsewhere):
    def __init__(self) -> None:
        super().__init__(small())


class Output:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Object(Base):
    def forward(self, tokens: Tensor) -> Output:
        return Output(super().forward(tokens))


class Named(Base):
    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"loss": torch.zeros(()), "logits": super().forward(tokens)}


class Tokens(Base):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).argmax(-1)


class Pair(Base):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens), None


class GivesNaN(Base):
    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        logits[:, 3] = float("nan")
        return logits


class Future(Base):
    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        return logits + logits.mean(1, keepdim=True)


class Noisy(Base):
    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        return logits + torch.randn_like(logits)


class Together(Base):
    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        return logits - logits.mean(0, keepdim=True)


class Earlier(Base):
    """Each document sees those before it in the batch, so that the first one is right."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).cumsum(0)


class Later(Base):
    """Each document sees those after it in the batch, so that the last one is right."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).flip(0).cumsum(0).flip(0)


class MiddleOnly(Base):
    """Only the third document sees another one."""

    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        logits[2:3] += logits[:1]
        return logits


class Placed(Base):
    """Position embeddings along the wrong axis."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens) + torch.arange(len(tokens))[:, None, None]


class FewTokens(Base):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(9, 8)


class FewLogits(Base):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens)[..., :9]


class FewPlaces(Base):
    def __init__(self) -> None:
        super().__init__()
        self.wpe = nn.Embedding(5, 8)


class Fails(Base):
    def forward(self, tokens: Tensor) -> Any:
        raise RuntimeError("no such\nthing")


class Skips(Base):
    """The second layer is not run."""

    def forward(self, tokens: Tensor) -> Any:
        return self.norm(self.h[0](self.wte(tokens))) @ self.wte.weight.mT


class Shared(Base):
    """One layer is run twice."""

    def forward(self, tokens: Tensor) -> Any:
        return self.norm(self.h[1](self.h[0](self.h[0](self.wte(tokens))))) @ self.wte.weight.mT


class Elementwise(nn.Module):
    """Layers that run with positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TASK.vocab_size, 8)
        self.h = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(0, 1)
        for layer in self.h:
            x = layer(x)
        logits: Tensor = x.transpose(0, 1) @ self.embed.weight.mT
        return logits
