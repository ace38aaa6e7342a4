"""The figures of the paper, each a study."""

from mecheval.sites import Site
from mecheval.studies.scales import AT_BLOCK_1, MIXERS, both_tasks, one_width, preferred, runs
from mecheval.studies.study import Reading, Study

SHORTER = (4, 3, 2, 1, 0)
"""Numbers of taps of Mamba's short convolution, down to none."""
INSIDE_RATES = {"paper": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2), "laptop": (3e-4, 1e-3, 3e-3, 1e-2)}
"""Learning rates of figure 5, which shows all of them."""

STUDIES = (
    Study(
        "ar", "3", "Which mixers recall, and where does a clean activation bring the answer back?",
        lambda scale: runs("ar", scale, mixer=MIXERS), readings=AT_BLOCK_1,
    ),
    Study(
        "ar_mamba_conv", "4a",
        "Does Mamba recall without its short convolution, and does it change where the association is stored?",
        lambda scale: runs("ar", scale, {"mixer": "mamba"}, d_conv=SHORTER, **one_width("ar", scale)),
        readings=AT_BLOCK_1,
    ),
    Study(
        "ar_based_conv", "4b", "Which convolution does Based need to recall: of which length, or a long one?",
        lambda scale: runs("ar", scale, {"mixer": "based"}, kernel_size=(1, 2, 3, 4, -1)), "accuracy",
    ),
    Study(
        "ar_mamba_inside", "5",
        "After which short convolution, and at which position, does Mamba hold key and value together?",
        lambda scale: runs("ar", scale, {"mixer": "mamba"}, lr=INSIDE_RATES[scale]),
        readings=(
            Reading("conv0_at_value", "conv 0 at value", "blocks.0.mixer.conv", "value"),
            Reading("conv0_at_next_key", "conv 0 at next key", "blocks.0.mixer.conv", "next_key"),
            Reading("conv1_at_value", "conv 1 at value", "blocks.1.mixer.conv", "value"),
        ),
        every_rate=True,
    ),
    Study(
        "atr", "7", "Which mixers recall over trees, and where does a clean activation bring the answer back?",
        lambda scale: runs("atr", scale, mixer=MIXERS), readings=AT_BLOCK_1,
    ),
    Study(
        "atr_mamba_conv", "8", "How does Mamba recall over trees without its short convolution?",
        lambda scale: runs("atr", scale, {"mixer": "mamba"}, d_conv=SHORTER), readings=AT_BLOCK_1,
    ),
    Study(
        "position", "9", "Which mixers need position embeddings, and which are worse with them?",
        lambda scale: both_tasks(scale, positions=("none", "learned")), "accuracy",
    ),
    Study(
        "atr_holdout", "10",
        "Do models recall combinations they were never asked for, or do they remember those they were?",
        lambda scale: runs("atr", scale, {"task.holdout": 0.2}, mixer=MIXERS), "holdout",
        readings=tuple(
            Reading(f"{name}_{role}", f"{title} at {role}", "blocks.1.input", role, "attribution", split)
            for split, name, title in (
                ("test", "attribution", "attribution"), ("dev", "dev_attribution", "attribution on dev"),
            )
            for role in ("key", "value", "query")
        ),
        splits=("dev", "test"),
    ),
    Study(
        "one_layer", "11", "Which mixers recall with a single layer, where induction is impossible?",
        lambda scale: both_tasks(scale, n_layers=(1, 2)), "accuracy",
    ),
    Study(
        "depth", "12", "Which layer brings the answer to the query, in models of one, two and three layers?",
        lambda scale: preferred("ar", scale, n_layers=(1, 2, 3)), "depth",
        readings=tuple(
            Reading(f"mixer{i}_at_query", f"mixer {i} at query", Site(i, "mixer.output"), "query", "attribution")
            for i in range(3)
        ),
    ),
    Study(
        "sibling", "13", "Which mixers find the query's rightmost sibling, and with how many layers?",
        lambda scale: preferred(
            "atr", scale, {"query": "sibling"} | ({"root_sibling": True} if scale == "paper" else {}),
            n_layers=(1, 2, 3),
        ),
        "accuracy",
    ),
)  # fmt: skip
