"""From a model to numbers: metrics, scores, effects of interventions and the verdict, for all other rooms."""

from typing import TYPE_CHECKING

from mecheval.lazy import lazily

if TYPE_CHECKING:
    from mecheval.analysis.metrics import METRICS, Scores, ladder, score
    from mecheval.analysis.runs import Measured, ablation, judged_on, load_run, measure, probe
    from mecheval.analysis.weights import load_lm, load_pretrained

__all__ = [
    "METRICS", "Measured", "Scores", "ablation", "judged_on", "ladder", "load_lm", "load_pretrained", "load_run",
    "measure", "probe", "score",
]  # fmt: skip

_FILES = {
    **dict.fromkeys(("METRICS", "Scores", "ladder", "score"), "metrics"),
    **dict.fromkeys(("Measured", "ablation", "judged_on", "load_run", "measure", "probe"), "runs"),
    **dict.fromkeys(("load_lm", "load_pretrained"), "weights"),
}  # fmt: skip
__getattr__ = lazily(__name__, _FILES)
