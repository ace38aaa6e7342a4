"""The parts of a run config beside task and mixer: what can be set in each, with its default and its bounds."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mecheval.types import Positions, canon_letters

MOST = 10**12
"""Upper bound of counts that only grow with patience, such as steps: more than any machine will ever do."""

Decay = Annotated[float, Field(ge=0, lt=1)]
"""How much of a moment is kept at each step."""


class Section(BaseModel):
    """Closed, frozen, and no text for numbers. Every number has an upper bound that no honest run comes near."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    later: ClassVar[frozenset[str]] = frozenset()
    """Fields that came after runs were stored: left out of a config with their default, so that its id is as before."""

    def data(self) -> dict[str, Any]:
        """Plain data, for the config as a whole."""
        usual = {name: self.__class__.model_fields[name].default for name in self.later}
        read = self.model_dump(mode="json")
        return {name: value for name, value in read.items() if name not in usual or value != usual[name]}


class Model(Section):
    """The language model around the mixer."""

    d_model: int = Field(64, ge=1, le=1 << 17, description="width")
    n_layers: int = Field(2, ge=1, le=1000, description="blocks")
    positions: Positions | None = Field(None, description="position embeddings; null: what the mixer is used with")
    canon: str = Field("", description="letters of Canon convolutions: A mixer, B q k v, C MLP, D inside the MLP")
    mlp: bool = Field(True, description="an MLP in every block whose mixer is used with one")
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
    """Learning rate over the steps: up in a line, then down."""

    warmup: float = Field(
        0.1, ge=0, le=MOST, description="share of the steps (below 1), or number of steps, of the way up"
    )
    decay: Literal["cosine", "linear", "constant"] = Field("cosine", description="the way down, to 0; or none")


class Data(Section):
    """What is trained on, and for how long; `epochs` may be given for `steps`."""

    documents: int | None = Field(
        100_032, ge=1, le=10**9, description="training set, drawn once; null: fresh ones for ever"
    )
    batch_size: int = Field(32, ge=1, le=1 << 17, description="documents a step")
    steps: int = Field(ge=1, le=MOST, description="steps of the optimiser")
    shuffle: bool = Field(False, description="a new order every epoch; the paper keeps one order")


class Evaluate(Section):
    """What is measured while training, on dev, and at the end, on dev and test."""

    documents: int = Field(320, ge=1, le=10**9, description="documents each in dev and test")
    seed: int = Field(0, ge=0, lt=1 << 63, description="which documents; runs that differ in their own seed share them")
    every: int = Field(500, ge=1, le=MOST, description="steps between evaluations on dev")
    stop_at: float | None = Field(None, gt=0, le=1, description="stop once dev accuracy reaches this")
    patience: int | None = Field(None, ge=1, le=MOST, description="stop after so many evaluations without a better one")
    interchange_every: int | None = Field(
        None, ge=1, le=MOST, description="steps between interventions on all sites and roles"
    )
    interchange_documents: int = Field(64, ge=1, le=10**6, description="dev documents for those")


class Machine(Section):
    """What the numbers depend on besides: the last digits differ between devices and thread counts."""

    dtype: Literal["float32", "float64"] = Field("float32", description="of weights and activations")
    device: str = Field("cpu", description="cpu, cuda, cuda:1 or mps")
    threads: int = Field(1, ge=1, le=512, description="threads of one run; many runs side by side beat many threads")

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"cpu|mps|cuda(:[0-9]{1,3})?", value):
            raise ValueError("should be cpu, cuda, cuda:0, cuda:1, ... or mps")
        return value
