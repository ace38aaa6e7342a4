"""The newer mixers beside the paper's, on both tasks."""

from mecheval.mixers.options import BUILT_IN
from mecheval.studies.scales import AT_BLOCK_1, MIXERS, QUICK, preferred
from mecheval.studies.study import Study
from mecheval.sweep import Point

NEWER = tuple(name for name in BUILT_IN if name not in MIXERS)


def points(scale: str) -> list[Point]:
    """All mixers on AR (on a laptop with the quickstart's task, whose runs are among them) and on ATR."""
    base = QUICK if scale == "laptop" else {}
    every = (*MIXERS, *NEWER)
    return [
        *preferred("ar", scale, base, mixers=every, task=("ar",)),
        *preferred("atr", scale, {}, mixers=every, task=("atr",)),
    ]


STUDY = Study(
    name="newer",
    figure="–",
    question="How do Mamba-2, Gated DeltaNet, KDA, GLA, RetNet, RWKV-7, MesaNet and RG-LRU recall?",
    points=points,
    readings=AT_BLOCK_1,
    draw="accuracy",
)
