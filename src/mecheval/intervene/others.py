"""The same documents with another value, or with another query, for the evidence of a verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from mecheval.intervene.edits import put
from mecheval.tasks.base import places_of
from mecheval.types import NOWHERE, Batch, first_of


def other_values(clean: Batch) -> Batch | None:
    """The same documents, in each of which the value is exchanged with another token that may be an answer.

    Both symbols stay in the document, so a model that only checks whether its answer occurs there sees no change. A
    token may be an answer if other documents have their value at its position, and certainly if it is the answer of
    one; a token that the document does not repeat is best, because nothing else then shows where it belongs. A document
    without such a token gets another document's answer, if possible one that it lacks. None if the value cannot be
    corrupted.
    """
    tokens, meaning = clean.tokens.clone(), clean.meaning
    if meaning.value is None or torch.equal(clean.roles[meaning.value], clean.roles[meaning.key]):
        return None
    values, key, answers = clean.roles[meaning.value], clean.roles[meaning.key], clean.answers.unique()
    usual, ends = set(values.flatten().tolist()), first_of(clean.roles[meaning.query]).tolist()
    known = torch.isin(clean.tokens, answers).tolist()
    for row, own in enumerate(clean.answers.tolist()):
        span = places_of(values, row)  # of a value of several tokens, the one that is the answer
        here = next((place for place in span if int(clean.tokens[row, place]) == own), span[0])
        text, taken = clean.tokens[row].tolist(), {*span, *places_of(key, row)}
        free = [place for place in range(ends[row]) if place not in taken and text[place] != own]
        free = [place for place in free if known[row][place] or place in usual]
        often = Counter(text)
        rank = [(often[text[place]] == 1, known[row][place], place in usual) for place in free]
        most = max(rank, default=None)
        best = [place for place, each in zip(free, rank, strict=True) if each == most]
        if best:
            there = best[row % len(best)]
            tokens[row, [here, there]] = tokens[row, [there, here]]
            continue
        others = answers[answers != own].roll(row)
        if not len(others):
            return None
        lacking = others[~torch.isin(others, clean.tokens[row])]
        tokens[row, here] = (lacking if len(lacking) else others)[0]
    return replace(clean, tokens=tokens)


def other_queries(clean: Batch) -> Batch | None:
    """The same documents, each with the query of the next one that differs; None if all queries are the same."""
    where = clean.roles[clean.meaning.query].view(len(clean), -1)
    asked = clean.tokens.gather(1, where.clamp(min=0)).masked_fill(where == NOWHERE, NOWHERE)
    texts = asked.tolist()
    spans = [[token != NOWHERE for token in text] for text in texts]
    n, others = len(clean), []
    for row, text in enumerate(texts):
        later = (i % n for i in range(row + 1, row + n))
        others.append(next((i for i in later if texts[i] != text and spans[i] == spans[row]), row))
    tokens = clean.tokens.clone()
    put(tokens, 1, where, asked[others])
    return None if torch.equal(tokens, clean.tokens) else replace(clean, tokens=tokens)
