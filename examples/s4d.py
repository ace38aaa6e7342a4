"""S4D, the diagonal state space model with the initialisation S4D-Lin (Gu et al. 2022).

    mecheval evaluate examples/s4d.py:S4D
    mecheval check examples/s4d.py --set d_state=32

The paper is "On the Parameterization and Initialization of Diagonal State Space Models". Each channel has N complex
numbers of state, h_t = exp(dt A) h_{t-1} + B' x_t and y_t = 2 Re(C h_t) + D x_t. The weights do not depend on the
input, so y is a convolution of x with k_l = 2 Re(sum over n of C_n B'_n exp(l dt A_n)): by an FFT in long documents,
and in short ones by a matrix for each channel, which is faster. Nothing in it compares tokens, so it should not recall:
it is a baseline.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SHORT = 128
"""Length in tokens up to which the matrices of all channels are faster than an FFT."""


class S4D(nn.Module):
    """A long convolution of each channel, whose filter is a sum of decaying waves."""

    def __init__(self, d_model: int, d_state: int = 16, dt_min: float = 0.001, dt_max: float = 0.1) -> None:
        super().__init__()
        low, high = math.log(dt_min), math.log(dt_max)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(d_model))
        self.log_decay = nn.Parameter(torch.full((d_model, d_state), math.log(0.5)))  # -Re A
        self.frequency = nn.Parameter(math.pi * torch.arange(float(d_state)).repeat(d_model, 1))  # Im A
        self.C = nn.Parameter(torch.randn(d_model, d_state, 2) / math.sqrt(2))  # complex
        self.D = nn.Parameter(torch.randn(d_model))
        self.out = nn.Linear(d_model, 2 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        length = x.shape[1]
        k = self.filter(length)  # (D, L)
        if length <= SHORT:
            late_first = F.pad(k.flip(1), (0, length - 1))  # k_{L-1}, ..., k_0, 0, ..., 0
            toeplitz = late_first.unfold(1, length, 1).flip(1)  # (D, L, L): k_{t-s} at row t and column s
            y = (toeplitz @ x.permute(2, 1, 0)).permute(2, 1, 0)
        else:
            spectrum = torch.fft.rfft(x, n=2 * length, dim=1) * torch.fft.rfft(k, n=2 * length).T
            y = torch.fft.irfft(spectrum, n=2 * length, dim=1)[:, :length]
        return F.glu(self.out(F.gelu(y + self.D * x)), dim=-1)

    def filter(self, length: int) -> Tensor:
        """The filter k, (D, L), of the system discretised by a zero-order hold: B' = (exp(dt A) - 1) / A."""
        A = torch.complex(-self.log_decay.exp(), self.frequency)  # (D, N)
        dtA = self.log_dt.exp()[:, None] * A
        waves = (dtA[..., None] * torch.arange(length, device=A.device)).exp()  # (D, N, L)
        weights = torch.view_as_complex(self.C) * torch.expm1(dtA) / A
        return 2 * (weights[:, None] @ waves)[:, 0].real
