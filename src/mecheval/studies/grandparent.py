"""Two hops over trees: the parent's parent, beside the parent."""

from mecheval.studies.scales import AT_BLOCK_1, preferred
from mecheval.studies.study import Study

STUDY = Study(
    name="grandparent",
    figure="–",
    question="Who finds a grandparent in a tree, and is it a second step after the parent?",
    points=lambda scale: preferred("atr", scale, query=("parent", "grandparent")),
    readings=AT_BLOCK_1,
    draw="accuracy",
)
