"""A custom mixer: a gated linear recurrence with a short convolution. Does it recall, and how?

    python examples/own_mixer.py
    mecheval evaluate examples/own_mixer.py:GatedRecurrence     # the same, from the command line

The mixer is trained at laptop scale (two learning rates, a minute together), intervened on, and compared with the seven
built-in ones, which takes ten minutes more the first time. Nothing is trained twice; edit the class, and only that is
trained again.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mecheval as me
from mecheval.sites import Tap


class GatedRecurrence(nn.Module):
    """S_t = decay_t S_{t-1} + k_t v_t^T, read by q_t; q, k and v come from a short convolution."""

    def __init__(self, d_model: int, width: int = 3) -> None:
        super().__init__()
        self.short = nn.Conv1d(d_model, d_model, width, groups=d_model, padding=width - 1)
        self.conv = Tap("conv")  # a site: with this name, the verdict can tell what the convolution does
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.gate = nn.Linear(d_model, 1)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D), causal: position t sees positions 0 .. t."""
        u = self.conv(F.silu(self.short(x.mT)[..., : x.shape[1]].mT))
        q, k, v = self.qkv(u).chunk(3, dim=-1)
        kept = F.logsigmoid(self.gate(x) + 4).cumsum(dim=1)  # log of the product of decays, (B, L, 1)
        decay = torch.exp((kept - kept.mT).tril()).tril()  # what is left at t of what was written at s <= t
        out: Tensor = self.out((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * decay) @ v)
        return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", default="mecheval-store")
    parser.add_argument("--steps", type=int, help="other than the scale's, to try things out")
    parser.add_argument("--alone", action="store_true", help="without the built-in mixers")
    given = parser.parse_args()
    options = {"width": 3} | ({"steps": given.steps} if given.steps else {})
    print(me.evaluate(GatedRecurrence, "ar", options=options, compare=not given.alone, store=given.store))
