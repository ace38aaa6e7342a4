"""The language model: tied embeddings around blocks, of one mixer or of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.custom import checked
from mecheval.errors import UnknownName, UserError
from mecheval.files import write_output
from mecheval.mixers import MIXERS
from mecheval.mixers.base import make_mixer
from mecheval.mixers.pattern import fill, is_pattern, option_names, read_pattern, split_options
from mecheval.model.block import STD, Block, init_mamba, init_transformer
from mecheval.model.canon import add_canon
from mecheval.model.saved import arguments, pack
from mecheval.ops.dispatch import transformed
from mecheval.ops.head_loss import head_loss
from mecheval.ops.pieces import NOTHING_READ, State, reading, tokens_before
from mecheval.ops.product import linear
from mecheval.ops.ragged import Documents, documents_now, end_to_end, longest
from mecheval.sites import Site, Tap
from mecheval.types import Batch, Positions

Factory = Callable[..., nn.Module]
DENSE = 0.5
"""A batch of which more than this share is no padding is trained as it is: at a third, steps gain 3 to 54 %."""
LAYERS = 2
"""Default number of layers of a model with one mixer."""


class LM(nn.Module):
    """Tokens (B, L) -> logits (B, L, V).

    `mixer` is a name from `mecheval list mixers`, or a custom module class, called as cls(d_model=...). A hybrid has
    a list of these, layer by layer, or a pattern, `3*mamba+attention`, which repeats until there are `n_layers`; its
    options are for all mixers that have them, or for one: `mamba.d_state`. `n_layers` defaults to 2, and in a hybrid to
    the layers that are named. `positions` defaults to what the mixer is used with: learned for attention, and for
    hybrids with it, none for the others; "rotary" is for mixers with an option `rotary`. `seed` fixes the initial
    weights; without it they come from torch's own generator. `canon` adds short convolutions, each place a letter:
    "AC" (see `model/canon.py`); all other weights start as without them. `mlp=False` leaves the MLPs out of the blocks.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_layers: int | None = None,
        mixer: str | Factory | Sequence[str | Factory] = "attention",
        mixer_options: Mapping[str, Any] | None = None,
        positions: Positions | None = None,
        max_length: int = 1024,
        seed: int | None = None,
        canon: str = "",
        mlp: bool = True,
    ) -> None:
        super().__init__()
        for name, size in (("vocab_size", vocab_size), ("d_model", d_model), ("n_layers", n_layers)):
            if size is not None and size < 1:
                raise UserError(f"LM: {name} must be positive (got {size}).")
        if positions is not None and positions not in get_args(Positions):
            raise UnknownName("kind of positions", positions, get_args(Positions))
        layers = _layers(mixer, n_layers)
        factories = dict(layers)
        known = {name: option_names(name, factory) for name, factory in factories.items()}
        options = split_options(known, mixer_options or {})
        if positions == "rotary":
            turned = [name for name in known if "rotary" in known[name]]
            if not turned:
                said = "+".join(factories)
                raise UserError(f"LM: rotary positions are for mixers with an option `rotary` (attention), not {said}.")
            for name in turned:
                options[name]["rotary"] = True
        self.vocab_size, self.d_model, self.n_layers = vocab_size, d_model, len(layers)
        self._layers = layers
        self._given = {"mixer_options": dict(mixer_options or {}), "max_length": max_length, "canon": canon, "mlp": mlp}
        usual = {getattr(factory, "positions", "none") for factory in factories.values()}
        self.positions = positions or ("learned" if "learned" in usual else "none")
        with _seeded(seed):
            self.embed = nn.Embedding(vocab_size, d_model)
            self.embed_positions = nn.Embedding(max_length, d_model) if self.positions == "learned" else None
            mixers = [make_mixer(make, name, d_model, i, options[name]) for i, (name, make) in enumerate(layers)]
            self.blocks = nn.ModuleList(Block(d_model, m, mlp) for m in mixers)
            self.norm = nn.LayerNorm(d_model)
            self._init()
            add_canon(self._blocks(), canon)

    def _init(self) -> None:
        nn.init.normal_(self.embed.weight, std=STD)
        if self.embed_positions is not None:
            nn.init.normal_(self.embed_positions.weight, std=STD)
        blocks = self._blocks()
        init_transformer([block for block in blocks if not block.is_mamba], self.n_layers)
        init_mamba([block for block in blocks if block.is_mamba], self.n_layers)

    def forward(self, tokens: Tensor, at: Tensor | None = None) -> Tensor:
        """Logits at all positions, (B, L, V); or only at positions `at`: (B,) -> (B, V), (B, K) -> (B, K, V).

        With `at`, the numbers are the same, and the last block and the head are computed only where wanted.
        """
        h, head = self._read_by_head(tokens, at)
        return _logits(h, head, at)

    def loss(self, tokens: Tensor | Batch, at: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        """The mean cross-entropy () of `targets` (B, K) at positions `at` (B, K), from which a model is trained.

        In place of tokens, positions and targets, a batch of a task can be given: all of its questions are answered.
        It is that of `forward` but for rounding, and faster: the head's logits become their own gradient if the
        vocabulary is large, and on a CPU documents are read without what follows the last of these positions, unless
        that is little or a mixer is custom.
        """
        if isinstance(tokens, Batch):
            tokens, at, targets = tokens.questions()
        if at is None or targets is None:
            raise UserError("loss: give a batch of a task, or tokens (B, L), positions (B, K) and targets (B, K).")
        if (documents := self._worth_packing(tokens, at)) is None:
            return head_loss(*self._read_by_head(tokens, at), targets)
        with end_to_end(documents):
            h, head = self._read_by_head(documents.first_tokens(tokens), at)
        return head_loss(h, head, targets)

    def _worth_packing(self, tokens: Tensor, at: Tensor) -> Documents | None:
        """The documents up to the last of these positions, if it is faster to read them end to end."""
        if tokens.device.type != "cpu" or transformed() or not all(block.ragged for block in self._blocks()):
            return None
        lengths = at.numpy().max(axis=1) + 1
        return None if lengths.sum() > DENSE * tokens.numel() else Documents(torch.from_numpy(lengths))

    def read(self, tokens: Tensor, state: State = NOTHING_READ) -> tuple[Tensor, State]:
        """Logits (B, L, V) of the next tokens (B, L) of documents of which `state` was read, and the state after them.

        The numbers are those of `forward` for whole documents; a piece may be as short as one token.
        """
        if any(tap.readonly and tap.listening for tap in self.taps().values()):
            raise UserError("read: sites of states can be listened to in whole documents only.")
        with reading(state) as now:
            logits = self(tokens)
        return logits, now.after(tokens.shape[1])

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, n: int, *, temperature: float = 0.0, top_k: int | None = None, seed: int = 0
    ) -> Tensor:
        """The documents tokens (B, L), L >= 1, continued by n tokens each, (B, L + n).

        At temperature 0 the likeliest token is taken, else one is drawn by `seed`, of the `top_k` likeliest if given.
        Time and memory a token are those of the mixers' states: constant where these are.
        """
        if tokens.ndim != 2 or not tokens.shape[1] or n < 0:
            raise UserError(f"generate: give tokens (B, L) with L >= 1 and n >= 0 (got {tuple(tokens.shape)}, n={n}).")
        if temperature < 0 or (top_k is not None and not 1 <= top_k <= self.vocab_size):
            limits = f"a temperature of at least 0, and top_k of 1 to {self.vocab_size}"
            raise UserError(f"generate: give {limits} (got {temperature}, {top_k}).")
        random = torch.Generator(tokens.device).manual_seed(seed)
        found, piece, state = [tokens], tokens, NOTHING_READ
        training = self.training
        self.eval()
        try:
            for _ in range(n):
                logits, state = self.read(piece, state)
                piece = _chosen(logits[:, -1], temperature, top_k, random)
                found.append(piece)
        finally:
            self.train(training)
        return torch.cat(found, dim=1)

    def embedded(self, tokens: Tensor) -> Tensor:
        """What enters block 0, (B, L, D)."""
        return self._positioned(self.embed(tokens))

    def resume(self, block: int, h: Tensor, at: Tensor | None = None) -> Tensor:
        """Logits from the input h (B, L, D) of block number `block` on; `at` as in `forward`."""
        return _logits(self._run(block, h, at), self.embed.weight, at)

    def _read_by_head(self, tokens: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the head reads, (B, L or K, D), and its weights (V, D)."""
        if transformed():
            return self._run(0, self.embedded(tokens), at), self.embed.weight
        rows, head = _Tied.apply(self.embed.weight, tokens)  # type: ignore[no-untyped-call]
        return self._run(0, self._positioned(rows), at), head

    def _positioned(self, h: Tensor) -> Tensor:
        if self.embed_positions is None:
            return h
        first, limit = tokens_before(), self.embed_positions.num_embeddings
        length = first + longest(h)
        if length > limit:
            raise UserError(f"LM: {length} tokens exceed the position table; build it with max_length > {limit}.")
        if (documents := documents_now()) is not None:
            return h + F.embedding(documents.positions, self.embed_positions.weight)
        return h + self.embed_positions.weight[first:length]

    def _run(self, block: int, h: Tensor, at: Tensor | None) -> Tensor:
        *earlier, last = self._blocks()[block:]
        for each in earlier:
            h = each(h)
        normed: Tensor = self.norm(last(h, at[:, None] if at is not None and at.dim() == 1 else at))
        return normed

    def save(self, path: str | Path) -> None:
        """Write the weights as safetensors whose header has the model's arguments; `load_lm` reads the file.

        A custom mixer is kept by its name, with the digest of its source: another process needs MECHEVAL_MIXERS.
        """
        described = {"lm": arguments(self, self._layers, self._given)}
        write_output(path, pack(self.state_dict(), described))

    def taps(self) -> dict[str, Tap]:
        """Site -> tap, in the order in which they happen."""
        return dict(self._sites())

    def sites(self) -> list[Site]:
        """The sites of all activations that can be read or replaced."""
        return [site for site, _ in self._sites()]

    def heads(self) -> list[Site]:
        """The heads of all mixers that have them, `blocks.0.mixer.heads.3`: parts of the site `mixer.heads`."""
        return [Site(s.block, f"{s.part}.{i}", "head") for s, tap in self._sites() for i in range(tap.heads)]

    def find(self, name: str) -> tuple[Site, Tap] | None:
        """The site of this name with its tap, if there is one; cached, because one map needs thousands of look-ups."""
        for i, block in enumerate(self._blocks()):
            part = name.removeprefix(f"blocks.{i}.")
            if part != name and (tap := block.taps().get(part)) is not None:
                return Site(i, part, tap.kind), tap
        return None

    def _sites(self) -> list[tuple[Site, Tap]]:
        blocks = enumerate(self._blocks())
        return [(Site(i, part, tap.kind), tap) for i, block in blocks for part, tap in block.taps().items()]

    def state_size(self, length: int) -> int | None:
        """The number of values that all layers carry from token to token; None if a mixer does not say."""
        sizes = [block.state_size(length) for block in self._blocks()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def settled(self) -> set[str]:
        """The sites of the last block after which nothing moves between positions any more."""
        return self._blocks()[-1].settled()

    def ends_with_mixer(self, block: int) -> bool:
        """Whether the output of a block is its input plus its mixer's output, and nothing more."""
        return self._blocks()[block].ends_with_mixer

    @property
    def n_parameters(self) -> int:
        """The number of trainable parameters; the tied embedding counts once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]


def _logits(h: Tensor, head: Tensor, at: Tensor | None) -> Tensor:
    """(B, L or K, V), or (B, V) where one position of each document was asked for."""
    logits = linear(h, head)
    return logits if at is None or at.dim() > 1 else logits[:, 0]


def _chosen(logits: Tensor, temperature: float, top_k: int | None, random: torch.Generator) -> Tensor:
    """One token (B, 1) for each row of logits (B, V)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], float("-inf"))
    return (logits / temperature).softmax(-1).multinomial(1, generator=random)


