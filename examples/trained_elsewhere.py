"""A model that mecheval did not build or train: PyTorch's own transformer, in a plain loop. How does it recall?

python examples/trained_elsewhere.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mecheval as me


class Transformer(nn.Module):
    """Tokens (n, L) -> logits (n, L, V)."""

    def __init__(self, vocab_size: int, max_tokens: int, d: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab_size, d), nn.Embedding(max_tokens, d)
        layer = nn.TransformerEncoderLayer(d, 1, 4 * d, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(d), enable_nested_tensor=False)
        for name, weight in self.named_parameters():  # small, and not the same in all layers, as PyTorch has it
            if weight.ndim > 1:
                onto_the_stream = name.endswith(("out_proj.weight", "linear2.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if onto_the_stream else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """With a causal mask: a model that sees the future would be refused."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        h = self.embed(tokens) + self.place(torch.arange(length, device=tokens.device))
        return F.linear(self.encoder(h, mask=mask, is_causal=True), self.embed.weight)


def train(model: nn.Module, task: me.Task, steps: int) -> None:
    """Answers at the queries, nothing else: `predict_at` says where, `targets` what."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 200))
    for step, batch in zip(range(steps), task.stream(64, "train"), strict=False):
        logits = model(batch.tokens)[torch.arange(len(batch))[:, None], batch.predict_at]  # (n, queries, V)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        warmup.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if loss.item() < 0.03:
            break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--documents", type=int, default=320)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model gains nothing from more
    task = me.build_task("ar", pairs=4, keys=8, values=32, queries=4)
    model = Transformer(task.vocab_size, task.max_tokens)
    train(model, task, given.steps)
    # The layers would be found without being named; naming their attention adds its output to the sites.
    layers = ["encoder.layers.0", "encoder.layers.1"]
    result = me.evaluate(
        model, task, layers=layers, mixers=[f"{layer}.self_attn" for layer in layers], n=given.documents
    )
    print(result)
