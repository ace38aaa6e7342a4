"""Interventions on a model's activations, and what they reveal about its mechanism."""

from typing import TYPE_CHECKING

from mecheval.lazy import lazily

if TYPE_CHECKING:
    from mecheval.intervene.attribution import attribute
    from mecheval.intervene.by_fact import verdicts_by
    from mecheval.intervene.circuits import Circuit, Wiring, circuit
    from mecheval.intervene.edits import Intervention, Mean, Noise, Take, Zero, capture, patch
    from mecheval.intervene.effects import ablate, default_sites, interchange
    from mecheval.intervene.gather import Evidence, evidence
    from mecheval.intervene.judging import verdict
    from mecheval.intervene.mechanism import Depths, Rule
    from mecheval.intervene.paths import path
    from mecheval.intervene.read_shares import Reads, reads
    from mecheval.intervene.sentences import Verdict
    from mecheval.intervene.sets import Places, smallest_set
    from mecheval.intervene.state import state_sweep
    from mecheval.intervene.state_parts import erase_state, replace_state

__all__ = [
    "Circuit", "Depths", "Evidence", "Intervention", "Mean", "Noise", "Places", "Reads", "Rule", "Take",
    "Verdict", "Wiring", "Zero", "ablate", "attribute", "capture", "circuit", "default_sites", "erase_state",
    "evidence", "interchange", "patch", "path", "reads", "replace_state", "smallest_set", "state_sweep", "verdict",
    "verdicts_by",
]  # fmt: skip

_NAMES = {
    "attribution": ("attribute",),
    "by_fact": ("verdicts_by",),
    "circuits": ("Circuit", "Wiring", "circuit"),
    "edits": ("Intervention", "Mean", "Noise", "Take", "Zero", "capture", "patch"),
    "effects": ("ablate", "default_sites", "interchange"),
    "gather": ("Evidence", "evidence"),
    "judging": ("verdict",),
    "mechanism": ("Depths", "Rule"),
    "paths": ("path",),
    "read_shares": ("Reads", "reads"),
    "sentences": ("Verdict",),
    "sets": ("Places", "smallest_set"),
    "state": ("state_sweep",),
    "state_parts": ("erase_state", "replace_state"),
}
__getattr__ = lazily(__name__, {name: file for file, names in _NAMES.items() for name in names})
