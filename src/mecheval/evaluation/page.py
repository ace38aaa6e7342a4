"""A page about one model that is in no store: table, verdict and map, in one file without scripts."""

from __future__ import annotations

import html
from pathlib import Path

from mecheval.evaluation.result import Evaluation
from mecheval.files import write_atomic
from mecheval.store import writing

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd}"
    "th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto}"
)


def write_page(result: Evaluation, path: Path) -> None:
    """Write it, whole or not at all."""
    from mecheval.figures import heatmap

    drawn = heatmap(result.effects, result.title).svg()
    title = html.escape(result.title)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>{result._repr_html_()}<h2>Effects</h2>{drawn}</body></html>\n"
    )
    with writing(path):
        write_atomic(path, page)
