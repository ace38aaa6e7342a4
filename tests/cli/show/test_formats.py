from __future__ import annotations

import pandas as pd
import pytest

from mecheval.cli.show import format_of, formatted
from mecheval.errors import UserError

FRAME = pd.DataFrame({"mixer": ["base_conv", "50 % | x"], "lr": [3e-3, None], "n": [1, 2]})


def test_latex_escapes_what_it_would_obey() -> None:
    assert formatted(FRAME, "latex").splitlines() == [
        r"\begin{tabular}{lrr}", r"\toprule", r"mixer & lr & n \\", r"\midrule", r"base\_conv & 0.003 & 1 \\",
        r"50 \% | x & -- & 2 \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


def test_markdown_and_csv() -> None:
    assert formatted(FRAME, "markdown").splitlines()[2:] == ["| base_conv | 0.003 | 1 |", "| 50 % \\| x | – | 2 |"]
    assert formatted(FRAME, "csv") == "mixer,lr,n\nbase_conv,0.003,1\n50 % | x,,2\n"


def test_one_format_at_a_time() -> None:
    assert format_of(csv=False, latex=True) == "latex"
    assert format_of(csv=False, latex=False) is None
    with pytest.raises(UserError, match="choose one of --csv, --latex"):
        format_of(csv=True, latex=True)
