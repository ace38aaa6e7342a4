"""The results at scale laptop that the package compares with the paper's size: src/mecheval/paper/laptop.csv.

python docs/scales.py STORE        # then python docs/tables.py writes the tables into the pages

Of settings that have fewer seeds in the store, it takes what pages print (mixers/index.md and how-to/hybrids.md).

The runs are those of `mecheval study newer ar_mamba_conv atr_mamba_conv ar_based_conv`, and of `mecheval study hybrids
mixer=attention+mamba,gated_delta_net+attention`: about 40 minutes of one core. Printed outputs have fewer settings, and
the likelihood of the documents that were intervened on.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mecheval.files import write_output
from mecheval.paper import agreement
from mecheval.paper.standings import COLUMNS, about, in_order, points_at, standings_of
from mecheval.store import Store
from mecheval.sweep import Job
from mecheval.sweep.driver import pending

DOCS = Path(__file__).parent
PRINTED = (("ar", 128, "mixers/index.md", 0), ("atr", 64, "mixers/index.md", 1), ("ar", 128, "how-to/hybrids.md", 0),
           ("ar", 128, "how-to/hybrids.md", 1))  # fmt: skip
"""Task, width, page and number of the printed table there."""
LINE = re.compile(r"([\w+]+)(?: +(no convolution|its own|Canon [AB]))?" + r" +(\d\.\d{3})" * 6 + r" +([\w ,]+)$")
OPTIONS = {"mamba": "d_conv none", "based": "kernel long"}
"""What `no convolution` is called in studies of one mixer."""
HYBRIDS = ("attention+mamba", "gated_delta_net+attention")


def printed() -> pd.DataFrame:
    """The standings that pages print, one row for each setting."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for task, width, page, number in PRINTED:
        text = (DOCS / page).read_text(encoding="utf-8")
        for mixer, option, accuracy, likelihood, verdicts in _lines(re.findall(r"(?s)```text\n(.*?)```", text)[number]):
            if ("+" in mixer and mixer not in HYBRIDS) or (option == "?"):
                continue
            counts = Counter[str]()
            for said in verdicts.split(", "):
                n, _, label = said.rpartition(" ")
                counts[label] += int(n or 1)
            setting = " · ".join(filter(None, (mixer, option)))
            rows.setdefault((task, setting), {
                "task": task, "setting": setting, "d_model": width, "mixer": mixer, "option": option,
                "likelihood": likelihood, "accuracy": accuracy, "verdict": counts.most_common(1)[0][0],
                "verdicts": verdicts, "seeds": counts.total(),
            })  # fmt: skip
    return in_order(pd.DataFrame(rows.values()).reindex(columns=list(COLUMNS)))


def _lines(table: str) -> Iterator[tuple[str, str, float, float, str]]:
    """Mixer, option (? where it is none of ours), accuracy, likelihood and verdicts of each line."""
    for line in table.splitlines():
        if found := LINE.fullmatch(line.strip()):
            mixer, convolution = found[1], found[2]
            option = "" if convolution is None else OPTIONS.get(mixer, "?") if convolution == "no convolution" else "?"
            yield mixer, option, float(found[3]), float(found[4]), found[9]


def finished(store: Store) -> pd.DataFrame:
    """The standings of the settings of which a store has all runs, since another rate may be better."""
    grid = points_at("laptop", store)
    left = {job.run for job in pending([Job(point.config) for point in grid], store)}
    places = [(about(point)["task"], about(point)["setting"], point.config.model.d_model) for point in grid]
    lacking = {place for place, point in zip(places, grid, strict=True) if point.config.id in left}
    return standings_of([point for place, point in zip(places, grid, strict=True) if place not in lacking], store)


def main(stores: list[str]) -> None:
    """Write the standings with the most seeds, of a store's runs or of those that are printed."""
    file = Path(str(agreement.__file__)).with_name(agreement.FILE)
    own = finished(Store(stores[0])) if stores else printed().iloc[:0]
    both = pd.concat([part for part in (own, printed()) if len(part)], ignore_index=True)
    most = both.sort_values("seeds", ascending=False, kind="stable").drop_duplicates(["task", "setting", "d_model"])
    frame = in_order(most)
    write_output(file, frame.round(4).to_csv(index=False))
    print(f"{file.name}: {len(frame)} settings")


if __name__ == "__main__":
    main(sys.argv[1:])
