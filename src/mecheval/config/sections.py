"""The parts of a config, with their defaults and bounds."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mecheval.types import Positions, canon_letters

MOST = 10**12
"""Upper bound of counts such as steps, beyond what any machine will ever do."""


Decay = Annotated[float, Field(ge=0, lt=1)]
"""The factor by which a moment decays at each step."""


class Section(BaseModel):
    """A part of a config: closed, frozen and strictly typed. Every number has an upper bound far above any real run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    later: ClassVar[frozenset[str]] = frozenset()
    """Fields that were added later; they are left out of a config if they have their default, so that ids stay."""

    def data(self) -> dict[str, Any]:
        """The section as plain data."""
        usual = {name: self.__class__.model_fields[name].default for name in self.later}
        read = self.model_dump(mode="json")
        return {name: value for name, value in read.items() if name not in usual or value != usual[name]}


class Model(Section):
    """The language model around the mixer."""

    d_model: int = Field(64, ge=1, le=1 << 17, description="width")
    n_layers: int = Field(2, ge=1, le=1000, description="blocks")
    positions: Positions | None = Field(None, description="position embeddings; null: the default of the mixer")
    canon: str = Field("", description="letters of Canon convolutions: A mixer, B q k v, C MLP, D inside the MLP")
    mlp: bool = Field(True, description="whether blocks have an MLP (those of Mamba never do)")
    later = frozenset({"canon", "mlp"})

    @field_validator("canon")
    @classmethod
    def _letters(cls, value: str) -> str:
        return canon_letters(value)


class Optimiser(Section):
    """AdamW."""

    lr: float = Field(1e-3, gt=0, le=1e18, description="peak learning rate")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), strict=False, description="decay of the two moments, below 1")
    eps: float = Field(1e-8, gt=0, le=1, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, le=1000, description="decoupled weight decay")
    clip: float | None = Field(None, gt=0, le=MOST, description="largest norm of the gradient; null: no clipping")


class Schedule(Section):
    """The learning rate over the steps: a linear warm-up, then a decay."""

    warmup: float = Field(
        0.1, ge=0, le=MOST, description="length of the warm-up: share of the steps (below 1) or number of steps"
    )
    decay: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="decay to 0 after warm-up, or constant"
    )


class Data(Section):
    """The training data and the number of steps; `epochs` may be given instead of `steps`."""

    documents: int | None = Field(
        100_032, ge=1, le=10**9, description="size of the training set, drawn once; null: new documents at every step"
    )
    batch_size: int = Field(32, ge=1, le=1 << 17, description="documents a step")
    steps: int = Field(ge=1, le=MOST, description="steps of the optimiser")
    shuffle: bool = Field(False, description="use a new order in every epoch; the paper keeps one order")


class Evaluate(Section):
    """What is measured during training, on dev, and at the end, on dev and test."""

    documents: int = Field(320, ge=1, le=10**9, description="documents each in dev and test")
    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of these documents, which runs with different seeds share")
    every: int = Field(500, ge=1, le=MOST, description="steps between evaluations on dev")
    stop_at: float | None = Field(None, gt=0, le=1, description="stop once dev accuracy reaches this")
    patience: int | None = Field(None, ge=1, le=MOST, description="stop after N evaluations without improvement")
    interchange_every: int | None = Field(
        None, ge=1, le=MOST, description="steps between interventions between layers and after short convolutions"
    )
    interchange_documents: int = Field(64, ge=1, le=10**6, description="dev documents for these interventions")
    early: bool = Field(False, description="end once solved, settled, or guessing at half of the steps")
    later = frozenset({"early"})


class Machine(Section):
    """The device, the number of threads and the types of numbers, on which the last digits of results depend."""

    dtype: Literal["float32", "float64"] = Field("float32", description="type of weights and activations")
    device: str = Field("cpu", description="cpu, cuda, cuda:1 or mps")
    threads: int = Field(1, ge=1, le=512, description="threads of one run; many runs side by side beat many threads")
    precision: Literal["full", "bf16"] = Field("full", description="bf16: training multiplies in bfloat16")
    later = frozenset({"precision"})

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"cpu|mps|cuda(:[0-9]{1,3})?", value):
            raise ValueError("should be cpu, cuda, cuda:0, cuda:1, ... or mps")
        return value

    @model_validator(mode="after")
    def _known_precision(self) -> Self:
        if self.precision == "bf16" and (self.dtype, self.device) != ("float32", "cpu"):
            raise ValueError(f"precision bf16 is for dtype float32, device cpu (got {self.dtype}, {self.device}).")
        return self
