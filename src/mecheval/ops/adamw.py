"""The optimiser: AdamW with PyTorch's fused kernel."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adamw import adamw

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""The state of each parameter: running means of its gradient and of its square, and the number of steps."""


class AdamW:
    """The same numbers, to the bit, as `torch.optim.AdamW(fused=True)`.

    That class imports PyTorch's compiler, which takes longer than all other imports of a training process together.
    """

    def __init__(
        self, parameters: Iterable[Tensor], betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:  # fmt: skip
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        """The moments of each parameter that has had a gradient."""

    def zero_grad(self) -> None:
        """Reset all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update each parameter that has a gradient."""
        changed = [parameter for parameter in self.parameters if parameter.grad is not None]
        for parameter in changed:
            if not self.state.get(parameter):
                zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                count = torch.zeros((), dtype=torch.float32, device=parameter.device)
                self.state[parameter] = {"exp_avg": zeros, "exp_avg_sq": zeros.clone(), "step": count}
        means, squares, counts = ([self.state[each][moment] for each in changed] for moment in MOMENTS)
        adamw(
            changed, [each.grad for each in changed if each.grad is not None], means, squares, [], counts, fused=True,
            amsgrad=False, maximize=False, beta1=self.betas[0], beta2=self.betas[1], lr=lr, eps=self.eps,
            weight_decay=self.weight_decay,
        )  # fmt: skip
