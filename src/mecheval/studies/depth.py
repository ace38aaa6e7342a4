"""Figure 12: one, two and three layers, and which of them retrieves."""

from mecheval.sites import Site
from mecheval.studies.scales import preferred
from mecheval.studies.study import Reading, Study

STUDY = Study(
    name="depth",
    figure="12",
    question="Which layer brings the answer to the query, in models of one, two and three layers?",
    points=lambda scale: preferred("ar", scale, n_layers=(1, 2, 3)),
    readings=tuple(
        Reading(f"mixer{i}_at_query", f"mixer {i} at query", Site(i, "mixer.output"), "query", "attribution")
        for i in range(3)
    ),
    draw="depth",
)
