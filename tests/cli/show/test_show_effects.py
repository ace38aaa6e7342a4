from __future__ import annotations

import math
import re

import pandas as pd
import pytest
from rich.console import Console, RenderableType

import mecheval as me
from mecheval.cli.show.effects import (
    ENDS,
    PARTS,
    among,
    effects_table,
    effects_text,
    patched_tables,
    run_text,
    substitution_text,
    verdict_text,
)  # fmt: skip
from mecheval.errors import UnknownName, UserError
from mecheval.intervene import interchange, verdict
from mecheval.intervene.explain import Answer, Explanation, Patched, explain
from mecheval.model import LM
from mecheval.model.handmade import handmade
from mecheval.sites import Site
from mecheval.tasks import Task
from mecheval.types import ALL_ROLES, Batch
from places import located

NAN = math.nan


def printed(what: RenderableType, width: int = 80, colour: bool = False) -> list[str]:
    console = Console(width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    with console.capture() as capture:
        console.print(what, highlight=False)
    return [line.rstrip() for line in capture.get().splitlines()]


def table(shares: dict[tuple[str, str], float], original: float = 0.9, corrupted: float = 0.1) -> pd.DataFrame:
    rows = [
        {"site": s, "role": r, "original": original, "corrupted": corrupted, "restored": 0.2, "share": x, "n": 8}
        for (s, r), x in shares.items()
    ]
    return located(pd.DataFrame(rows).assign(attribution=0.1))


@pytest.fixture
def task() -> Task:
    return me.build_task("ar", pairs=3, keys=8, values=8)


@pytest.fixture
def pair(task: Task) -> tuple[Batch, Batch]:
    clean = task.sample(6, "test")
    return clean, task.corrupt(clean)


def test_the_map_is_by_depth_and_role() -> None:
    shares = {("blocks.1.input", "value"): 1.0, ("blocks.0.output", "key"): -0.001, ("blocks.0.input", "key"): 0.256}
    shares |= {("blocks.1.input", "key"): NAN}
    assert printed(effects_table(table(shares))) == [
        "           key     value",
        "layer 0",
        " input     0.26      –",
        " output    0.00      –",
        "layer 1",
        " input      –       1.00",
    ]


def test_the_map_of_all_roles_fits_80_columns_and_squeezes_below() -> None:
    names = ["input", "mixer.long_conv", "output"]
    effects = table({(f"blocks.{i}.{name}", role): 0.5 for i in (0, 1) for name in names for role in ALL_ROLES})
    for width in (60, 80, 120):
        lines = printed(effects_table(effects, width), width)
        assert max(map(len, lines)) <= width
        assert [line.split()[1:] for line in lines if "long_conv" in line] == [["0.50"] * 7] * 2
    assert printed(effects_table(effects, 80), 80)[0].split() == list(ALL_ROLES)


def styles(effects: pd.DataFrame) -> dict[str, str]:
    """Number -> the codes of its colours, where it has any."""
    [line] = [line for line in printed(effects_table(effects), colour=True) if "input" in line]
    return {text.strip(): codes for codes, text in re.findall(r"\x1b\[([\d;]+)m([^\x1b]+)\x1b\[0m", line)}


def test_colour_grows_from_the_terminals_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = dict(zip(ALL_ROLES, (0.04, 0.3, 1, 7, -1, 0.5), strict=False))
    effects = table({("blocks.0.input", role): share for role, share in shares.items()})
    monkeypatch.delenv("COLORFGBG", raising=False)
    brightest = "1;38;2;0;0;0;48;2;127;184;248"  # bold black on RAMP[3]
    assert styles(effects) == {
        "0.30": "38;2;255;255;255;48;2;19;82;142", "0.50": "1;38;2;255;255;255;48;2;35;120;202", "1.00": brightest,
        "7.00": brightest,
    }  # fmt: skip
    monkeypatch.setenv("COLORFGBG", "0;15")
    darkest = "1;38;2;255;255;255;48;2;7;46;85"  # bold white on RAMP[10]
    assert styles(effects) == {
        "0.30": "38;2;0;0;0;48;2;127;184;248", "0.50": "1;38;2;0;0;0;48;2;59;141;226", "1.00": darkest, "7.00": darkest,
    }  # fmt: skip


def test_names_are_not_markup() -> None:
    effects = table({("[red]a[/red]", "[b]r[/b]"): 1.0})
    lines = printed(effects_table(effects))
    assert lines[0].split() == ["[b]r[/b]"]
    assert lines[1].split() == ["[red]a[/red]", "1.00"]
    assert printed(run_text("0" * 12, "[red]x[/red]", "last state", None))[0] == "[red]x[/red]"


def test_what_is_shown_when_nothing_is_learnt() -> None:
    effects = table({("blocks.0.input", "key"): NAN, ("blocks.0.input", "value"): NAN}, 0.131, 0.129)
    assert printed(effects_table(effects))[-1].split() == ["input", "0.20", "0.20"]
    said = " ".join(printed(effects_text(effects)))
    assert said.startswith("The task is not learnt: the likelihood of the answer is 0.131, and 0.129 with the key corr")
    assert "The map shows the likelihood after patching in one clean activation." in said


def test_the_sites_that_are_shown_first() -> None:
    sites = LM(9, 8, 2, "delta_net").sites()
    convolutions = ["mixer.q_conv", "mixer.k_conv", "mixer.v_conv"]
    assert among(sites, ENDS) == [f"blocks.{i}.{x}" for i in (0, 1) for x in ("input", *convolutions, "output")]
    parts = ["input", "mixer.input", *convolutions, "mixer.output", "mlp.input", "mlp.output", "output"]
    assert among(sites, PARTS) == [f"blocks.{i}.{x}" for i in (0, 1) for x in parts]


def test_the_verdict_in_words(task: Task) -> None:
    clean = task.sample(20, "test")
    found = verdict(handmade("induction", task), clean, task.corrupt(clean))
    lines = printed(verdict_text(found))
    assert lines[0] == "Verdict: induction: layer 0 stores the key at the value, layer 1 retrieves"
    assert lines[1] == "- Same verdict in 100 % of bootstrap resamples."
    text = " ".join(line.removeprefix("- ").strip() for line in lines[2:])
    assert text == " ".join(found.evidence)
    assert all(line.startswith(("- ", "  ")) for line in lines[1:])


@pytest.mark.parametrize("mixer", ["attention", "mamba", "delta_net"])
def test_explained_likelihoods_are_those_of_interchange(mixer: str, task: Task, pair: tuple[Batch, Batch]) -> None:
    lm = LM(task.vocab_size, 16, 2, mixer, max_length=task.max_tokens, seed=1)
    sites = among(lm.sites(), PARTS)
    effects = interchange(lm, *pair, sites, ALL_ROLES, per_document=True).set_index(["document", "site", "role"])
    for row in (0, 4):
        explained = explain(lm, task, pair[0][row : row + 1], pair[1][row : row + 1], sites, ALL_ROLES, top=2)
        assert [(each.site, each.role) for each in explained.patched] == [(s, r) for s in sites for r in ALL_ROLES]
        for each in explained.patched:
            expected = effects.loc[(int(pair[0].index[row]), each.site, each.role)]
            if each.position is None:
                assert (math.isnan(expected["restored"]), each.answers) == (True, ())
            else:
                assert likelihood(each.answers) == pytest.approx(expected["restored"], rel=1e-4)
        assert likelihood(explained.clean) == pytest.approx(expected["original"], rel=1e-4)
        assert likelihood(explained.corrupted) == pytest.approx(expected["corrupted"], rel=1e-4)


def likelihood(answers: tuple[Answer, ...]) -> float:
    [p] = [each.p for each in answers if each.right]
    return p


def test_an_induction_model_explained(task: Task, pair: tuple[Batch, Batch]) -> None:
    clean, corrupted = (batch[2:3] for batch in pair)
    lm = handmade("induction", task).train()
    explained = explain(lm, task, clean, corrupted, ["blocks.1.input"], ["key", "value", "query"], top=1)
    assert lm.training  # as it came
    key, answer = int(clean.roles["key"]), task.symbol(int(clean.answers))
    assert explained.key == task.symbol(int(clean.tokens[0, key])) == task.symbol(int(clean.tokens[0, -3]))
    assert explained.substitute == task.symbol(int(corrupted.tokens[0, key])) != explained.key
    assert [(each.symbol, each.right) for each in explained.clean] == [(answer, True)]
    assert explained.clean[0].p > 0.99
    at_key, at_value, at_query = explained.patched
    assert [each.symbol for each in at_value.answers] == [answer]
    assert at_value.answers[0].p > 0.99
    for unchanged in (at_key, at_query):  # in other batches: logits of about ten, rounded in other ways
        assert likelihood(unchanged.answers) == pytest.approx(likelihood(explained.corrupted), rel=1e-4)
    assert explained.corrupted[-1].p < 0.5


def test_explain_refuses(task: Task, pair: tuple[Batch, Batch]) -> None:
    lm, one = handmade("induction", task), [batch[:1] for batch in pair]
    with pytest.raises(UserError, match=r"give one document \(got 6 clean and 6 corrupted\)"):
        explain(lm, task, *pair, ["blocks.0.input"], ["key"])
    with pytest.raises(UserError, match=r"top must be positive \(got 0\)"):
        explain(lm, task, one[0], one[1], ["blocks.0.input"], ["key"], top=0)
    with pytest.raises(UnknownName, match=r"unknown site 'blocks.2.input'"):
        explain(lm, task, one[0], one[1], ["blocks.2.input"], ["key"])
    with pytest.raises(UnknownName, match=r"unknown role 'keys'\. Did you mean 'key'\?"):
        explain(lm, task, one[0], one[1], ["blocks.0.input"], ["keys"])
    mamba = LM(task.vocab_size, 16, 2, "mamba")
    with pytest.raises(UserError, match=r"site blocks.0.mixer.state can only be read"):
        explain(mamba, task, one[0], one[1], ["blocks.0.mixer.state"], ["key"])


A, B, C = Answer("v6", 0.93, True), Answer("[b]", 0.05, False), Answer("v11", 0.6, False)
EXPLAINED = Explanation("k1", "k2", (A, B), (C, Answer("v6", 0.01, True)), (
    Patched(Site(0, "input"), "key", 3, (A, B)), Patched(Site(0, "input"), "random", None, ()),
    Patched(Site(1, "input"), "key", 3, (A,)), Patched(Site(1, "input"), "random", None, ()),
))  # fmt: skip


def test_an_explanation_in_words() -> None:
    assert printed(substitution_text(EXPLAINED)) == [
        "Corrupted: k2 in place of the key k1.",
        "      clean: v6  0.93 ✓  [b] 0.05",
        "  corrupted: v11 0.60  v6  0.01 ✓",
    ]
    [found] = patched_tables(EXPLAINED)
    assert printed(found) == [
        "       key @3      random @–",
        "layer 0",
        " input v6  0.93 ✓  –",
        "       [b] 0.05",
        "",
        "layer 1",
        " input v6 0.93 ✓   –",
    ]


def test_roles_that_do_not_fit_go_into_the_next_table() -> None:
    heads = [printed(found, 30)[0].split() for found in patched_tables(EXPLAINED, 30)]
    assert heads == [["key", "@3"], ["random", "@–"]]
