from __future__ import annotations

import itertools
import json
import math
import re
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from mecheval import figures
from mecheval.errors import UserError
from mecheval.figures.heatmap import arranged, heatmap, label
from mecheval.figures.vegalite import RAMP, WHITE_FROM
from mecheval.types import ALL_ROLES
from places import located

SITES = ["blocks.0.input", "blocks.0.mixer.input", "blocks.0.mixer.conv", "blocks.0.mixer.output"]
SITES += ["blocks.0.mlp.input", "blocks.0.mlp.output", "blocks.0.output", "blocks.2.input", "blocks.10.input"]


def table(shares: dict[tuple[str, str], float], original: float = 0.9, corrupted: float = 0.1) -> pd.DataFrame:
    gap = original - corrupted
    return located(pd.DataFrame([
        {
            "site": site, "role": role, "original": original, "corrupted": corrupted,
            "restored": corrupted + share * gap, "attribution": share * gap, "share": share, "n": 8,
        }
        for (site, role), share in shares.items()
    ]))  # fmt: skip


def drawn(effects: pd.DataFrame, folder: Path) -> str:
    figures.save(heatmap(effects, "a & b"), folder / "map.svg")
    return (folder / "map.svg").read_text()


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def fills(svg: str) -> dict[tuple[str, str], tuple[int, ...]]:
    """Site and role -> colour of the cell."""
    found = {}
    for path in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"):
        words = dict(part.split(": ", 1) for part in path.get("aria-label", "").split("; ") if ": " in part)
        if path.get("aria-roledescription") == "rect mark":
            found[words["site"], words["role"]] = tuple(map(int, re.findall(r"\d+", path.get("fill", ""))))
    return found


def numbers(svg: str) -> list[tuple[str | None, str | None]]:
    """Text and colour of the cells."""
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [(text.text, text.get("fill")) for text in texts if text.get("aria-roledescription") == "text mark"]


def test_rows_by_depth_and_columns_by_role_whatever_the_order_of_the_table() -> None:
    shares = {(site, role): 0.5 for site in sorted(SITES) for role in sorted([*ALL_ROLES, "mine"])}
    parts = [table({cell: share}) for cell, share in shares.items()]
    frame = arranged(pd.concat(parts))  # whose index is all zeros
    assert list(frame["site"].unique()) == SITES
    assert list(frame["role"].unique()) == [*ALL_ROLES[:-1], "mine", "random"]
    assert list(frame["layer"].unique()) == ["layer 0", "layer 2", "layer 10"]
    assert frame["depth"].is_monotonic_increasing


def test_sites_of_other_modules_keep_their_order() -> None:
    frame = arranged(table({("z.attn.output", "key"): 1.0, ("a.mlp", "key"): 0.0}))
    assert list(frame["name"]) == ["z.attn.output", "a.mlp"]
    assert set(frame["layer"]) == {""}


def test_colours_run_over_the_ramp_and_stop_at_its_ends(tmp_path: Path) -> None:
    shares = {("blocks.0.input", "key"): 1.0, ("blocks.0.input", "value"): 0.0, ("blocks.0.output", "key"): 1.3}
    shares |= {("blocks.0.output", "value"): -0.2, ("blocks.1.input", "key"): 0.4, ("blocks.1.input", "value"): 0.6}
    svg = drawn(table(shares), tmp_path)
    steps = {1.0: 10, 0.0: 0, 1.3: 10, -0.2: 0, 0.4: 4, 0.6: 6}
    assert fills(svg) == {cell: rgb(RAMP[steps[share]]) for cell, share in shares.items()}
    black_or_white = [("white" if share >= 0.6 else "black") for share in shares.values()]
    assert numbers(svg) == list(zip(["1.00", "0.00", "1.30", "-0.20", "0.40", "0.60"], black_or_white, strict=True))


def test_the_scale_does_not_depend_on_the_data() -> None:
    low, high = (heatmap(table({("blocks.0.input", "key"): share}), "").to_dict() for share in (0.01, 0.99))
    scales = [chart["vconcat"][0]["layer"][0]["encoding"]["color"]["scale"] for chart in (low, high)]
    assert scales[0] == scales[1]
    assert (scales[0]["domain"][0], scales[0]["domain"][-1], scales[0]["clamp"]) == (0, 1, True)


def test_a_missing_share_has_a_dash_and_no_colour(tmp_path: Path) -> None:
    svg = drawn(table({("blocks.0.input", "key"): 1.0, ("blocks.0.input", "random"): math.nan}), tmp_path)
    assert set(fills(svg)) == {("blocks.0.input", "key")}
    assert numbers(svg) == [("1.00", "white"), ("–", "black")]


