from __future__ import annotations

import pytest

from mecheval.studies.finding import finding, named, number

SEVEN = {
    "mamba": "conv_association", "hyena": "conv_association", "h3": "conv_association", "based": "induction",
    "delta_net": "conv_association", "base_conv": "not_learnt", "attention": "induction",
}  # fmt: skip


@pytest.mark.parametrize(("verdicts", "said"), [
    (SEVEN, "Six of seven mixers recall: two by induction, four by short convolution; BaseConv did not learn."),
    ({**SEVEN, "base_conv": "induction"}, "All seven mixers recall: three by induction, four by short convolution."),
    ({"attention": "induction", "based": "induction"}, "Both mixers recall, both by induction."),
    ({"mamba": "pointer"}, "Mamba recalls by a pointer."),
    ({"Mine@3f9a": "not_learnt"}, "Mine did not learn to recall."),
    ({"h3": "not_learnt", "hyena": "not_learnt"}, "Neither of the two mixers learnt to recall."),
    ({"h3": "not_learnt", "a": "undetermined", "hyena": "not_learnt"},
     "One of three mixers recalls in a way that the measurements do not settle; H3 and Hyena did not learn."),
    ({"a": "of_another_version", "b": "induction"},
     "Both mixers recall: one by induction, one with verdict of_another_version."),
    ({**dict.fromkeys("abcde", "not_learnt"), "f": "joint"},
     "One of six mixers recalls by several positions together; five did not learn."),
    ({}, ""),
])  # fmt: skip
def test_what_runs_show_is_one_sentence(verdicts: dict[str, str], said: str) -> None:
    assert finding(verdicts) == said


def test_names_and_numbers_are_words_where_words_exist() -> None:
    assert named(["attention", "rwkv7", "Mine@1"]) == "attention, RWKV-7 and Mine"
    assert named(["Mine@1", "Mine@2"]) == "Mine@1 and Mine@2"  # two versions of one file
    assert [number(n) for n in (0, 12, 13, 2000)] == ["none", "twelve", "13", "2,000"]
