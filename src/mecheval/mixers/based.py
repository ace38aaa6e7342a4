"""Based (Arora et al., 2024, "Simple linear attention language models"): short convolution, then linear attention.

| here | there | |
|---|---|---|
| φ | Taylor feature map | [1, a/f^¼, vec(a aᵀ)/√(2f)]: φ(q)·φ(k) = 1 + s/√f + s²/(2f), s = q·k |
| state | Σ φ(k_j) v_jᵀ and Σ φ(k_j) | what a recurrent run would carry |

Even layers are BaseConv, odd layers linear attention. B batch, L length, K positions asked for, H heads, F feature
dimension f, E width of a head, D = H E.
"""

from __future__ import annotations

from torch import Tensor

from mecheval.mixers.base import Mixer, divides
from mecheval.mixers.base_conv import BaseConv
from mecheval.mixers.options import BaseConvOptions, BasedOptions
from mecheval.ops.product import Linear
from mecheval.ops.queries import take
from mecheval.ops.taylor_attention import taylor_attention, taylor_states
from mecheval.ops.weights import of_result, one_value_each
from mecheval.sites import Tap


def build_based(d_model: int, layer: int, options: BasedOptions) -> Mixer:
    """Short convolution in even layers, linear attention with a Taylor feature map in odd ones."""
    if layer % 2 == 0:
        return BaseConv(d_model, layer, BaseConvOptions(kernel_size=options.kernel_size, l_max=options.l_max))
    return TaylorAttention(d_model, options)


build_based.Options = BasedOptions  # type: ignore[attr-defined]


class TaylorAttention(Mixer):
    """Attention whose exponential is cut to its second-order Taylor polynomial, hence linear in length."""

    Options = BasedOptions
    ragged = True
    canon_b = ("proj_q", "proj_k", "proj_v")
    weighs = ("weights", "v", "heads")

    def __init__(self, d_model: int, options: BasedOptions) -> None:
        super().__init__()
        self.num_heads, self.feature_dim = options.num_heads, options.feature_dim
        self.d_head = divides(options.num_heads, d_model, "based")
        self.proj_q = Linear(d_model, self.num_heads * self.feature_dim, bias=False)
        self.proj_k = Linear(d_model, self.num_heads * self.feature_dim, bias=False)
        self.proj_v = Linear(d_model, d_model, bias=False)
        self.proj_o = Linear(d_model, d_model, bias=False)
        self.q, self.k, self.v = Tap("q", "B L HF"), Tap("k", "B L HF"), Tap("v")
        self.state = Tap("state", "B L H P E+1", readonly=True)
        self.weights = Tap("weights", "B H L S", kind="weights", readonly=True)
        self.heads = Tap("heads", "B L HE", heads=self.num_heads)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """y_t = proj_o(Σ_{j<=t} A_tj v_j / Σ_{j<=t} A_tj), A_tj = φ(q_t)·φ(k_j)."""
        q = self._split(self.q(self.proj_q(x if at is None else take(x, at))))
        k, v = self._split(self.k(self.proj_k(x))), self._split(self.v(self.proj_v(x)))
        if self.state.listening:
            self.state(taylor_states(k, v))
        if self.weights.listening:
            self.weights(of_result(taylor_attention(q, k, one_value_each(v))))
        y: Tensor = self.proj_o(self.heads(taylor_attention(q, k, v, at).flatten(2)))
        return y

    def _split(self, x: Tensor) -> Tensor:
        """(B, L, HX) -> (B, L, H, X)."""
        return x.view(*x.shape[:2], self.num_heads, x.shape[2] // self.num_heads)

    def state_size(self, length: int) -> int:
        """Σ φ(k) vᵀ and Σ φ(k), whatever the length."""
        features = 1 + self.feature_dim + self.feature_dim**2
        return self.num_heads * features * (self.d_head + 1)
