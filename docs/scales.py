"""The results at scale laptop that the package compares with the paper's size: src/mecheval/paper/laptop.csv.

mecheval study newer ar_mamba_conv atr_mamba_conv ar_based_conv --store STORE    # half an hour on two cores
mecheval study hybrids mixer=attention+mamba,gated_delta_net+attention --store STORE
python docs/scales.py STORE        # then python docs/tables.py writes the tables into the pages
"""

from __future__ import annotations

import sys
from pathlib import Path

from mecheval.files import write_output
from mecheval.paper import agreement
from mecheval.paper.standings import standings
from mecheval.store import Store


def main(store: str) -> None:
    """Write the standings of a store's runs."""
    file = Path(str(agreement.__file__)).with_name(agreement.FILE)
    frame = standings(Store(store), "laptop").round(4)
    write_output(file, frame.to_csv(index=False))
    print(f"{file.name}: {len(frame)} settings")


if __name__ == "__main__":
    main(sys.argv[1])
