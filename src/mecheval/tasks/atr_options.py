"""The options of associative treecall."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from mecheval.errors import UnknownName
from mecheval.tasks import pcfg
from mecheval.tasks.atr_kernel import KINDS
from mecheval.tasks.base import MOST_SEED, TaskOptions
from mecheval.tasks.pcfg import Grammar

LATER = ("root_sibling", "any_child")
"""Options that were added after runs had been stored."""


class ATROptions(TaskOptions):
    """Options of associative treecall; the first eight shape the grammar."""

    terminals: int = Field(20, ge=1, lt=1 << 24, description="|Σ|, terminal symbols")
    nonterminals: int = Field(40, ge=1, le=pcfg.MAX_NONTERMINALS, description="|N|, nonterminal symbols")
    max_depth: int = Field(10, ge=1, le=1 << 20, description="levels of nonterminals; children are on deeper levels")
    max_rhs: int = Field(5, ge=2, le=1000, description="L_max, symbols on a right-hand side, the head included")
    max_rules: int = Field(5, ge=1, le=1000, description="R_max, rules of a nonterminal")
    head: Literal["left", "right"] = Field("right", description="side of the head terminal (the parent)")
    terminal_weight: float = Field(
        20.0, ge=0, le=1e9, description="r_Σ, weight of a terminal child; a nonterminal has 1"
    )
    grammar_seed: int = Field(0, ge=0, le=MOST_SEED, description="seed of the random grammar")
    grammar: dict[str, Any] | None = Field(None, description="a custom grammar (a file or its data) to use instead")
    query: tuple[str, ...] = Field(("parent",), description=f"what is asked: one or more of {', '.join(KINDS)}")
    queries: int = Field(1, ge=1, le=1 << 16, description="queries in a document, all different")
    min_length: int = Field(3, ge=2, le=1 << 20, description="terminals of the shortest document")
    max_length: int = Field(1024, ge=2, le=1 << 20, description="terminals of the longest document")
    holdout: float = Field(0.0, ge=0, lt=1, description="share of (query, answer) symbols that only test asks about")
    holdout_seed: int = Field(0, ge=0, le=MOST_SEED, description="seed that chooses the held-out combinations")
    root_sibling: bool = Field(False, description="sibling: the root may be asked about itself, as published")
    any_child: bool = Field(False, description="child: the answer is any child, as published, not the rightmost")

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """All options except those in LATER that are off, so that the ids of older runs do not change."""
        return {name: value for name, value in dump(self).items() if value or name not in LATER}

    @field_validator("grammar", mode="before")
    @classmethod
    def _plain_grammar(cls, value: Any) -> Any:
        if isinstance(value, str | Path):
            value = Grammar.load(value)
        if not isinstance(value, Grammar):
            return value
        heads = sum(p > 0 for shares in value.heads.values() for p in shares)
        if heads > pcfg.MAX_WRITTEN_HEADS:
            raise ValueError(f"at most {pcfg.MAX_WRITTEN_HEADS:,} heads can have a probability (got {heads:,})")
        return value.to_dict()

    @field_validator("query", mode="before")
    @classmethod
    def _known_kinds(cls, value: Any) -> tuple[str, ...]:
        if not isinstance(value, str | list | tuple):
            raise ValueError(f"give query types: one or more of {', '.join(KINDS)}")
        kinds = tuple(kind.strip() for kind in value.split(",")) if isinstance(value, str) else tuple(value)
        for kind in kinds:
            if kind not in KINDS:
                raise UnknownName("query type", str(kind), KINDS)
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError(f"give one or more different query types, of {', '.join(KINDS)}")
        return kinds

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.min_length > self.max_length:
            raise ValueError(f"min_length={self.min_length} exceeds max_length={self.max_length}")
        rules = self.nonterminals * self.max_rules
        pcfg.check_size(self.nonterminals, rules, rules * (self.max_rhs - 1), self.nonterminals * self.terminals)
        return self
