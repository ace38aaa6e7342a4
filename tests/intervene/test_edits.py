from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import mecheval as me
from intervene.models import Sums, pairs, small_lm, small_task
from mecheval.errors import UserError
from mecheval.intervene import Intervention, Mean, Noise, Take, Zero, capture, patch
from mecheval.intervene.edits import Edit
from mecheval.intervene.explain import patched_logits
from mecheval.mixers import MIXERS
from mecheval.types import Batch


def document(*tokens: int) -> Batch:
    """One document of plain numbers; its roles are at positions 1 (key), 2 (value), 3 (query)."""
    one = small_task().sample(1)
    where = {"key": 1, "value": 2, "query": 3, "next_key": 3, "divider": 3, "bos": 0}
    return replace(
        one, tokens=torch.tensor([tokens]), lengths=torch.tensor([len(tokens)]), predict_at=torch.tensor([[3]]),
        roles={role: torch.tensor([place]) for role, place in where.items()}, parents=None,
    )  # fmt: skip


def test_capture_reads_whole_sites_and_roles() -> None:
    model, batch = Sums(), document(1, 10, 100, 1000)
    whole = capture(model, batch, ["embed.output", "add"])
    assert whole["embed.output"].tolist() == [[[1], [10], [100], [1000]]]
    assert whole["add"].tolist() == [[[1], [11], [111], [1111]]]
    at_roles = capture(model, batch, ["add.input"], ["key", -1, 0])
    assert {role: x.tolist() for role, x in at_roles["add.input"].items()} == {
        "key": [[10]],
        "-1": [[1000]],
        "0": [[1]],
    }


@pytest.mark.parametrize(
    ("site", "role", "edit", "sums"),
    [
        ("embed.output", "key", Zero(), [1, 1, 101, 1101]),
        ("add.input", "value", Take(torch.tensor([[7.0]])), [1, 11, 18, 1018]),
        ("add.output", "key", Zero(), [1, 0, 111, 1111]),
        ("add", "key", lambda x: x * 2, [1, 22, 111, 1111]),
        ("embed", "key", Mean(), [1, 11, 111, 1111]),  # of one document: itself
    ],
)
def test_an_edit_changes_what_comes_after_and_nothing_else(site: str, role: str, edit: Edit, sums: list[float]) -> None:
    model, batch = Sums(), document(1, 10, 100, 1000)
    with patch(model, [Intervention(site, role, edit)], batch):
        assert model(batch.tokens)[0, :, 0].tolist() == sums
    assert model(batch.tokens)[0, :, 0].tolist() == [1, 11, 111, 1111]


def test_edits_act_together_and_in_order() -> None:
    model, batch = Sums(), document(1, 10, 100, 1000)
    edits = [
        Intervention("embed.output", "key", Zero()),
        Intervention("embed.output", "key", lambda x: x + 5),
        Intervention("add.output", "query", lambda x: -x),
    ]
    with patch(model, edits, batch):
        assert model(batch.tokens)[0, :, 0].tolist() == [1, 6, 106, -1106]


def test_mean_and_noise() -> None:
    model = Sums()
    batch = replace(
        document(0, 0, 0, 0), tokens=torch.tensor([[0, 4, 0, 0], [0, 8, 0, 0]]), lengths=torch.tensor([4, 4]),
        roles={"key": torch.tensor([1, 1])}, answers=torch.tensor([0, 0]), index=torch.tensor([0, 1]),
    )  # fmt: skip
    with patch(model, [Intervention("embed.output", "key", Mean())], batch):
        assert model(batch.tokens)[:, 3, 0].tolist() == [6, 6]
    with patch(model, [Intervention("embed.output", "key", Noise(2.0, seed=3))], batch):
        drawn = model(batch.tokens)[:, 3, 0]  # sums of four numbers, in one order
        assert torch.equal(drawn, model(batch.tokens)[:, 3, 0])
    generator = torch.Generator().manual_seed(3)
    noise = 2 * torch.randn(2, 1, generator=generator, dtype=torch.float64)[:, 0]
    assert torch.equal(drawn, torch.tensor([4.0, 8.0]).double() + noise)


