"""One layer: norm, sequence mixer, residual; then, in transformer blocks, norm, MLP, residual.

It also has the initialisation of blocks, and finds the short convolutions of custom mixers, which become sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mecheval.mixers import Mixer
from mecheval.mixers.parts import OwnLinear, RMSNorm
from mecheval.model.canon import Canon, Slot
from mecheval.ops.gelu import gelu
from mecheval.ops.pieces import continued
from mecheval.ops.product import Linear
from mecheval.ops.queries import take
from mecheval.sites import Tap, taps

AFTER_MIXER = ("mixer.output", "canon_c", "mlp.input", "canon_d", "mlp.output", "output")
"""Sites of a block from its mixer's output on."""
STD = 0.02
"""Standard deviation of initial weights."""
LONGEST = 64
"""Largest number of taps of a short convolution."""
DOCUMENTS, LENGTH = 3, 7
"""Numbers of documents and tokens of the trial run that shows which axis is which."""


class MLP(nn.Module):
    """fc2(gelu(fc1(h))), with the exact GELU."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.fc1 = Linear(d_model, 4 * d_model)
        self.fc2 = Linear(4 * d_model, d_model)

    def forward(self, h: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        out: Tensor = self.fc2(gelu(self.fc1(h)))
        return out


class Block(nn.Module):
    """h <- h + mixer(norm1(h)); h <- h + mlp(norm2(h)).

    A mixer whose `block` is "mamba" gets RMSNorm and no second half, and without `mlp` no block has one. Any module
    (B, L, D) -> (B, L, D) can be the mixer; one that is not a `Mixer` computes all positions even when few are wanted.

    Canon convolutions (`add_canon`) come before the sites `mixer.input` and `mlp.input`, which are what the mixer and
    the MLP get. Where few positions are wanted, the mixer with B, or the whole block with C or D, computes all.
    """

    def __init__(self, d_model: int, mixer: nn.Module, mlp: bool = True) -> None:
        super().__init__()
        self.d_model = d_model
        self.is_mamba = getattr(mixer, "block", "transformer") == "mamba"
        self.has_mlp = mlp and not self.is_mamba
        self.input = Tap("input", kind="stream")
        self.norm1: nn.Module = RMSNorm(d_model) if self.is_mamba else nn.LayerNorm(d_model)
        self.mixer_input = Tap("mixer.input", kind="mixer")
        self.mixer = mixer
        self.mixer_output = Tap("mixer.output", kind="mixer")
        if self.has_mlp:
            self.mlp_input, self.mlp_output = Tap("mlp.input", kind="mlp"), Tap("mlp.output", kind="mlp")
            self.norm2 = nn.LayerNorm(d_model)
            self.mlp = MLP(d_model)
        self.output = Tap("output", kind="stream")
        self.canon = nn.ModuleDict()
        self._found = found_convolutions(mixer, d_model)
        self._taps = self._collect()

    def add_canon(self, places: Iterable[Slot]) -> None:
        """Add a Canon convolution after each of these modules."""
        for site, module, channels in places:
            canon = self.canon[site] = Canon(site, channels)
            module.register_forward_hook(canon.follow)
        self._taps = self._collect()

    def forward(self, h: Tensor, at: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D), or (B, K, D): the same numbers at positions `at` (B, K) only.

        A site with a listener is computed at all positions, so that it keeps its shape; what comes after the
        mixer is computed at these positions only, unless the listener is there.
        """
        if at is not None and (self._mixes_late or any(tap.listener is not None for tap in self._after)):
            return take(self.forward(h), at)
        h = self.input(h)
        x = self.mixer_input(self.norm1(h))
        if at is None:
            mixed = self.mixer(x) if isinstance(self.mixer, Mixer) else continued(self.mixer, x)
        else:
            takes_at = self._takes_at and all(tap.listener is None for tap in self._inside)
            mixed = self.mixer(x, at) if takes_at else take(self.mixer(x), at)
            h = take(h, at)
        h = h + self.mixer_output(mixed)
        if self.has_mlp:
            h = h + self.mlp_output(self.mlp(self.mlp_input(self.norm2(h))))
        return self.output(h)

    @property
    def ragged(self) -> bool:
        """Whether it takes documents end to end; inherited by no mixer, because it may look back in its own way."""
        return bool(vars(type(self.mixer)).get("ragged")) and all(tap.listener is None for tap in self._taps.values())

    @property
    def ends_with_mixer(self) -> bool:
        """Whether its output is its input plus the mixer's output, and nothing more."""
        return not self.has_mlp and not self._mixes_late

    def taps(self) -> dict[str, Tap]:
        """Name -> tap, in the order in which they happen: the block's own around those inside the mixer."""
        return self._taps

    def settled(self) -> set[str]:
        """The sites of this block after which nothing moves between its positions any more."""
        moving = {"canon_c": {"mixer.output"}, "canon_d": {"mixer.output", "canon_c", "mlp.input"}}
        gone = [sites for canon, sites in moving.items() if canon in self._taps]
        return set(AFTER_MIXER).difference(*gone)

    def state_size(self, length: int) -> int | None:
        """The number of values that generation must carry to the next token; None if the mixer does not say."""
        own = getattr(self.mixer, "state_size", None)
        canons = [each for each in self.canon.values() if isinstance(each, Canon)]
        return None if own is None else own(length) + sum(canon.state_size(length) for canon in canons)

    def _collect(self) -> dict[str, Tap]:
        """Collect the taps, and note which Canon convolutions need all positions."""
        own = {tap.name: tap for tap in vars(self).values() if isinstance(tap, Tap)}
        own |= {canon.out.name: canon.out for canon in self.canon.values() if isinstance(canon, Canon)}
        self._mixes_late = "canon_c" in own or "canon_d" in own
        between = [name for name in own if name.startswith("canon_b")]
        self._takes_at = isinstance(self.mixer, Mixer) and not between
        inside = {f"mixer.{name}": tap for name, tap in (*taps(self.mixer), *self._found.items())}
        order = [
            "input",
            "canon_a",
            "mixer.input",
            *between,
            *inside,
            "mixer.output",
            "canon_c",
            "mlp.input",
            "canon_d",
        ]
        both = own | inside
        self._inside = list(inside.values())
        self._after = [both[name] for name in AFTER_MIXER if name in both]
        return {name: both[name] for name in (*order, "mlp.output", "output") if name in both}


