"""What mixers cost: exact fits and crossings, resuming, marks for what does not fit, and one real measurement."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from commands import Command
from mecheval.analysis.cost_cell import Counting, model
from mecheval.errors import UserError
from mecheval.evaluation import cost
from mecheval.figures.cost import cost as chart
from mecheval.mixers.options import MIXERS
from mecheval.ops import dispatch
from mecheval.sweep.local import program
from training.runs import in_child, outcome

LENGTHS = (32, 1024, 2048, 4096, 8192)


def power_law(mixer: str, length: int) -> dict[str, Any]:
    """Attention costs length² / 100, all else 3 length; DeltaNet never fits beyond 1,024 tokens."""
    if mixer == "delta_net" and length > 1024:
        return {"fits": "memory"}
    paid = length**2 / 100 if mixer == "attention" else 3.0 * length
    return {"fits": "yes", **dict.fromkeys(cost.MEASURED, paid)}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    made: list[tuple[str, int]] = []

    def cells(asked: dict[str, list[int]], *_: Any) -> Generator[tuple[str, int, dict[str, Any]]]:
        for mixer, lengths in asked.items():
            for length in lengths:
                made.append((mixer, length))
                yield mixer, length, power_law(mixer, length)
                if power_law(mixer, length)["fits"] != "yes":
                    break

    monkeypatch.setattr(cost, "_cells", cells)
    return made


def test_power_laws_are_fitted_exactly() -> None:
    found = cost.exponent(LENGTHS, [0.5 * length**1.7 for length in LENGTHS])
    assert found == pytest.approx((1.7, 1.7, 1.7))
    assert cost.exponent(LENGTHS[:2], [1, 2]) is None
    slope, low, high = cost.exponent((1, 10, 100), (1, 12, 100)) or (0.0, 0.0, 0.0)
    assert low < slope < high
    assert slope == pytest.approx(1.0)


def test_crossing_points() -> None:
    quadratic, linear = [n**2 for n in LENGTHS], [300 * n for n in LENGTHS]
    assert cost.cheaper_from(LENGTHS, linear, quadratic) == pytest.approx(300)
    assert cost.cheaper_from(LENGTHS, quadratic, linear) is None
    assert cost.cheaper_from(LENGTHS, [1] * 5, [2] * 5) == 32


@pytest.mark.parametrize(
    ("powers", "outcomes"),
    [
        ((2.0, 1.0), ("holds (2.00 [2.00, 2.00])", "holds (1 of 1 are below; the largest is mamba's, 1.00")),
        ((1.5, 1.3), ("contradicted (1.50", "contradicted (0 of 1 are below; the largest is mamba's, 1.30")),
    ],
)
def test_hypotheses_about_exponents(powers: tuple[float, float], outcomes: tuple[str, str]) -> None:
    rows = [
        {"mixer": mixer, "length": length, "fits": "yes", **dict.fromkeys(cost.GROWING, length**power),
         "state": length if mixer == "attention" else 64}
        for mixer, power in zip(("attention", "mamba"), powers, strict=True) for length in LENGTHS
    ]  # fmt: skip
    told = [said for said in cost.hypotheses(pd.DataFrame(rows)) if not said.startswith("Only a part")]
    for said, expected in zip(told, outcomes, strict=True):
        assert f": {expected}" in said
    rows[2]["train_ms"] *= 3  # one point off the line of attention
    assert ": inconclusive (" in cost.hypotheses(pd.DataFrame(rows))[0]


def test_a_step_that_is_only_partly_quadratic_is_said_to_be() -> None:
    times = [0.03 * length + 1e-5 * length**2 for length in LENGTHS]
    assert cost.two_terms(LENGTHS, times) == pytest.approx((0.03, 1e-5))
    rows = [
        {"mixer": "attention", "length": length, "fits": "yes", **dict.fromkeys(cost.GROWING, ms), "state": length}
        for length, ms in zip(LENGTHS, times, strict=True)
    ]
    first, reason = cost.hypotheses(pd.DataFrame(rows))
    assert ": holds" not in first
    assert reason == (
        "Only a part of its step is quadratic: its times are 30 µs × tokens + 10 ns × tokens², to within 0%, of which "
        "the square is 25% at 1,024 and 73% at 8,192 tokens; the exponent between the two longest is 1.66."
    )


def test_rows_are_kept_and_what_does_not_fit_is_marked(calls: list[tuple[str, int]], tmp_path: Path) -> None:
    path = tmp_path / "cost.csv"
    first = cost.measured(path, ["attention", "delta_net"], LENGTHS)
    for _ in range(3):
        next(first)
    assert len(cost.rows_in(path)) == 3  # stopped here, three rows are there
    rows = list(cost.measured(path, ["attention", "delta_net"], LENGTHS))
    assert [new for _, new in rows] == [False] * 3 + [True] * 7
    assert [row["fits"] for row, _ in rows[5:]] == ["yes", "yes", "memory", "memory", "memory"]
    assert calls[-1] == ("delta_net", 2048)  # longer ones are marked without a try
    later = list(cost.measured(path, ["delta_net"], [*LENGTHS, 512, 9000]))
    assert {row["length"]: row["fits"] for row, new in later if new} == {512: "yes", 9000: "memory"}
    assert calls[-1] == ("delta_net", 512)
    assert not any(new for _, new in cost.measured(path, ["attention", "delta_net"], LENGTHS))
    frame = pd.DataFrame([row for row, _ in rows])
    assert cost.exponents(frame).set_index(["mixer", "quantity"])["exponent"]["attention", "train_ms"] == pytest.approx(
        2
    )
    assert cost.crossings(frame) == [
        "delta_net is cheaper than attention on this machine from 300 tokens in a training step, from 300 tokens in a "
        "forward pass, from 300 tokens in generation, from 300 tokens in memory."
    ]
    turned = cost.crossings(frame, "delta_net")[0]
    assert turned.startswith(
        "attention is not cheaper than delta_net on this machine: not at 1,024 tokens in a training"
    )
    drawn = chart(frame)
    crosses = [row for rows in drawn.spec["datasets"].values() for row in rows if "fits" in row]
    assert {(row["mixer"], row["length"], row["fits"]) for row in crosses} == {("delta_net", 2048, "too much memory")}


def test_two_commands_on_one_file_lose_no_row(calls: list[tuple[str, int]], tmp_path: Path) -> None:
    path = tmp_path / "cost.csv"
    both = [cost.measured(path, [mixer], LENGTHS) for mixer in ("attention", "delta_net")]
    for one, other in zip(*both, strict=True):
        assert [row["mixer"] for row, _ in (one, other)] == ["attention", "delta_net"]
    rows = cost.rows_in(path)
    assert {(row["mixer"], row["length"]) for row in rows} == {
        (mixer, length) for mixer in ("attention", "delta_net") for length in LENGTHS
    }
    assert len(rows) == 2 * len(LENGTHS)
    before = path.read_bytes()
    cost._keep(path, rows[0])  # what is there keeps its bytes and its place
    assert path.read_bytes() == before

    def keep(first: int) -> None:
        for length in range(first, first + 20):
            cost._keep(path, rows[0] | {"length": length})

    children = [in_child(lambda first=first: keep(first)) for first in (9000, 9100, 9200)]  # type: ignore[misc]
    assert [outcome(child) for child in children] == [0] * 3
    assert len(cost.rows_in(path)) == len(rows) + 60
    assert [each.name for each in tmp_path.iterdir()] == ["cost.csv"]


def test_a_measurement_whose_command_has_died_ends_without_a_word() -> None:
    given = {"asked": {"attention": [32], "based": [32]}, "d_model": 16, "memory": 10**10, "seconds": 60}
    command, surrounding = program("mecheval.analysis.cost_cell", json.dumps(given))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=surrounding)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process:
        assert process.stderr.read() == b""


def test_the_command(command: Command, calls: list[tuple[str, int]], tmp_path: Path) -> None:
    words = ["cost", "--mixers", "attention,mamba", "--csv", str(tmp_path / "cost.csv")]
    out = command.prints(*words)
    sentence = (
        "mamba is cheaper than attention on this machine from 300 tokens in a training step, from 300 tokens in a "
        "forward pass, from 300 tokens in generation, from 300 tokens in memory."
    )
    assert sentence in out
    assert "2.00 ± 0.00" in out
    code, out, err = command(*words, "--json", "--save", str(tmp_path / "cost.json"))
    assert code == 0
    expected = "A training step of attention has an exponent of at least 1.7: holds (2.00 [2.00, 2.00])."
    assert json.loads(out)["sentences"] == [expected, sentence]
    assert "wrote" in err
    assert len(calls) == 2 * len(cost.LENGTHS)
    code, _, err = command(*words, "--lengths", "many")
    assert (code, err) == (2, "mecheval: --lengths takes whole numbers, comma-separated (got 'many').\n")


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="not a table of `mecheval cost`"):
        next(cost.measured(path, ["attention"]))
    with pytest.raises(UserError, match="unknown mixer"):
        next(cost.measured(tmp_path / "new.csv", ["atention"]))


LIMITS = {"sliding_attention": {"memory": 10**7}, "base_conv": {"seconds": 0.01}, "nothing": {}}
"""What some mixers get less of than the others."""
IN_TURN = """
import json, sys
from mecheval.analysis.cost_cell import main
for given in json.loads(sys.argv[1]):
    main(**given)
