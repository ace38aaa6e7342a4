"""Recall in English: short statements about who has what, some unrelated sentences, then a question."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mecheval import rng
from mecheval.errors import UserError
from mecheval.kernels import kernel
from mecheval.tasks.ar import draw_distinct
from mecheval.tasks.base import TASKS, Task, TaskOptions
from mecheval.tasks.corpus import I32, Corpus, Document, Ints, Question, empty_columns, small_ints
from mecheval.tasks.text import Tokenizer, WordTokenizer, load_tokenizer
from mecheval.types import Meaning, Split

PEOPLE = (
    "Mary", "John", "Anna", "Peter", "Lucy", "David", "Emma", "James", "Sarah", "Paul", "Laura", "Mark", "Julia",
    "Simon", "Alice", "Henry", "Clara", "Oliver", "Susan", "Tom", "Rachel", "George", "Helen", "Jack",
)  # fmt: skip
THINGS = (
    "lamp", "book", "key", "ball", "hat", "cup", "ring", "coat", "map", "box", "bag", "clock", "knife", "letter",
    "bottle", "chair", "guitar", "camera", "phone", "flag", "rope", "drum", "mirror", "basket",
)  # fmt: skip
OTHERS = (
    "The sky is blue.", "It is late.", "The garden is quiet.", "Dinner is ready.", "The train was slow.",
    "Winter is cold.", "The door is open.", "Nobody is hungry.",
)  # fmt: skip
"""Unrelated sentences."""
OPENING, HAS, WHO = "Here is what we know.", " has the", " Who has the"
STOP, MARK = ".", "?"


class WordsOptions(TaskOptions):
    """Options of recall in English."""

    statements: int = Field(4, ge=1, le=len(PEOPLE) - 1, description="people in a document, each with a thing")
    distractors: int = Field(2, ge=0, le=len(OTHERS), description="unrelated sentences between the statements")
    ask: Literal["thing", "person"] = Field(
        "thing", description='"Mary has the" -> lamp, or "Who has the lamp?" -> Mary'
    )
    tokenizer: str = Field(
        "", max_length=1000, description="folder of a Hugging Face tokenizer; if empty, one token per word"
    )


@TASKS.register("words")
class Words(Task):
    """Recall in English: `Here is what we know. Mary has the lamp. It is late. John has the cup. Mary has the` -> lamp.

    With a Hugging Face tokenizer, words may have several tokens; the model predicts the first one, in which all people
    and all things differ (others are left out).
    """

    name = "words"
    Options = WordsOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"statements": 8, "distractors": 4}, "laptop": {"statements": 4, "distractors": 1},
    }  # fmt: skip
    roles = ("bos", "key", "value", "stop", "query")
    meaning = Meaning(places=("stop",))
    facts = ("pairs", "distance")
    options: WordsOptions

    def __init__(self, options: TaskOptions, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(options)
        o = self.options
        vocabulary = " ".join([OPENING, HAS, WHO, STOP, MARK, *PEOPLE, *THINGS, *OTHERS])
        self.tokenizer = tokenizer or (load_tokenizer(o.tokenizer) if o.tokenizer else WordTokenizer(vocabulary))
        self._lead = Counter(self._word(word)[0] for word in (*PEOPLE, *THINGS)).most_common(1)[0][0]
        self.people, self.things = self._distinct(PEOPLE), self._distinct(THINGS)
        for kind, words in (("people", self.people), ("things", self.things)):
            if not words:
                raise UserError(f"words: statements={o.statements} needs more {kind} with different first tokens.")
        fixed = [self._piece(self.people[0], mark) for mark in (HAS, STOP, WHO, MARK)]
        nouns = [self._piece("the", f" {word}") for word in (*self.people, *self.things)]
        self._pieces = [self._piece("", OPENING), *fixed, *nouns, *(self._piece(STOP, f" {other}") for other in OTHERS)]
        self._check_pieces()
        self._pieces[0] = [*self.tokenizer.start, *self._pieces[0]]

    def _check_pieces(self) -> None:
        """Raise an error if the tokens of a text are not the tokens of its words, one word after the other."""
        opening, has, stop, who, mark, *rest = self._pieces
        pieces, text = dict(zip((*self.people, *self.things, *OTHERS), rest, strict=True)), OPENING
        tokens = [*opening]
        for i in range(max(len(self.people), len(self.things), len(OTHERS))):
            person, thing, other = (kind[i % len(kind)] for kind in (self.people, self.things, OTHERS))
            text += f" {person}{HAS} {thing}{STOP} {other}{WHO} {thing}{MARK}"
            for piece in (pieces[person], has, pieces[thing], stop, pieces[other], who, pieces[thing], mark):
                tokens += piece
        if self.tokenizer.encode(text)[0] != tokens:
            raise UserError(
                "words: this tokenizer joins letters of neighbouring words, so a word has no tokens of its own."
            )

    @classmethod
    def tokenized(cls, tokenizer: Any, **options: Any) -> Self:
        """The task with a tokenizer given as an object from transformers instead of a folder."""
        return cls(cls.Options(**options), load_tokenizer(tokenizer))

    def _piece(self, before: str, text: str) -> list[int]:
        """The tokens of `text` when it follows `before`: those that end inside it."""
        ids, ends = self.tokenizer.encode(before + text)
        return [token for token, end in zip(ids, ends, strict=True) if end > len(before)]

    def _word(self, word: str) -> tuple[int, list[int]]:
        """The number of tokens for the space before a word (0 for most tokenizers), and the tokens of the word."""
        ids, ends = self.tokenizer.encode(f"the {word}")
        own = [token for token, end in zip(ids, ends, strict=True) if end > len("the ")]
        return len(self._piece("the", f" {word}")) - len(own), own

    def _distinct(self, words: Sequence[str]) -> list[str]:
        """Words that differ in their first token, each of a length for which there are more words than a document has.

        Words with unknown tokens are left out.
        """
        own = {word: tokens for word in words for lead, tokens in [self._word(word)] if lead == self._lead}
        own = {word: tokens for word, tokens in own.items() if self.tokenizer.unknown not in tokens}
        first = {tokens[0]: word for word, tokens in reversed(own.items())}
        lengths = Counter(len(own[word]) for word in first.values())
        return [word for word in reversed(first.values()) if lengths[len(own[word])] > self.options.statements]

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.size

    @property
    def max_tokens(self) -> int:
        """An upper bound on the length of a document in tokens."""
        o, (opening, has, stop, who, mark, *_) = self.options, map(len, self._pieces)
        word, other = (max(map(len, some)) for some in (self._pieces[5 : -len(OTHERS)], self._pieces[-len(OTHERS) :]))
        return opening + o.statements * (2 * word + has + stop) + o.distractors * other + who + has + mark + 2 * word

    @property
    def bytes_each(self) -> int:
        return super().bytes_each + 4 * self.max_tokens + 32

    def symbol(self, token: int) -> str:
        return self.tokenizer.text(token)

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """One-token words of the same kind that are not in the document; other tokens do not change."""
        return np.array([token for (token,) in self._alternatives(tokens, [key])], dtype=np.int64)

    def corrupt_item(self, tokens: NDArray[np.int64], span: list[int], state: rng.U64) -> list[int] | None:
        """The span with its person or thing replaced by another one that is not in the document."""
        choices = self._alternatives(tokens, span)
        return choices[rng.below(state, len(choices))] if choices else None

    def _alternatives(self, tokens: NDArray[np.int64], span: list[int]) -> list[list[int]]:
        """All replacements for the tokens of a span, with the same number of tokens."""
        here = [int(token) for token in tokens[span]]
        for kind in (self.people, self.things):
            words = [self._word(word)[1] for word in kind]
            for word, start in itertools.product(words, range(len(here))):
                stop = start + len(word)
                if here[start:stop] == word:
                    free = (other for other in words if len(other) == len(word) and other[0] not in tokens)
                    return [[*here[:start], *other, *here[stop:]] for other in free]
        return [here]

    def document(self, random: random.Random, split: Split) -> Document:
        """One document: its text, then its tokens and their positions in the text, from which the roles follow."""
        o = self.options
        people, things = random.sample(self.people, o.statements), random.sample(self.things, o.statements)
        sentences = [(person, thing) for person, thing in zip(people, things, strict=True)]
        chosen = [*sentences, *random.sample(OTHERS, o.distractors)]
        text, asked, places = OPENING, random.choice(sentences), {}
        for sentence in random.sample(chosen, len(chosen)):
            text += " "
            if sentence == asked:
                second = len(text) + len(asked[0]) + len(HAS) + 1
                places = {"person": len(text), "thing": second, "stop": second + len(asked[1])}
            text += sentence if isinstance(sentence, str) else f"{sentence[0]}{HAS} {sentence[1]}{STOP}"
        start, (person, thing) = len(text), asked
        text += f" {person}{HAS}" if o.ask == "thing" else f"{WHO} {thing}{MARK}"
        answer = thing if o.ask == "thing" else person
        ids, ends = self.tokenizer.encode(f"{text} {answer}{STOP}")
        shift = len(self.tokenizer.start)

        def span(first: int, size: int) -> tuple[int, int]:
            inside = [shift + i for i, end in enumerate(ends) if first < end <= first + size]
            return inside[0], inside[-1] + 1

        own = {"person": span(places["person"], len(person)), "thing": span(places["thing"], len(thing))}
        key, value = (own["person"], own["thing"]) if o.ask == "thing" else (own["thing"], own["person"])
        query, said = span(start, len(text) - start), span(len(text) + 1, len(answer))
        roles: dict[str, int | tuple[int, int]] = {
            "bos": 0, "key": key, "value": value, "stop": span(places["stop"], 1)[0], "query": (query[0], said[0]),
        }  # fmt: skip
        tokens = [*self.tokenizer.start, *ids]
        question = Question(said[0] - 1, tokens[said[0]], roles)
        return Document(tokens[: said[0]], [question], {"pairs": o.statements, "distance": value[0] - key[0]})

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        o = self.options
        tokens, lengths = np.empty((n, self.max_tokens), small_ints(self.vocab_size)), np.empty(n, np.int64)
        columns = empty_columns(n, 1, len(self.roles), len(self.facts))
        spans = np.ones_like(columns[0])
        flat = np.array([token for piece in self._pieces for token in piece], np.int64)
        starts = np.cumsum([0, *map(len, self._pieces)])
        sizes = (len(self.people), len(self.things), len(OTHERS), o.statements, o.distractors)
        fill(
            rng.key(seed, split),
            start,
            *sizes,
            self._lead,
            o.ask == "thing",
            flat,
            starts,
            tokens,
            lengths,
            spans,
            *columns,
        )
        text = tokens[np.arange(self.max_tokens) < lengths[:, None]]
        return Corpus(text, np.concatenate([[0], np.cumsum(lengths)]), *columns, first=start, spans=spans)


@kernel
def put(piece: int, flat: NDArray[np.int64], starts: NDArray[np.int64], text: Ints, at: int) -> int:
    """Write a piece at the position `at`, and return the position after it."""
    for i in range(starts[piece], starts[piece + 1]):
        text[at] = flat[i]
        at += 1
    return at


@kernel
def fill(
    stream: np.uint64, start: int, n_people: int, n_things: int, n_others: int, statements: int, distractors: int,
    lead: int, ask_thing: bool, flat: NDArray[np.int64], starts: NDArray[np.int64],
    tokens: Ints, lengths: NDArray[np.int64], spans: I32, roles: I32, predict_at: I32, targets: I32, facts: I32,
) -> None:  # fmt: skip
    """`Words.document` for many documents, assembled from the tokens of its pieces."""
    opening, has, stop, who, mark, first_person = 0, 1, 2, 3, 4, 5
    first_thing, total = first_person + n_people, statements + distractors
    first_other = first_thing + n_things
    person_pool, thing_pool, other_pool = np.arange(n_people), np.arange(n_things), np.arange(n_others)
    sentence_pool, swaps = np.arange(total), np.empty(total, np.int64)
    people, things = np.empty(statements, np.int64), np.empty(statements, np.int64)
    others, order = np.empty(distractors, np.int64), np.empty(total, np.int64)
    state = np.empty(1, np.uint64)
    for row in range(len(tokens)):
        state[0] = rng.fold(stream, np.uint64(start + row))
        draw_distinct(state, person_pool, swaps, people)
        draw_distinct(state, thing_pool, swaps, things)
        draw_distinct(state, other_pool, swaps, others)
        draw_distinct(state, sentence_pool, swaps, order)
        asked = rng.below(state, statements)
        person, thing = first_person + people[asked], first_thing + things[asked]
        text, place, span = tokens[row], roles[row, 0], spans[row, 0]
        at = put(opening, flat, starts, text, 0)
        place[0] = 0
        for sentence in order:
            if sentence >= statements:
                at = put(first_other + others[sentence - statements], flat, starts, text, at)
                continue
            where = at
            at = put(has, flat, starts, text, put(first_person + people[sentence], flat, starts, text, at))
            second = at
            at = put(first_thing + things[sentence], flat, starts, text, at)
            if sentence == asked:
                first, second = where + lead, second + lead
                place[1], place[2], place[3] = (first, second, at) if ask_thing else (second, first, at)
            at = put(stop, flat, starts, text, at)
        place[4] = at
        if ask_thing:
            at = put(has, flat, starts, text, put(person, flat, starts, text, at))
        else:
            at = put(mark, flat, starts, text, put(thing, flat, starts, text, put(who, flat, starts, text, at)))
        key, value = (person, thing) if ask_thing else (thing, person)
        answer = starts[value] + lead
        for i in range(starts[value], answer):  # the space before the answer, if it is a token by itself
            text[at] = flat[i]
            at += 1
        span[1], span[2], span[4] = starts[key + 1] - starts[key] - lead, starts[value + 1] - answer, at - place[4]
        predict_at[row, 0], targets[row, 0], lengths[row] = at - 1, flat[answer], at
        facts[row, 0], facts[row, 1] = statements, place[2] - place[1]