class Through:
    """A forward hook that passes a convolution's output through its tap; an object, so that copies have their own."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        """The output, or what a listener returns for it."""
        return self.tap(output)


def found_convolutions(mixer: nn.Module, d_model: int) -> dict[str, Tap]:
    """Name -> tap of each short `nn.Conv1d` of a custom mixer whose output is (documents, channels, positions or more).

    They are found in a trial run on zeros; a mixer that fails in it has none. Built-in mixers declare their sites.
    """
    if isinstance(mixer, Mixer):
        return {}
    named = {name for name, _ in taps(mixer)}
    some = {
        name: module
        for name, module in mixer.named_modules()
        if isinstance(module, nn.Conv1d) and 1 < module.kernel_size[0] <= LONGEST and name and name not in named
    }
    found: dict[str, Tap] = {}
    for name in some if not some else _run_through(mixer, some, d_model):
        found[name] = Tap(name, "B C L", kind="short_conv")
        some[name].register_forward_hook(Through(found[name]))
    return found


def _run_through(mixer: nn.Module, some: dict[str, nn.Conv1d], d_model: int) -> list[str]:
    """The convolutions that one run passes exactly once, with positions on the last axis."""
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in some}

    def watch(name: str) -> Any:
        def look(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
            shapes[name].append(tuple(output.shape))

        return look

    hooks = [module.register_forward_hook(watch(name)) for name, module in some.items()]
    training = mixer.training
    weight = next(iter(some.values())).weight
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            mixer.eval()(torch.zeros(DOCUMENTS, LENGTH, d_model, dtype=weight.dtype, device=weight.device))
    except Exception:  # problems of a mixer are reported when it is checked or trained
        return []
    finally:
        mixer.train(training)
        for hook in hooks:
            hook.remove()

    def fits(seen: list[tuple[int, ...]]) -> bool:
        return len(seen) == 1 and len(seen[0]) == 3 and seen[0][0] == DOCUMENTS and seen[0][2] >= LENGTH

    return [name for name, seen in shapes.items() if fits(seen)]


def init_transformer(blocks: list[Block], layers: int) -> None:
    """All linear maps N(0, 0.02) with zero bias; those named out_proj or fc2 N(0, 0.02/√(2 layers)).

    Convolutions, norms and bare parameters keep the values of their constructors, and so does a custom mixer
    and every `OwnLinear`. `layers` is the number of layers of the model.
    """
    residual_std = STD / math.sqrt(2 * layers)
    for block in blocks:
        parts = [*([block.mlp] if block.has_mlp else []), *([block.mixer] if isinstance(block.mixer, Mixer) else [])]
        for name, module in ((n, m) for part in parts for n, m in part.named_modules()):
            if isinstance(module, nn.Linear) and not isinstance(module, OwnLinear):
                scaled = name.rsplit(".", 1)[-1] in ("out_proj", "fc2")
                nn.init.normal_(module.weight, std=residual_std if scaled else STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def init_mamba(blocks: list[Block], layers: int) -> None:
    """Linear maps keep PyTorch's uniform default; each out_proj is divided by √layers.

    Their only bias, dt_proj's, keeps the softplus inverse that Mamba gave it.
    """
    for block in blocks:
        out_proj = getattr(block.mixer, "out_proj", None)
        if isinstance(block.mixer, Mixer) and isinstance(out_proj, nn.Linear):
            nn.init.kaiming_uniform_(out_proj.weight, a=math.sqrt(5))
            out_proj.weight.data /= math.sqrt(layers)
