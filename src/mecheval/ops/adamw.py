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
        # By number of parameter; a dictionary would take longer than the updates of a small model.
        self.means = [(parameter, parameter) for parameter in self.parameters]  # no state before the first update
        self.updates = [0] * len(self.parameters)

    def zero_grad(self) -> None:
        """Reset all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update each parameter that has a gradient."""
        gradients = {i: grad for i, parameter in enumerate(self.parameters) if (grad := parameter.grad) is not None}
        if not gradients:
            return
        for i in gradients:
            if not self.updates[i]:
                zeros = torch.zeros_like(self.parameters[i], memory_format=torch.preserve_format)
                self.means[i] = zeros, zeros.clone()
            self.updates[i] += 1
        counts = [self.updates[i] for i in gradients]
        device = self.parameters[0].device
        tensors = {n: torch.tensor(float(n), device=device) for n in set(counts)}
        means, squares = zip(*(self.means[i] for i in gradients), strict=True)
        torch._fused_adamw_(
            [self.parameters[i] for i in gradients], list(gradients.values()), means, squares, [],
            [tensors[n] for n in counts], lr=lr, beta1=self.betas[0], beta2=self.betas[1], eps=self.eps,
            weight_decay=self.weight_decay, amsgrad=False, maximize=False,
        )  # fmt: skip

    def moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """A copy of the state of a parameter, on the CPU; empty if it never had a gradient."""
        i = self._number(parameter)
        if i is None or not self.updates[i]:
            return {}
        copies = {name: mean.cpu().clone() for name, mean in zip(MEANS, self.means[i], strict=True)}
        return copies | {"step": torch.tensor(float(self.updates[i]))}

    def restore(self, parameter: Tensor, moments: Mapping[str, Tensor]) -> None:
        """Set the state of a parameter to what `moments` gave."""
        i = self._number(parameter)
        if i is None:
            return
        self.updates[i] = int(moments["step"]) if moments else 0
        if moments:
            first, second = (moments[name].to(parameter.device) for name in MEANS)
            self.means[i] = first, second

    def _number(self, parameter: Tensor) -> int | None:
        """Which parameter this is; None for one that is not trained."""
        return next((i for i, each in enumerate(self.parameters) if each is parameter), None)
