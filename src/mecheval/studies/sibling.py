"""Figure 13: which terminal shares the query's parent?"""

from mecheval.studies.scales import preferred
from mecheval.studies.study import Study

STUDY = Study(
    name="sibling",
    figure="13",
    question="Which mixers find the query's rightmost sibling, and with how many layers?",
    points=lambda scale: preferred(
        "atr", scale, {"query": "sibling"} | ({"root_sibling": True} if scale == "paper" else {}), n_layers=(1, 2, 3)
    ),
    draw="accuracy",
)
