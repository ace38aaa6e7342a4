"""Sites: named activations, declared where they happen.

A module owns a `Tap` for each activation that can be read or replaced, and passes the activation through
it: `q = self.q(q)`. Without a listener, that is one attribute look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from mecheval.errors import UserError
from mecheval.types import SHORT_CONVOLUTIONS

if TYPE_CHECKING:  # reading results by site needs no torch
    import pandas as pd
    from torch import Tensor, nn

Kind = Literal["stream", "mixer", "mlp", "short_conv", "state", "weights", "head", "inside"]
"""The kind of an activation, on which the rule for verdicts depends.

stream: the residual stream at the input or output of a block; mixer, mlp: what enters and leaves these; short_conv: the
output of a short convolution, inside a mixer or a Canon one; state: a recurrent state; weights: how much each token
weighs in the results of later ones; head: what one head adds to its mixer; inside: anything else inside a mixer.
"""


class Site(str):
    """The name of an activation, such as `blocks.1.mixer.conv`, with its block, part and kind; names are never parsed.

    `block` counts from 0 (None for an activation outside all layers), `part` is the name inside the block. The sites of
    other modules have the names of their submodules.
    """

    __slots__ = ("block", "kind", "part")
    block: int | None
    part: str
    kind: Kind

    def __new__(cls, block: int | None, part: str, kind: Kind = "inside", name: str | None = None) -> Site:
        """`name` is `blocks.<block>.<part>` unless it is given."""
        site = super().__new__(cls, name or (part if block is None else f"blocks.{block}.{part}"))
        site.block, site.part, site.kind = block, part, kind
        return site

    def __getnewargs__(self) -> tuple[int | None, str, Kind, str]:  # type: ignore[override]
        return self.block, self.part, self.kind, str(self)


def sites_in(effects: pd.DataFrame) -> list[Site]:
    """The sites of a table of effects, from its columns site, block, part and kind.

    The table may come from elsewhere: a site without a part keeps its whole name, and an invalid layer becomes None.
    """
    columns = ["site", "block", "part", "kind"]
    if lacking := [name for name in columns if name not in effects]:
        raise UserError(
            f"a table of effects has the columns {', '.join(columns)}; this one lacks {', '.join(lacking)}."
        )
    rows = effects[columns].drop_duplicates("site").to_numpy(object, na_value=None)
    return [Site(None if block is None else int(block), part or name, kind or "inside", name)
            for name, block, part, kind in rows]  # fmt: skip


class Tap:
    """Names one activation.

    `shape` names its axes, e.g. "B L D"; the axis called L is the position in the document. A listener gets the
    activation and returns what the model continues with. `readonly` marks what the model does not compute with (a
    recurrent state, rebuilt only for a listener): replacing it changes nothing. `heads` is the number of heads on
    axis 2, which is called H, HE (the channels of one head are adjacent) or PH (those of all heads alternate).
    """

    __slots__ = ("heads", "kind", "listener", "name", "readonly", "shape")

    def __init__(
        self, name: str, shape: str = "B L D", *, kind: Kind | None = None, readonly: bool = False, heads: int = 0
    ) -> None:
        self.name, self.shape, self.readonly, self.heads = name, shape, readonly, heads
        self.kind: Kind = kind or ("short_conv" if name in SHORT_CONVOLUTIONS else "state" if readonly else "inside")
        self.listener: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x itself, or what the listener returns for it."""
        return x if self.listener is None else self.listener(x)

    @property
    def listening(self) -> bool:
        """Whether a listener reads or replaces this activation."""
        return self.listener is not None

    @property
    def position_axis(self) -> int:
        """The number of the axis that is the position in the document."""
        return self.shape.split().index("L")


def taps(module: nn.Module) -> Iterator[tuple[str, Tap]]:
    """(name, tap) of a module and its submodules, in the order of declaration; names are dotted paths."""
    for path, owner in module.named_modules():
        for value in vars(owner).values():
            if isinstance(value, Tap):
                yield f"{path}.{value.name}" if path else value.name, value
