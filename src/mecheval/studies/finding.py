"""One sentence on what runs show: which mixers recall, and by which mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mecheval.custom import MARK
from mecheval.studies.axes import ordered

NAMES = {
    "base_conv": "BaseConv", "based": "Based", "delta_net": "DeltaNet", "h3": "H3", "hyena": "Hyena", "mamba": "Mamba",
    "mamba2": "Mamba-2", "gated_delta_net": "Gated DeltaNet", "kda": "KDA", "gla": "GLA", "retnet": "RetNet",
    "rwkv7": "RWKV-7", "mesa_net": "MesaNet", "rg_lru": "RG-LRU", "sliding_attention": "sliding-window attention",
}  # fmt: skip
"""Names of built-in mixers in a sentence; others keep their names."""
WAYS = {
    "induction": "by induction", "conv_association": "by short convolution", "direct_retrieval": "by direct retrieval",
    "pointer": "by a pointer", "redundant": "by several ways at once", "joint": "by several positions together",
    "mixed": "by a mixture of mechanisms", "undetermined": "in a way that the measurements do not settle",
}  # fmt: skip
"""Phrases on how a mixer recalls, by verdict, in the order in which a sentence lists them."""
NUMBERS = (
    "none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
FEW = 4
"""Largest number of mixers without recall that are named; of more, only the number is given."""


SMALL = " at this small size"
"""What sentences say about runs that are smaller than the paper's."""


def finding(verdicts: Mapping[str, str], *, small: bool = False) -> str:
    """One sentence about mixers and their verdicts; empty if there are none. `small` says that the runs are small."""
    size = SMALL if small else ""
    if not verdicts:
        return ""
    mixers = ordered("mixer", verdicts)
    learnt = [mixer for mixer in mixers if verdicts[mixer] != "not_learnt"]
    failed = [mixer for mixer in mixers if mixer not in learnt]
    if len(mixers) == 1:
        how = "did not learn to recall" if failed else f"recalls {_way(verdicts[mixers[0]])}"
        return _sentence(f"{named(mixers)} {how}{size}")
    if not learnt:
        return (
            f"{'Neither' if len(mixers) == 2 else 'None'} of the {number(len(mixers))} mixers learnt to recall{size}."
        )
    groups = {way: [mixer for mixer in learnt if verdicts[mixer] == way] for way in (*WAYS, *sorted(verdicts.values()))}
    ways = [f"{number(len(own))} {_way(way)}" for way, own in groups.items() if own]
    one = len(learnt) == 1
    every = "both" if len(mixers) == 2 else f"all {number(len(mixers))}"
    who = f"{every} mixers" if not failed else f"{number(len(learnt))} of {number(len(mixers))} mixers"
    said = f"{who} {'recalls' if one else 'recall'}{size}"
    if len(ways) == 1:
        said += (
            f" {_way(verdicts[learnt[0]])}"
            if one
            else f", {'both' if len(learnt) == 2 else 'all'} {_way(verdicts[learnt[0]])}"
        )
    else:
        said += f": {', '.join(ways)}"
    if failed:
        said += f"; {named(failed) if len(failed) <= FEW else number(len(failed))} did not learn"
    return _sentence(said)


def named(mixers: Sequence[str]) -> str:
    """A list of names, such as `attention, BaseConv and Mamba`; a custom mixer is named without its digest."""
    names = [NAMES.get(mixer) or mixer.partition(MARK)[0] or mixer for mixer in mixers]
    names = [name if names.count(name) == 1 else mixer for name, mixer in zip(names, mixers, strict=True)]
    return " and ".join(([", ".join(names[:-1])] if len(names) > 1 else []) + names[-1:])


def number(n: int) -> str:
    """A number, in words up to twelve."""
    return NUMBERS[n] if n < len(NUMBERS) else f"{n:,}"


def _way(verdict: str) -> str:
    return WAYS.get(verdict, f"with verdict {verdict}")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
