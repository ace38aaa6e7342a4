"""The optimiser: AdamW with PyTorch's fused kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

MEANS = ("exp_avg", "exp_avg_sq")
"""The running means of a parameter's gradient and of its square."""
MOMENTS = (*MEANS, "step")
"""The state of each parameter: these means, and the number of its updates."""


class AdamW:
    """The same numbers, to the bit, as `torch.optim.AdamW(fused=True)`.

    That class imports PyTorch's compiler, which takes longer than all other imports of a training process together, and
    it counts each parameter's updates in a tensor: for small models, to count takes longer than to update.
    """

    def __init__(
        self, parameters: Iterable[Tensor], betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:  # fmt: skip
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.means: dict[Tensor, tuple[Tensor, ...]] = {}
        """Of each parameter that has had a gradient, as MEANS names them."""
        self.updates: dict[Tensor, int] = {}
        """How often each of these was updated."""

    def zero_grad(self) -> None:
        """Reset all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update each parameter that has a gradient."""
        changed = [parameter for parameter in self.parameters if parameter.grad is not None]
        if not changed:
            return
        for parameter in changed:
            if parameter not in self.means:
                zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                self.means[parameter] = (zeros, zeros.clone())
            self.updates[parameter] = self.updates.get(parameter, 0) + 1
        counts = [self.updates[each] for each in changed]
        tensors = {n: torch.tensor(float(n), device=changed[0].device) for n in set(counts)}
        means, squares = zip(*(self.means[each] for each in changed), strict=True)
        torch._fused_adamw_(
            changed, [each.grad for each in changed if each.grad is not None], means, squares, [],
            [tensors[n] for n in counts], lr=lr, beta1=self.betas[0], beta2=self.betas[1], eps=self.eps,
            weight_decay=self.weight_decay, amsgrad=False, maximize=False,
        )  # fmt: skip

    def moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """A copy of the state of a parameter, on the CPU; empty if it never had a gradient."""
        if parameter not in self.means:
            return {}
        copies = {name: mean.cpu().clone() for name, mean in zip(MEANS, self.means[parameter], strict=True)}
        return copies | {"step": torch.tensor(float(self.updates[parameter]))}

    def restore(self, parameter: Tensor, moments: Mapping[str, Tensor]) -> None:
        """Set the state of a parameter to what `moments` gave."""
        self.means.pop(parameter, None)
        self.updates.pop(parameter, None)
        if moments:
            self.means[parameter] = tuple(moments[name].to(parameter.device) for name in MEANS)
            self.updates[parameter] = int(moments["step"])