"""


def test_real_measurements_and_some_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one program, because it takes seconds to start; it measures each mixer with its own limits."""

    def in_turn(module: str, given: str) -> tuple[list[str], dict[str, str]]:
        command, surrounding = program(module, given)
        assert command[-2:] == ["mecheval.analysis.cost_cell", given]
        plain = json.loads(given)
        each = [plain | {"asked": {name: own}} | LIMITS.get(name, {}) for name, own in plain["asked"].items()]
        return [*command[:2], "-c", IN_TURN, json.dumps(each)], surrounding

    monkeypatch.setattr(cost, "program", in_turn)
    known = MIXERS.get
    monkeypatch.setattr(MIXERS, "get", lambda name: name == "nothing" or known(name))  # it gets as far as the program
    mixers, found = ["attention", "based", *LIMITS], dict[tuple[str, int], dict[str, Any]]()
    measured = cost.measured(tmp_path / "cost.csv", mixers, [64, 128], 16)
    with pytest.raises(UserError, match=r"cost: nothing at 64 tokens: .*unknown mixer"):
        found.update(((row["mixer"], row["length"]), row) for row, _ in measured)
    for length in (64, 128):
        for name in ("attention", "based"):
            row = found[name, length]
            assert row["fits"] == "yes"
            assert row["state"] == model(name, length, 16).state_size(length)
            assert 0 < row["memory_mb"] < row["process_mb"]
            assert 0 < row["forward_ms"] < row["train_ms"]
        assert [found[name, length]["fits"] for name in ("sliding_attention", "base_conv")] == ["memory", "time"]
    assert [name for name, _ in found] == [name for name in mixers[:-1] for _ in range(2)]


