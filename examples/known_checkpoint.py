"""A Hugging Face checkpoint whose mechanism is known, because its weights are set by hand. Does the verdict find it?

python examples/known_checkpoint.py --mechanism pointer

A GPT-2 answers "Mary has the lamp. ... Mary has the" with "lamp". Its byte-level BPE tokenizer is trained on such
sentences, so that every word is one token. Both are saved and evaluated from their folder, as any checkpoint is.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import mecheval as me

WIDTH = 64
"""Width of a slot of the stream, which holds one code: a random vector of length 1 and mean 0."""
SLOTS = ("token", "place", "two_back", "three_back", "pointer", "answer")
"""The token's own code, that of its position, codes that heads copy there, and the code of what is said next."""
HEADS = len(SLOTS) // 2
"""So a head is two codes wide."""
MATCH = 40.0
"""Attention score of two equal codes."""
PLACES = 56
LAYERS = {"induction": 2, "pointer": 3}


def trained_tokenizer(folder: Path) -> None:
    """Train a tokenizer on sentences of the task, and save it."""
    text = me.build_task("words")
    sample = text.sample(500)
    documents = [
        " ".join(text.symbol(token) for token in row[1:length]).replace(" .", ".")
        for row, length in zip(sample.tokens.tolist(), sample.lengths.tolist(), strict=True)
    ]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(documents, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>").save_pretrained(folder)


def codes(n: int, generator: torch.Generator) -> Tensor:
    """(n, WIDTH); orthogonal where there is room."""
    x = torch.randn(n, WIDTH, generator=generator)
    x = x - x.mean(1, keepdim=True)
    return torch.linalg.qr(x.mT).Q.mT if n < WIDTH else x / x.norm(dim=1, keepdim=True)


def slot(name: str) -> slice:
    """Where a code stands in the stream."""
    at = SLOTS.index(name) * WIDTH
    return slice(at, at + WIDTH)


class Hand:
    """Sets the weights of a GPT-2 in which everything else is zero."""

    def __init__(self, vocab: int, layers: int) -> None:
        d, generator = len(SLOTS) * WIDTH, torch.Generator().manual_seed(0)
        config = GPT2Config(
            vocab_size=vocab, n_positions=PLACES, n_embd=d, n_layer=layers, n_head=HEADS, n_inner=8,
            bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config)
        for weight in self.model.parameters():
            weight.zero_()
        self.tokens, self.places = codes(vocab, generator), codes(PLACES, generator)
        body = self.model.transformer
        body.wte.weight[:, slot("token")], body.wpe.weight[:, slot("place")] = self.tokens, self.places
        for norm in (*(block.ln_1 for block in body.h), body.ln_f):
            norm.weight.fill_(d**-0.5)  # codes have mean 0, so that a norm only makes the stream's length 1

    def moved(self, by: int) -> Tensor:
        """The map from the code of a position to that of the position `by` later."""
        at = (torch.arange(PLACES) + by).clamp(0, PLACES - 1)
        return self.places.mT @ self.places[at]

    def head(
        self, layer: int, number: int, where: list[tuple[str, str, Tensor | float]], what: tuple[str, str]
    ) -> None:
        """Look where codes of a key are those of the query, after a map, and copy one slot from there to another."""
        part, d, size = self.model.transformer.h[layer].attn, len(SLOTS) * WIDTH, 2 * WIDTH
        q, k, v = part.c_attn.weight.split(d, dim=1)
        there = self.crowd(layer)
        for i, (query, key, turn) in enumerate(where):
            columns = slice(number * size + i * WIDTH, number * size + (i + 1) * WIDTH)
            turned = turn if isinstance(turn, Tensor) else turn * torch.eye(WIDTH)
            q[slot(query), columns] = turned * MATCH * there * size**0.5
            k[slot(key), columns].fill_diagonal_(1)
        columns = slice(number * size, number * size + WIDTH)
        v[slot(what[0]), columns].fill_diagonal_(1)
        part.c_proj.weight[columns, slot(what[1])].fill_diagonal_(there**0.5)

    def else_first(self, layer: int) -> None:
        """Without a match, head 0 of layer 1 or 2 looks at the start of the text, whose token is <s>."""
        half = MATCH / 2 * (self.crowd(layer) * 2 * WIDTH) ** 0.5
        self.model.transformer.h[layer].attn.c_attn.bias[:WIDTH] = self.tokens[0] * half

    @staticmethod
    def crowd(layer: int) -> int:
        """Codes in the stream before a layer; the norm makes each of them shorter by the root of it."""
        return 2 + 2 * (layer > 0) + (layer > 1)


@torch.no_grad()
def checkpoint(folder: Path, mechanism: str) -> None:
    """Save a tokenizer and a model with this mechanism."""
    trained_tokenizer(folder)
    hand = Hand(len(PreTrainedTokenizerFast.from_pretrained(folder)), LAYERS[mechanism])
    # Layer 0: every token learns what stands two and three before it. "lamp" learns Mary, and so does the last "the".
    hand.head(0, 0, [("place", "place", hand.moved(-2))], ("token", "two_back"))
    hand.head(0, 1, [("place", "place", hand.moved(-3))], ("token", "three_back"))
    if mechanism == "induction":  # layer 1: the last "the" looks where Mary is three back, which is at "lamp"
        hand.head(1, 0, [("two_back", "three_back", 1.0)], ("token", "answer"))
        hand.else_first(1)
    else:  # layer 1: it looks at the first Mary and takes her position; layer 2: three places on from there is "lamp"
        but_here = ("place", "place", -2 * hand.moved(-2))
        hand.head(1, 0, [("two_back", "token", 1.0), but_here], ("place", "pointer"))
        hand.else_first(1)
        hand.head(2, 0, [("pointer", "place", hand.moved(3))], ("token", "answer"))
    hand.model.lm_head.weight[:, slot("answer")] = 60 * hand.tokens
    hand.model.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mechanism", choices=LAYERS, default="induction")
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    parser.add_argument("-n", type=int, default=64, help="documents")
    args = parser.parse_args()
    checkpoint(args.folder, args.mechanism)
    print(me.evaluate(args.folder, task="words", n=args.n, compare=False))