@pytest.mark.parametrize("mixer", MIXERS.names())
def test_edits_leave_no_trace_also_after_an_exception(mixer: str) -> None:
    lm = small_lm(mixer)
    batch, _ = pairs()
    before = lm(batch.tokens)

    def explode(x: Tensor) -> Tensor:
        raise RuntimeError("in the middle of a run")

    sites = [name for name, tap in lm.taps().items() if not tap.readonly]
    with pytest.raises(RuntimeError), patch(lm, [Intervention(site, "key", explode) for site in sites], batch):
        lm(batch.tokens)
    assert all(tap.listener is None for tap in lm.taps().values())
    assert torch.equal(lm(batch.tokens), before)  # the very same calls
    with (
        pytest.raises(UserError),
        patch(lm, [Intervention(s, "key", Zero()) for s in (sites[0], "blocks.9.input")], batch),
    ):
        pass
    assert all(tap.listener is None for tap in lm.taps().values())


def test_someone_elses_listener_keeps_listening() -> None:
    lm = small_lm("attention")
    batch, _ = pairs()
    tap = lm.taps()["blocks.0.input"]
    heard: list[int] = []

    def mine(x: Tensor) -> Tensor:
        heard.append(len(x))
        return x

    tap.listener = mine
    with patch(lm, [Intervention("blocks.0.input", "key", Zero())], batch):
        lm(batch.tokens)
    assert heard == [6]
    assert tap.listener is mine


@pytest.mark.parametrize(
    ("site", "role", "message"),
    [
        ("blocks.0.inputs", "key", "unknown site 'blocks.0.inputs'. Did you mean 'blocks.0.input'?"),
        ("blocks.0.input", "kee", "unknown role 'kee'. Did you mean 'key'?"),
        ("blocks.0.input", 99, "role '99': a position lies outside its document."),
        ("blocks.0.mixer.state", "key", "site blocks.0.mixer.state can only be read"),
    ],
)
def test_mistakes_name_the_choices(site: str, role: str | int, message: str) -> None:
    batch, _ = pairs()
    with pytest.raises(UserError) as raised, patch(small_lm("mamba"), [Intervention(site, role, Zero())], batch):
        pass
    assert message in str(raised.value)


def test_mistakes_with_any_module() -> None:
    batch = document(1, 10, 100, 1000)
    with pytest.raises(UserError, match=r"unknown site 'ad'. Choices: add.output, embed.output, head.output"):
        capture(Sums(), batch, ["ad"])
    with pytest.raises(UserError, match="name the sites of a module that is not an LM"):
        me.interchange(Sums(), batch, batch)
    with pytest.raises(UserError, match="a tuple that starts with one"):
        capture(Dictionary(), batch, ["inner"])
    with pytest.raises(UserError, match="ran without passing through unused"):
        capture(Dictionary(), batch, ["unused"])


class Dictionary(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.unused = Inner(), torch.nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens if not self.inner._forward_hooks else self.inner(tokens)["x"]


class Inner(torch.nn.Module):
    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"x": tokens}


@pytest.mark.parametrize("mixer", ["attention", "mamba"])
def test_documents_that_an_intervention_cannot_change_are_not_run_and_the_others_are_as_in_a_whole_run(
    mixer: str,
) -> None:
    lm, (clean, corrupted) = small_lm(mixer).double().eval(), pairs()
    sites = [
        f"blocks.{block}.{part}" for block in (0, 1) for part in ("input", "mixer.input", "mixer.output", "output")
    ]
    roles = ["bos", "key", "value", "query"]
    source, rows = capture(lm, clean, sites, roles), list[int]()
    lm.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    found = list(patched_logits(lm, clean, corrupted, sites, roles))
    assert sum(rows) < 0.75 * len(clean) * len(found)  # nothing at bos, and not every site at the others
    for site, role, logits in found:
        with torch.no_grad(), patch(lm, [Intervention(site, role, Take(source[site][role]))], corrupted):
            whole = lm(corrupted.tokens, at=corrupted.predict_at[:, 0])
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)
