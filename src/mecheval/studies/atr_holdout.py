"""Figure 10: associative treecall with combinations of query and answer that training never asks for."""

from mecheval.studies.scales import MIXERS, runs
from mecheval.studies.study import Reading, Study

STUDY = Study(
    name="atr_holdout",
    figure="10",
    question="Do models recall combinations they were never asked for, or do they remember those they were?",
    points=lambda scale: runs("atr", scale, {"task.holdout": 0.2}, mixer=MIXERS),
    splits=("dev", "test"),
    readings=tuple(
        Reading(f"{name}_{role}", f"{title} at {role}", "blocks.1.input", role, "attribution", split)
        for split, name, title in (
            ("test", "attribution", "attribution"),
            ("dev", "dev_attribution", "attribution on dev"),
        )
        for role in ("key", "value", "query")
    ),
    draw="holdout",
)
