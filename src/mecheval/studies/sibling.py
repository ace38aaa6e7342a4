"""Figure 13: which terminal shares the query's parent?"""

from mecheval.figures import accuracy
from mecheval.studies.scales import MIXERS, runs
from mecheval.studies.study import Study

STUDY = Study(
    name="sibling",
    figure="13",
    question="Which mixers find the query's rightmost sibling, and with how many layers?",
    points=lambda scale: runs("atr", scale, {"query": "sibling"}, mixer=MIXERS, n_layers=(1, 2, 3)),
    draw=accuracy,
)
