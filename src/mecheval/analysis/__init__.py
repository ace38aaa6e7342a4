"""From a model to numbers: metrics, scores, effects of interventions and the verdict. One way for every room."""

from typing import TYPE_CHECKING

from mecheval.lazy import lazily

if TYPE_CHECKING:
    from mecheval.analysis.by_fact import ladder
    from mecheval.analysis.metrics import METRICS, Scores, score
    from mecheval.analysis.pretrained import load_pretrained
    from mecheval.analysis.runs import Measured, ablation, judged_on, load_run, measure, probe
    from mecheval.analysis.weights import load_lm

__all__ = [
    "METRICS", "Measured", "Scores", "ablation", "judged_on", "ladder", "load_lm", "load_pretrained", "load_run",
    "measure", "probe", "score",
]  # fmt: skip

_FILES = {
    "METRICS": "metrics", "Measured": "runs", "judged_on": "runs", "measure": "runs",
    "ladder": "by_fact", "load_run": "runs", "probe": "runs",
    "ablation": "runs", "Scores": "metrics", "score": "metrics", "load_lm": "weights",
    "load_pretrained": "pretrained",
}  # fmt: skip
__getattr__ = lazily(__name__, _FILES)