def _layers(mixer: str | Factory | Sequence[str | Factory], n_layers: int | None) -> list[tuple[str, Factory]]:
    """Name and factory of the mixer of each layer."""
    if not isinstance(mixer, str | Sequence) or (isinstance(mixer, str) and not is_pattern(mixer)):
        parts, n_layers = [mixer], n_layers or LAYERS
    else:
        given = [mixer] if isinstance(mixer, str) else mixer
        parts = [part for each in given for part in (read_pattern(each) if isinstance(each, str) else [each])]
        if not parts:
            raise UserError("LM: mixer must name at least one layer.")
    for each in parts:
        if isinstance(each, nn.Module):
            checked(each, "LM: mixer")  # an error that says what to give instead
    named = [(each, MIXERS.get(each)) if isinstance(each, str) else (_name(each), each) for each in parts]
    return fill(named, n_layers)


def _name(factory: Factory) -> str:
    return str(getattr(getattr(factory, "func", factory), "__name__", factory))


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generator while the context lasts, and restore it afterwards; without a seed, do nothing.

    Only the generator of the CPU, where weights are drawn: without a GPU, `torch.manual_seed` formats the stack of
    calls for every kind of accelerator and keeps it for good, which takes a hundred times as long as the seed.
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


class _Tied(torch.autograd.Function):
    """Embedded tokens, and the embedding matrix for the head: one matrix, so one gradient.

    Left to autograd, a step would fill a second dense (V, D) gradient for the few rows that tokens touch and add the
    two, which takes longer than the head itself. Here those rows are added to the head's gradient in place.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(tokens)
        return F.embedding(tokens, weight), weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, drows: Tensor, dweight: Tensor) -> tuple[Tensor, None]:
        [tokens] = ctx.saved_tensors
        # In place unless this pass is itself differentiated.
        add = dweight.index_add if torch.is_grad_enabled() else dweight.index_add_
        return add(0, tokens.flatten(), drows.flatten(0, 1)), None
