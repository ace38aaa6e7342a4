from __future__ import annotations

import pytest
from rich.console import Console, RenderableType

from mecheval.cli.show import studies as show
from mecheval.config import run_config
from mecheval.paper import Judged, Setting, compare, counted
from mecheval.paper.judging import Spread, spreads_said
from paper.tables import put, settings, table

NUMBERS = {"original": 0.9, "corrupted": 0.1, "restored_key": 0.1, "restored_value": 0.85, "restored_query": 0.1}


def printed(shown: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_a_model_that_both_sides_have() -> None:
    frame = table(NUMBERS, mixer=("attention",), d_model=(64,))
    lines = printed(show.cells_table(compare("ar", frame, "laptop")))
    assert lines[0] == "mixer d original corrupted at key at value at query"
    here = lines.index("attention 64 ours 90.0 10.0 10.0 85.0 10.0")
    assert lines[here + 1 : here + 3] == ["paper 99.9 5.5 4.3 99.9 6.4", "diff -9.9 +4.5 +5.7 -14.9 +3.6"]


def test_a_line_a_model_in_a_wide_terminal() -> None:
    frame = table(NUMBERS, mixer=("attention",), d_model=(64,))
    compared = compare("ar", frame, "laptop")
    lines = printed(show.cells_table(compared, 130), 130)
    assert lines[1] == "mixer d" + 5 * " ours paper diff"
    assert len(lines) == 2 + 35
    assert "attention 64 90.0 99.9 -9.9 10.0 5.5 +4.5 10.0 4.3 +5.7 85.0 99.9 -14.9 10.0 6.4 +3.6" in lines
    assert "attention 16" + " – 1.9 – – 1.7 – – 1.7 – – 2.1 – – 1.7 –" in lines
    seeds = compare("ar", table(NUMBERS, mixer=("attention",), d_model=(64,), seed=(0, 1)), "laptop")
    assert printed(show.cells_table(seeds, 130), 130) == printed(show.cells_table(seeds))


def test_models_that_one_side_lacks() -> None:
    frame = table(NUMBERS, mixer=("attention",), d_model=(96,))
    lines = printed(show.cells_table(compare("ar", frame, "laptop")))
    here = lines.index("attention 96 ours 90.0 10.0 10.0 85.0 10.0")
    assert lines[here + 1] == "paper – – – – –"
    assert lines[lines.index("attention 64 ours – – – – –") + 1] == "paper 99.9 5.5 4.3 99.9 6.4"
    assert not any(line.startswith("diff") for line in lines)


def test_a_mean_does_not_hide_a_seed() -> None:
    frame = put(table(NUMBERS, mixer=("attention",), d_model=(64,), seed=(0, 1)), {"original": 0.3}, seed=1)
    lines = printed(show.cells_table(compare("ar", frame, "laptop")))
    here = lines.index("attention 64 ours 60.0 10.0 10.0 85.0 10.0")
    assert lines[here + 1].startswith("2 seeds 30.0–90.0 10.0–10.0 ")


def test_rates_are_shown_where_none_was_chosen() -> None:
    numbers = {
        "original": 0.9,
        "corrupted": 0.1,
        "conv0_at_value": 0.1,
        "conv0_at_next_key": 0.8,
        "conv1_at_value": 0.1,
    }
    lines = printed(show.cells_table(compare("ar_mamba_inside", table(numbers, d_model=(64,)), "laptop")))
    here = lines.index("0.001 64 ours 90.0 10.0 10.0 80.0 10.0")
    assert lines[here + 1] == "paper 53.2 4.2 2.3 44.7 6.0"


def test_how_close_is_told_at_the_papers_scale_only() -> None:
    frame = table(NUMBERS, mixer=("attention",), d_model=(64,))
    about = f"{show.NUMBERS} The paper's are means over 320 documents."
    assert show.cells_text(compare("ar", frame, "laptop")).plain == about
    assert show.cells_text(compare("ar", frame, "paper")).plain == (
        f"{about} 4 of 5 numbers that are 10% or more on either side are within 10 points; 0 others are near zero on "
        "both sides. The largest difference is -14.9 (attention, d_model 64, restored at value)."
    )


def test_patterns() -> None:
    frame = table(NUMBERS, mixer=("attention", "[red]mine[/red]"), d_model=(64, 128))
    lines = printed(show.patterns_table(compare("ar", frame, "laptop")), 140)
    assert "attention value (d 64, d 128) value (d 32, d 64, d 128, d 256); not learnt (d 16) 2 of 2 runs" in lines
    assert "[red]mine[/red] value (d 64, d 128) – –" in lines
    assert "h3 – not learnt (d 16, d 32, d 64, d 128, d 256) –" in lines


@pytest.mark.parametrize(
    ("scale", "line"),
    [
        (
            "laptop",
            "AR, ours: 4 pairs of 32 keys with 4 queries, up to 1,500 steps of 128 documents; "
            "the paper: 16 pairs of 4,096 keys, 50,016 steps of 32 documents.",
        ),
        ("paper", "AR, both: 16 pairs of 4,096 keys, 50,016 steps of 32 documents."),
    ],
)
def test_settings(scale: str, line: str) -> None:
    said = show.settings_text(settings(scale)).plain.splitlines()
    assert len(said) == 3
    assert said[0] == line
    assert said[2] == show.CHOICE
    alone = show.settings_text({"ar": settings(scale)["ar"]}).plain.splitlines()
    assert alone[0] == line.removeprefix("AR, ").capitalize()


def test_the_paper_had_a_dev_set_only_with_a_hold_out() -> None:
    held = Setting.of(run_config("atr", holdout=0.2))
    assert show.settings_text({"atr": held}).plain.splitlines()[1] == show.HELD_OUT


def test_how_much_of_the_grid_is_there() -> None:
    frame = table(NUMBERS, d_model=(16, 32, 64, 128))
    assert show.runs_text(frame, "ar", "paper") is None
    frame["status"] = ["done", "diverged", "missing", "running"]
    said = show.runs_text(frame, "ar", "paper")
    assert said is not None
    assert said.plain == (
        "Only 2 of 4 runs have ended (1 missing, 1 running), and what follows is about those; "
        "`mecheval study ar --scale paper` trains the rest."
    )


def test_claims() -> None:
    about = ("ar", "4.2", "accuracy 1", "it is tested")
    judged = [
        Judged("one", "It [b]is[/b].", *about, "contradicted", "Fails: d 64.", "w", "3", "64", "", "reproduced", "f"),
        Judged("two", "It is not.", *about),
    ]
    assert counted(judged) == "2 claims of the paper: 1 contradicted, 1 not tested."
    assert printed(show.claims_table(judged))[:9] == [
        "contradicted It [b]is[/b]. (4.2)",
        "paper accuracy 1",
        "tested it is tested",
        "found Fails: d 64.",
        "rests on 3 seeds, width 64",
        "most reproduced if it is enough that most parts hold",
        "limits f",
        "",
        "not tested It is not. (4.2)",
    ]


def test_the_spread_between_seeds_is_said() -> None:
    said = spreads_said({"ar": Spread(0.318, 2, 1), "atr": Spread(0.17, 5, 0)})
    assert said == (
        "Spread between seeds, on the logit scale: 0.32 in AR (2 settings of three seeds or more; in 1 more, some "
        "seeds learn and some do not), 0.17 in ATR (5 settings of three seeds or more)."
    )