def test_without_any_share_the_likelihood_is_shown(tmp_path: Path) -> None:
    effects = table({("blocks.0.input", "key"): math.nan, ("blocks.0.input", "value"): math.nan}, 0.3, 0.3)
    effects["restored"] = [0.3, 0.25]
    svg = drawn(effects, tmp_path)
    assert [text for text, _ in numbers(svg)] == ["0.30", "0.25"]
    assert "restored likelihood" in svg


def test_the_description_tells_the_map_to_those_who_do_not_see_it(tmp_path: Path) -> None:
    effects = table({("blocks.0.input", "key"): 0.97, ("blocks.1.input", "key"): 0.2})
    said = "a & b. Heat map of the restored share: 2 sites by depth, and the roles key. "
    said += "The largest is 0.97, of blocks.0.input at key."
    assert heatmap(effects, "a & b").to_dict()["description"] == said
    assert ElementTree.fromstring(drawn(effects, tmp_path)).get("aria-label") == said


def test_tables_of_several_runs_or_of_none_are_refused() -> None:
    effects = table({("blocks.0.input", "key"): 1.0})
    with pytest.raises(UserError, match="choose one run, state and split"):
        heatmap(pd.concat([effects, effects]), "")
    with pytest.raises(UserError, match="there are no effects to show"):
        heatmap(effects[:0], "")


def test_png_is_twice_the_size_and_json_is_the_specification(tmp_path: Path) -> None:
    effects = table({(site, role): 0.5 for site in SITES for role in ALL_ROLES})
    chart = heatmap(effects, "title")
    for name in ("map.png", "map.svg", "map.JSON"):
        figures.save(chart, tmp_path / name)
    png = (tmp_path / "map.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    svg = ElementTree.fromstring((tmp_path / "map.svg").read_text())
    assert struct.unpack(">II", png[16:24]) == (2 * int(svg.attrib["width"]), 2 * int(svg.attrib["height"]))
    assert json.loads((tmp_path / "map.JSON").read_text()) == chart.to_dict()
    assert len(fills((tmp_path / "map.svg").read_text())) == len(SITES) * len(ALL_ROLES)
    assert {path.name for path in tmp_path.iterdir()} == {"map.png", "map.svg", "map.JSON"}


def test_the_same_effects_give_the_same_bytes(tmp_path: Path) -> None:
    effects = table({(site, "key"): 0.5 for site in SITES})
    for name in ("a.json", "b.json"):
        figures.save(heatmap(effects, "title"), tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_chart_can_be_a_pdf(tmp_path: Path) -> None:
    figures.save(heatmap(table({("blocks.0.input", "key"): 1.0}), "title"), tmp_path / "map.pdf")
    assert (tmp_path / "map.pdf").read_bytes().startswith(b"%PDF-")


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    chart = heatmap(table({("blocks.0.input", "key"): 1.0}), "")
    with pytest.raises(
        UserError, match=r"cannot write a figure as 'map.gif'; choose .html, .json, .pdf, .png, .svg at the end\."
    ):
        figures.save(chart, tmp_path / "map.gif")
    with pytest.raises(UserError, match=r"cannot write .*missing/map.svg: there is no such folder\."):
        figures.save(chart, tmp_path / "missing" / "map.svg")
    assert list(tmp_path.iterdir()) == []


def test_numbers_have_two_decimals_and_zero_no_sign() -> None:
    assert [label(value) for value in (-0.004, 0.004, -0.006, 1.0, math.nan)] == ["0.00", "0.00", "-0.01", "1.00", "–"]


def luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in rgb(colour))]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_is_readable_on_every_step_and_steps_are_even() -> None:
    light = [luminance(colour) for colour in RAMP]
    for step, y in enumerate(light):
        assert (1.05 / (y + 0.05) if step >= WHITE_FROM else (y + 0.05) / 0.05) >= 4.5
    falls = [a ** (1 / 3) - b ** (1 / 3) for a, b in itertools.pairwise(light)]  # lightness is a cube root
    assert max(falls) < 1.3 * min(falls)


def test_figures_do_not_wait_for_torch() -> None:
    code = "import sys, mecheval.figures; assert 'torch' not in sys.modules and 'altair' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sites_are_known_by_their_columns_alone() -> None:
    effects = table({("blocks.0.input", "key"): 0.5, ("blocks.9.x", "key"): 0.4, ("odd", "key"): 0.3})
    effects = effects.assign(block=pd.array([3, None, None], "Int32"), part=["inner", "x", None])
    frame = arranged(effects)
    assert list(zip(frame["site"], frame["layer"], frame["name"], strict=True)) == [
        ("blocks.9.x", "", "x"), ("odd", "", "odd"), ("blocks.0.input", "layer 3", "inner"),
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"has the columns site, block, part, kind; this one lacks block, kind\."):
        arranged(effects.drop(columns=["block", "kind"]))
