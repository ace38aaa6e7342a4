from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mecheval.errors import UserError
from mecheval.tasks import Words, build_task
from mecheval.tasks.text import HuggingFaceTokenizer
from mecheval.tasks.words import PEOPLE, THINGS
from mecheval.types import Batch


def words(**options: Any) -> Words:
    task = build_task("words", **options)
    assert isinstance(task, Words)
    return task


def places(batch: Batch, row: int) -> dict[str, list[int]]:
    return {role: [p for p in at[row].reshape(-1).tolist() if p >= 0] for role, at in batch.roles.items()}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a byte-level tokenizer with few merges, so that words have several tokens."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<s>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([f"Who {word[:2]} has {word[:2]} the" for word in (*PEOPLE, *THINGS)] * 3, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>").save_pretrained(folder)
    return folder


def test_a_statement_a_question_and_their_roles() -> None:
    task = words(statements=1, distractors=0)
    for batch in (task.sample(1), task.reference(1, "train").batch()):
        text = [task.symbol(token) for token in batch.tokens[0].tolist()]
        person, thing = text[7], text[10]
        assert text == [
            "BOS",
            "Here",
            "is",
            "what",
            "we",
            "know",
            ".",
            person,
            "has",
            "the",
            thing,
            ".",
            person,
            "has",
            "the",
        ]
        assert places(batch, 0) == {"bos": [0], "key": [7], "value": [10], "stop": [11], "query": [12, 13, 14]}
        assert task.symbol(int(batch.answers[0])) == thing
        assert batch.predict_at.tolist() == [[14]]


def test_the_question_may_ask_for_the_person() -> None:
    task = words(statements=1, distractors=0, ask="person")
    for batch in (task.sample(1), task.reference(1, "train").batch()):
        text = [task.symbol(token) for token in batch.tokens[0].tolist()]
        assert text[12:] == ["Who", "has", "the", text[10], "?"]
        assert places(batch, 0) == {"bos": [0], "key": [10], "value": [7], "stop": [11], "query": list(range(12, 17))}
        assert task.symbol(int(batch.answers[0])) == text[7]


@pytest.mark.parametrize("ask", ["thing", "person"])
def test_any_tokenizer_gives_the_tokens_of_the_text(pieces: Path, ask: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(pieces))
    task = words(tokenizer=str(pieces), ask=ask, statements=3)
    several = 0
    for batch in (task.corpus(30).batch(), task.reference(30, "train").batch()):
        for row in range(30):
            tokens = batch.tokens[row, : int(batch.lengths[row])].tolist()
            text = str(tokenizer.decode(tokens))
            assert tokenizer(text, add_special_tokens=False).input_ids == tokens
            where = places(batch, row)
            word = {role: str(tokenizer.decode([tokens[p] for p in at])) for role, at in where.items()}
            answer = word["value"].strip()
            person, thing = (word["key"], word["value"]) if ask == "thing" else (word["value"], word["key"])
            assert f"{person} has the{thing}." in text
            assert text.endswith(f"{person} has the" if ask == "thing" else f" Who has the{thing}?")
            assert word["query"] == (f"{person} has the" if ask == "thing" else f" Who has the{thing}?")
            assert word["stop"] == "."
            assert int(batch.answers[row]) == tokenizer(f" {answer}", add_special_tokens=False).input_ids[0]
            several += len(where["value"]) > 1
    assert several > 10


def test_corrupted_words_are_whole_words_that_are_not_in_the_document(pieces: Path) -> None:
    task = words(tokenizer=str(pieces), statements=2)
    assert isinstance(task.tokenizer, HuggingFaceTokenizer)
    decode = task.tokenizer.tokenizer.decode
    batch = task.sample(20, "test")
    kinds = {"key": task.people, "value": task.things, "query": task.people}
    for kind, known in kinds.items():
        other = task.corrupt(batch, kind=kind)
        for row in range(20):
            length = int(batch.lengths[row])
            clean, spoilt = (tokens[row, :length].tolist() for tokens in (batch.tokens, other.tokens))
            at = places(batch, row)[kind]
            written = decode([spoilt[p] for p in at]).split()[0]
            assert written in known
            assert f" {written}" not in decode(clean)
            assert {p for p in range(length) if clean[p] != spoilt[p]} <= set(at)


def test_answers_start_with_different_tokens(pieces: Path) -> None:
    task = words(tokenizer=str(pieces))
    for kind in (task.people, task.things):
        first = [task._word(word)[1][0] for word in kind]
        assert len(set(first)) == len(first)
    whole = words()
    assert (len(whole.people), len(whole.things)) == (24, 24)
    assert len(task.things) < 24


def test_a_tokenizer_object_will_do(pieces: Path) -> None:
    from transformers import AutoTokenizer

    made = Words.tokenized(AutoTokenizer.from_pretrained(str(pieces)), statements=2)
    assert torch.equal(made.sample(5).tokens, words(tokenizer=str(pieces), statements=2).sample(5).tokens)
    with pytest.raises(UserError, match="use a fast tokenizer"):
        Words.tokenized(object())


def test_a_tokenizer_of_letters_has_too_few_first_tokens(tmp_path: Path) -> None:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    letters = {letter: i for i, letter in enumerate(map(chr, range(32, 127)))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token=" "))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="statements=20 needs more people"):
        words(tokenizer=str(tmp_path), statements=20)


def test_a_tokenizer_that_joins_words_is_refused_and_unknown_words_are_left_out(tmp_path: Path) -> None:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    text = [f"Here is what we know. {person} has the lamp. Who has the lamp?" for person in PEOPLE]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>"])

    def made(pre_tokenizer: Any) -> Any:
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
        if pre_tokenizer is not None:
            bpe.pre_tokenizer = pre_tokenizer
        bpe.train_from_iterator(text, trainer)
        return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>")

    with pytest.raises(UserError, match="joins letters of neighbouring words"):
        Words.tokenized(made(None), statements=1)
    task = Words.tokenized(made(tokenizers.pre_tokenizers.Whitespace()), statements=1)
    assert "flag" not in task.things  # no text had an f
    assert "key" in task.things