def test_several_programs_share_the_mixers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that say what they were asked, one of which ends too early."""
    says = """
import json, sys
given = json.loads(sys.argv[1])
for mixer, lengths in given["asked"].items():
    for length in lengths:
        if mixer == "ends":
            sys.exit()
        fits = "memory" if (mixer, length) == ("large", 64) else "yes"
        print(json.dumps({"fits": fits, "own": [mixer, length, list(given["asked"])]}), flush=True)
        if fits != "yes":
            break
"""
    monkeypatch.setattr(cost, "program", lambda _, given: ([sys.executable, "-S", "-c", says, given], {}))
    asked = {"large": [32, 64, 128], "second": [32], "third": [64], "fourth": [32, 64]}
    found = list(cost._cells(asked, 16, 10**9, 60, 3))
    assert {(mixer, length): row["fits"] for mixer, length, row in found} == {
        ("large", 32): "yes", ("large", 64): "memory", ("second", 32): "yes", ("third", 64): "yes",
        ("fourth", 32): "yes", ("fourth", 64): "yes",
    }  # fmt: skip
    programs = {mixer: row["own"] for mixer, _, row in found}
    for mixer, length, row in found:
        assert row["own"] == [mixer, length, programs[mixer][2]]
    assert [programs[name][2] for name in asked] == [["large", "fourth"], ["second"], ["third"], ["large", "fourth"]]
    with pytest.raises(UserError, match="cost: ends at 64 tokens: the measurement ended without a result"):
        list(cost._cells({"third": [32], "ends": [64]}, 16, 10**9, 60, 1))


def test_flops() -> None:
    with Counting() as counting:
        torch.ones(3, 4) @ torch.ones(4, 5) + torch.ones(3, 5)
    assert counting.flops == 2 * 3 * 4 * 5 + 3 * 5


@pytest.mark.parametrize("mixer", ["attention", "mamba", "hyena"])
def test_flops_of_a_token_grow_as_the_state_does(mixer: str) -> None:
    def flops(length: int) -> int:
        lm, tokens = model(mixer, length, 16), torch.zeros(1, length, dtype=torch.long)
        with torch.no_grad():
            _, state = lm.read(tokens)
            with dispatch.path("reference"), Counting() as counting:
                lm.read(tokens[:, -1:], state)
        counted: int = counting.flops
        return counted

    short, middle, long = flops(50), flops(100), flops(150)
    assert long - middle == middle - short
    lm = model(mixer, 150, 16)
    assert (long > short) == (lm.state_size(150) != lm.state_size(50))
