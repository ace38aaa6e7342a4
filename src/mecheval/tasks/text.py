"""Tokenizers: one token for each word, or a tokenizer of Hugging Face."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from mecheval.errors import UserError, shown
from mecheval.types import BOS, EOS, FIRST_SYMBOL, PAD

Encoded = tuple[list[int], list[int]]
"""Token ids, and the position in the text at which each token ends."""


class Tokenizer(Protocol):
    """What a task needs from a tokenizer."""

    size: int  # number of token ids
    start: tuple[int, ...]  # tokens at the start of every text
    unknown: int | None  # the token for text outside the vocabulary, if any

    def encode(self, text: str) -> Encoded:
        """The tokens of a text, without those of `start`."""
        ...

    def text(self, token: int) -> str:
        """A token as readable text."""
        ...


class WordTokenizer:
    """A tokenizer with one token for each word and each punctuation mark of a vocabulary."""

    start: tuple[int, ...] = (BOS,)
    unknown: int | None = None

    def __init__(self, vocabulary: str) -> None:
        words = dict.fromkeys(re.findall(r"\w+|[^\w\s]", vocabulary))
        self.ids = {word: FIRST_SYMBOL + i for i, word in enumerate(words)}
        self.names = {token: word for word, token in self.ids.items()} | {PAD: "PAD", BOS: "BOS", EOS: "EOS"}
        self.size = FIRST_SYMBOL + len(self.ids)

    def encode(self, text: str) -> Encoded:
        found = list(re.finditer(r"\w+|[^\w\s]", text))
        return [self.ids[match[0]] for match in found], [match.end() for match in found]

    def text(self, token: int) -> str:
        return str(self.names.get(token, token))


class HuggingFaceTokenizer:
    """A fast tokenizer from transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.size = tokenizer, len(tokenizer)
        self.unknown: int | None = tokenizer.unk_token_id
        with_start = tokenizer("a").input_ids
        self.start: tuple[int, ...] = tuple(with_start[:1]) if with_start[:1] == [tokenizer.bos_token_id] else ()

    def encode(self, text: str) -> Encoded:
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(found["input_ids"]), [end for _, end in found["offset_mapping"]]

    def text(self, token: int) -> str:
        """The token's text, or its name in the vocabulary if it has none."""
        return self.tokenizer.decode([token]).strip() or str(self.tokenizer.convert_ids_to_tokens(token))


def load_tokenizer(source: Any) -> HuggingFaceTokenizer:
    """A tokenizer from transformers, given as an object or as the folder it was saved in; nothing is downloaded."""
    if isinstance(source, str):
        if not Path(source).is_dir():
            raise UserError(f"tokenizer: there is no folder {shown(source)}.")
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise UserError("tokenizer: this needs transformers; install mecheval[hf].") from None
        try:
            source = AutoTokenizer.from_pretrained(source, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"tokenizer: none can be loaded from {source}: {reason}") from None
    if not getattr(source, "is_fast", False):
        raise UserError(f"tokenizer: {type(source).__name__} does not report token positions; use a fast tokenizer.")
    return HuggingFaceTokenizer(source)
