"""Figure 13: which terminal shares the query's parent?"""

from mecheval.figures import accuracy
from mecheval.studies import scales
from mecheval.studies.study import Study

RATES = {"paper": scales.RATES["atr", "paper"], "laptop": (3e-3,)}

STUDY = Study(
    name="sibling",
    figure="13",
    question="Which mixers find the query's rightmost sibling, and with how many layers?",
    points=lambda scale: scales.runs(
        "atr", scale, {"query": "sibling"}, mixer=scales.MIXERS, n_layers=(1, 2, 3), lr=RATES[scale]
    ),
    draw=accuracy,
)
