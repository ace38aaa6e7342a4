from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import mecheval as me
from mecheval.errors import UserError
from mecheval.mixers import MIXERS
from mecheval.model.lm import LM
from mecheval.sites import Tap
from ops.agreement import assert_close

TOKENS = torch.randint(3, 40, (3, 19), generator=torch.Generator().manual_seed(0))
SMALL: dict[str, dict[str, Any]] = {"h3": {"d_state": 32}}


def keep(seen: dict[Any, torch.Tensor], key: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A listener that writes down what passes."""

    def listener(x: torch.Tensor) -> torch.Tensor:
        seen[key] = x
        return x

    return listener


def lm(mixer: str, n_layers: int = 2, **more: Any) -> LM:
    return LM(40, 16, n_layers, mixer, SMALL.get(mixer), seed=0, **more)


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("mixer", MIXERS.names())
def test_logits_at_positions_are_those_of_the_whole(mixer: str, n_layers: int) -> None:
    model = lm(mixer, n_layers)
    at = torch.tensor([[18, 2], [0, 18], [7, 7]])
    whole = model(TOKENS)
    assert whole.shape == (3, 19, 40)
    some = model(TOKENS, at=at)
    assert some.shape == (3, 2, 40)
    expected = whole[torch.arange(3)[:, None], at]
    assert_close([some], [expected])
    assert_close([model(TOKENS, at=at[:, 0])], [some[:, 0]])
    assert model(TOKENS, at=at[:, :0]).shape == (3, 0, 40)


@pytest.mark.parametrize("mixer", MIXERS.names())
def test_with_at_the_last_block_works_only_where_wanted(mixer: str) -> None:
    """Rows that go through each module: the head, MLP, second norm and output projection see one token a document."""
    model = lm(mixer)
    rows: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            module.register_forward_hook(
                lambda m, args, out, name=name: rows.__setitem__(name, args[0][..., 0].numel())
            )
    model(TOKENS, at=torch.full((3,), 18))
    narrow = {"norm", "blocks.1.norm2", "blocks.1.mlp.fc1", "blocks.1.mlp.fc2"}
    outputs = dict.fromkeys(("attention", "hyena", "mamba", "mamba2", "sliding_attention"), "out_proj")
    outputs |= dict.fromkeys(("delta_net", "gated_delta_net", "gla", "kda", "mesa_net", "retnet", "rwkv7"), "o_proj")
    outputs |= {"based": "proj_o", "h3": "output_linear", "base_conv": "projection", "rg_lru": "linear_out"}
    narrow.add(f"blocks.1.mixer.{outputs[mixer]}")
    queries = {"based": "proj_q", "h3": "q_proj", "gla": "q_proj", "retnet": "q_proj", "rwkv7": "r_proj"}
    narrow |= {f"blocks.1.mixer.{queries[mixer]}"} if mixer in queries else set()
    gates = {"gated_delta_net": "g_proj", "gla": "g_proj", "kda": "g_proj.1", "retnet": "g_proj", "rg_lru": "linear_y"}
    narrow |= {f"blocks.1.mixer.{gates[mixer]}"} if mixer in gates else set()
    assert {name: rows[name] for name in narrow if name in rows} == dict.fromkeys(narrow & rows.keys(), 3)
    assert f"blocks.1.mixer.{outputs[mixer]}" in rows
    assert rows[f"blocks.0.mixer.{outputs[mixer]}" if mixer != "based" else "blocks.0.mixer.projection"] == 57


@pytest.mark.parametrize("mixer", MIXERS.names())
def test_resuming_from_a_block_is_running_from_the_start(mixer: str) -> None:
    model = lm(mixer, 3)
    inputs: dict[int, torch.Tensor] = {}
    for i in range(3):
        tap = model.taps()[f"blocks.{i}.input"]
        tap.listener = keep(inputs, i)
    logits = model(TOKENS)
    for tap in model.taps().values():
        tap.listener = None
    at = torch.tensor([3, 18, 0])
    for i in range(3):  # to the bit: the very same calls
        assert torch.equal(model.resume(i, inputs[i]), logits)
        assert torch.equal(model.resume(i, inputs[i], at), model(TOKENS, at=at))


@pytest.mark.parametrize("mixer", MIXERS.names())
def test_replacing_a_site_by_itself_changes_nothing(mixer: str) -> None:
    """In a block that runs everywhere, as all but the last one do, and only where it is wanted, as the last does."""
    model = lm(mixer, 1)
    plain = model(TOKENS)
    for site, tap in model.taps().items():
        shapes: list[torch.Size] = []

        def clone(x: torch.Tensor, shapes: list[torch.Size] = shapes) -> torch.Tensor:
            shapes.append(x.shape)
            return x.clone()

        tap.listener = clone
        assert_close([model(TOKENS)], [plain])
        assert_close([model(TOKENS, at=torch.full((3,), 18))], [plain[:, 18]])
        tap.listener = None
        assert len(shapes) == 2, site  # each site happens once in a pass
        assert len(shapes[0]) == len(tap.shape.split()), site
        assert shapes[0] == shapes[1], site
        assert shapes[0][tap.position_axis] == 19, site
        assert shapes[0][0] == 3, site


@pytest.mark.parametrize("mixer", MIXERS.names())
def test_every_writable_site_matters(mixer: str) -> None:
    """In double precision, because with initial weights some sites matter little, and rounding must not count."""
    model = lm(mixer, 1).double()
    plain = model(TOKENS)
    for site, tap in model.taps().items():
        # Not the same everywhere: a constant that is added to all keys, say, cancels in the softmax.
        tap.listener = lambda x: x + torch.linspace(0, 1, x.numel()).view_as(x)
        change = float((model(TOKENS) - plain).detach().abs().max() / plain.detach().abs().max())
        tap.listener = None
        assert change < 1e-12 if tap.readonly else change > 1e-9, f"{site}: {change}"


def test_sites_of_a_mamba_in_order() -> None:
    inner = ["conv", "u", "gate", "dt", "B", "C", "state", "weights", "scan"]
    block = ["input", "mixer.input", *(f"mixer.{name}" for name in inner), "mixer.output", "output"]
    assert lm("mamba").sites() == [f"blocks.{i}.{name}" for i in range(2) for name in block]
    assert "blocks.0.mixer.conv" not in LM(40, 16, 1, "mamba", {"d_conv": 0}).sites()


def test_sites_of_an_attention_block_in_order() -> None:
    names = ["input", "mixer.input", "mixer.q", "mixer.k", "mixer.v", "mixer.pattern", "mixer.heads", "mixer.output",
             "mlp.input", "mlp.output", "output"]  # fmt: skip
    assert lm("attention", 1).sites() == [f"blocks.0.{name}" for name in names]


@pytest.mark.parametrize(("mixer", "site"), [("mamba", "state"), ("delta_net", "state"), ("based", "state")])
def test_recurrent_states_reproduce_the_read_out(mixer: str, site: str) -> None:
    """What the state holds after each position, read with that position's query, is what the mixer read."""
    model = lm(mixer)
    seen: dict[str, torch.Tensor] = {}
    for name, tap in model.taps().items():
        tap.listener = keep(seen, name)
    model(TOKENS)
    at = {name.removeprefix("blocks.1.mixer."): x for name, x in seen.items() if name.startswith("blocks.1.mixer.")}
    state = at[site]
    if mixer == "mamba":
        mixer_module: Any = model.blocks[1].mixer
        D = mixer_module.D
        read = torch.einsum("blen,bln->ble", state, at["C"]) + D * at["u"]
        expected = at["scan"]
    elif mixer == "delta_net":
        read, expected = torch.einsum("blhkv,blhk->blhv", state, at["q"]), at["heads"]
    else:
        q = at["q"]
        phi = torch.cat(
            [torch.ones_like(q[..., :1]), q / 8**0.25, (q[..., :, None] * q[..., None, :]).flatten(-2) / 4], -1
        )
        both = torch.einsum("blhpe,blp->blhe", state, phi)
        read, expected = (both[..., :-1] / both[..., -1:]).flatten(2), at["heads"]
    assert torch.allclose(read, expected, rtol=1e-4, atol=1e-5 * float(expected.detach().abs().max()))


def test_attention_pattern_is_causal_and_sums_to_one() -> None:
    model = lm("attention")
    seen: dict[str, torch.Tensor] = {}
    model.taps()["blocks.0.mixer.pattern"].listener = keep(seen, "pattern")
    model(TOKENS)
    pattern = seen["pattern"]
    assert pattern.shape == (3, 1, 19, 19)
    assert torch.allclose(pattern.sum(-1), torch.ones(3, 1, 19))
    assert not pattern.triu(1).any()


@pytest.mark.parametrize("mixer", MIXERS.names())
def test_saved_and_loaded_weights_give_the_same_logits(mixer: str, tmp_path: Path) -> None:
    first, second = lm(mixer), LM(40, 16, 2, mixer, SMALL.get(mixer), seed=1)
    assert not torch.equal(first(TOKENS), second(TOKENS))
    weights = {name: value.clone() for name, value in first.state_dict().items()}
    save_file(weights, tmp_path / "w.safetensors")
    second.load_state_dict(load_file(tmp_path / "w.safetensors"))
    assert torch.equal(first(TOKENS), second(TOKENS))  # the very same calls


def test_a_seed_fixes_the_weights_and_leaves_torch_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, second = lm("mamba"), lm("mamba")
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_positions_are_as_asked() -> None:
    assert lm("attention").embed_positions is not None
    assert lm("mamba").embed_positions is None
    assert lm("mamba", positions="learned").embed_positions is not None
    none = lm("attention", 1, positions="none")
    same = torch.full((1, 9), 7)
    assert_close([none(same)[:, 0]], [none(same)[:, 8]])  # nothing tells positions apart
    rotary = lm("attention", 2, positions="rotary")
    assert rotary.embed_positions is None
    mixer: Any = rotary.blocks[0].mixer
    assert mixer.rotary is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mixer": "mamab"}, "unknown mixer 'mamab'"),
        ({"mixer": "mamba", "positions": "rotary"}, "rotary positions are for mixers with an option `rotary`"),
        ({"positions": "sine"}, "unknown kind of positions 'sine'"),
        ({"n_layers": 0}, "LM: n_layers must be positive (got 0)"),
        ({"mixer_options": {"heads": 2}}, "unknown option of attention 'heads'. Did you mean 'num_heads'?"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        LM(40, 16, **arguments)
    assert message in str(error.value)


def test_a_document_longer_than_the_position_table_is_named() -> None:
    with pytest.raises(UserError, match="19 tokens exceed the position table"):
        lm("attention", max_length=10)(TOKENS)


class Shift(nn.Module):
    """A mixer from elsewhere: each token sees its predecessor."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
        self.seen = Tap("seen")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(self.seen(nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]))
        return y


def test_any_module_can_be_the_mixer() -> None:
    model = me.LM(40, 16, 2, Shift, seed=0)
    assert "blocks.1.mixer.seen" in model.sites()
    assert model.state_size(10) is None
    at = torch.tensor([4, 5, 6])
    assert_close([model(TOKENS, at=at)], [model(TOKENS)[torch.arange(3), at]])
    default_std = 16**-0.5 / 3**0.5
    mixer: Any = model.blocks[0].mixer
    assert float(mixer.linear.weight.detach().std()) == pytest.approx(default_std, rel=0.15)


def test_blocks_without_an_mlp() -> None:
    """h <- h + mixer(norm1(h)) and nothing else; Canon convolutions of an MLP have no place."""
    model = lm("attention", 1, mlp=False)
    assert not any("mlp" in name or "norm2" in name for name, _ in model.named_parameters())
    assert not any("mlp" in site for site in model.taps())
    block, h = model.get_submodule("blocks.0"), model.embedded(TOKENS)
    mixer, norm = block.get_submodule("mixer"), block.get_submodule("norm1")
    assert_close([block(h)], [h + mixer(norm(h))])
    at = torch.tensor([[18], [0], [7]])
    assert_close([model(TOKENS, at=at)], [model(TOKENS)[torch.arange(3)[:, None], at]])
    with pytest.raises(UserError, match="C needs an MLP, which no layer of this model has"):
        lm("attention", 1, mlp=False, canon="AC")
    named = me.run_config("ar", "attention")
    assert named.id == me.run_config("ar", "attention", mlp=True).id != me.run_config("ar", "attention", mlp=False).id


def test_sizes_of_a_whole_model() -> None:
    model = LM(8195, 64, 2, "mamba")
    mixer = 256 * 64 + 128 * 5 + 36 * 128 + 5 * 128 + 128 * 16 + 128 + 128 * 64
    assert model.n_parameters == 8195 * 64 + 2 * (mixer + 64) + 2 * 64
    assert model.state_size(36) == 2 * (128 * 16 + 3 * 128)
    transformer = LM(8195, 64, 2, "attention")
    mlp = 8 * 64 * 64 + 5 * 64
    assert transformer.n_parameters == (8195 + 1024) * 64 + 2 * (4 * 64 * 64 + 64 + mlp + 4 * 64) + 2 * 64


def test_work_of_a_narrow_last_block_counted_by_hand() -> None:
    """Multiply-adds of all matrix products in a 1-layer model, one position wanted of 19 in each of 3 documents."""
    B, L, d, V = 3, 19, 16, 40
    mlp = 2 * 4 * d * d  # of one token
    head = d * V
    counted = {
        # of one token: query, query through the keys' map, row of scores, mix of inputs, values' map, output
        "attention": B * (d * d + d * d + L * d + L * d + d * d + d * d + mlp + head),
        # u, B and the step of all tokens (E = 2d, N = 16, R = 1); gate, C and output of one; the scan is no product
        "mamba": B * (L * (d * 2 * d + 2 * d * 17 + 2 * d) + d * 2 * d + 2 * d * 16 + 2 * d * d + head),
        # keys and values everywhere; the query's three taps; the filter, once, over 64-wide layers
        "hyena": B * (L * 2 * d * d + 3 * d * d + d * d + mlp + head) + L * (3 * 64 + 2 * 64 * 64 + 64 * d),
    }
    for mixer, expected in counted.items():
        model = LM(V, d, 1, mixer, seed=0)
        with FlopCounterMode(display=False) as counter:
            model(TOKENS, at=torch.full((3,), 18))
        taps = 3 * B * d if mixer == "hyena" else 0  # the short convolution's sum, where it is a product of matrices
        assert counter.get_total_flops() / 2 in (expected, expected + taps), mixer


def test_one_gradient_of_the_tied_embedding_is_the_sum_of_both() -> None:
    """`forward` adds the tokens' rows to the head's gradient; autograd, left alone, adds two dense ones. Twice over."""
    model = lm("mamba").double()
    parameters = list(model.parameters())

    def gradients(logits: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        first = torch.autograd.grad(logits.logsumexp(-1).sum(), parameters, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), parameters)  # type: ignore[arg-type]
        return list(first), list(second)

    ours, theirs = gradients(model(TOKENS)), gradients(model.resume(0, model.embedded(TOKENS)))
    for mine, yours in zip(ours, theirs, strict=True):
        assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(mine, yours, strict=True))
    model.zero_grad()
    model(TOKENS).logsumexp(-1).sum().backward()
    assert model.embed.weight.grad is not None
    assert torch.allclose(model.embed.weight.grad, ours[0][0], rtol=1e-10, atol=1e-12)


def test_a_site_is_found_by_its_name() -> None:
    model = LM(20, 16, 11, "attention")
    for site in model.sites():
        found = model.find(str(site))
        assert found is not None
        assert found == (site, model.taps()[site])
        assert found[0].block == site.block  # of block 1, not of block 10
    assert model.find("mixer.q") is None
    assert model.find("blocks.11.input") is None
