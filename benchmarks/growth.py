"""Growth with length, 64 to 1024: time and peak memory of a layer's forward and backward pass, as a figure.

Each point is a process of its own, so that peak memory is that point's. Writes docs/figures/growth.svg and .json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import PEAK

LENGTHS = (64, 128, 256, 512, 1024)
NEWER = ("gated_delta_net", "gla", "kda", "mamba2", "mesa_net", "retnet", "rg_lru", "rwkv7")
LAYERS = {"attention": 0, "based": 1, "delta_net": 0, "h3": 0, "hyena": 0, "mamba": 0, **dict.fromkeys(NEWER, 0)}
LAYERS["sliding_attention"] = 0
RECURRENT = ("based", "delta_net", "mamba", *NEWER, "sliding_attention")
FIGURES = Path(__file__).parent.parent / "docs" / "figures"

PROGRAM = f"""{PEAK}
import statistics, sys, time
import torch
from mecheval.mixers import build_mixer
torch.set_num_threads(1)
name, layer, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
mixer = build_mixer(name, 64, layer)
def run(length):
    x = torch.randn(32, length, 64, requires_grad=True)
    start = time.perf_counter()
    mixer(x).sum().backward()
    return time.perf_counter() - start
run(16)
before = peak()
times = [run(length) for _ in range(9)]
print(statistics.median(times) * 1e3, max(0.0, peak() - before))
"""


def measure() -> list[dict[str, Any]]:
    points = []
    for name, layer in LAYERS.items():
        for length in LENGTHS:
            command = [sys.executable, "-c", PROGRAM, name, str(layer), str(length)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            ms, megabytes = map(float, out.split())
            tokens = 32 * length
            each = {"µs a token": ms * 1e3 / tokens, "kB a token": megabytes * 1024 / tokens}
            points.append({"mixer": name, "length": length, "ms": ms, "peak MB": megabytes, **each})
    return points


def draw(points: list[dict[str, Any]]) -> None:
    import altair as alt

    x = alt.X(
        "length:Q", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=LENGTHS, format="d", labelAngle=-45)
    )
    base = alt.Chart(alt.InlineData(points)).mark_line(point=True).properties(width=130, height=80)
    panels = alt.Facet("mixer:N", sort=list(LAYERS), title=None)
    title = "One layer of width 64, 32 documents, one thread; a flat line is linear growth"
    charts = [base.encode(x=x, y=f"{unit}:Q").facet(panels, columns=5) for unit in ("µs a token", "kB a token")]
    chart = alt.vconcat(*charts).properties(title=title)
    FIGURES.mkdir(parents=True, exist_ok=True)
    chart.save(FIGURES / "growth.svg")
    (FIGURES / "growth.json").write_text(json.dumps(points, indent=1) + "\n")


def main() -> None:
    points = measure()
    draw(points)
    for name in LAYERS:
        row = [p for p in points if p["mixer"] == name]
        cells = "  ".join(f"{p['length']}: {p['ms']:.1f} ms {p['peak MB']:.0f} MB" for p in row)
        growth = (row[-1]["ms"] / row[0]["ms"]) / (LENGTHS[-1] / LENGTHS[0])
        kind = "recurrent" if name in RECURRENT else "quadratic or FFT"
        print(f"{name:17} {cells}  growth / linear {growth:.2f} ({kind})")


if __name__ == "__main__":
    main()
