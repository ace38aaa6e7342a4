"""Mixers in which one document of a batch leaks into another, each in its own way."""

from __future__ import annotations

from torch import Tensor, nn

from evaluation.faulty import Plain


class NotBatchFirst(nn.Module):
    """A recurrence over documents: each sees those before it in the batch, and the first sees none."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.GRU(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)[0]
        return y


class SeesLater(Plain):
    """Only documents that come later in the batch leak, so that the last one is right."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).flip(0).cumsum(0).flip(0)


class SeesLaterInTraining(SeesLater):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else x @ self.weight


class SeesLaterInEvaluation(SeesLater):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.training else super().forward(x)


class MiddleSeesFirst(Plain):
    """Both ends of the batch are right."""

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        y[1:-1] += x[:1]
        return y


class Neighbours(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + x.roll(1, dims=0)


class MeanOfBatch(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight - x.mean(0)


class LargestOfBatch(Plain):
    """One number leaks, and only from the document that holds it."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight / x.abs().max()


class PlaceInBatch(Plain):
    """Position embeddings along the wrong axis: no document sees another."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.weight[: len(x), None]


class SizeOfBatch(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight / len(x)
