"""Short causal depthwise convolution: every channel mixes its last K tokens with weights of its own.

Shapes: B batch, L length, P positions asked for, C channels, K taps.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops import short_conv_kernel
from mecheval.ops.dispatch import in_float32, once_differentiable, use_fast, use_gpu
from mecheval.ops.pieces import apart, current, extended
from mecheval.ops.queries import check_at, take
from mecheval.ops.ragged import arrays, documents_now, layout

EVERYWHERE = torch.empty(0, 0, dtype=torch.int64)
"""What the kernels get instead of positions if all are wanted."""


@in_float32
def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, at: Tensor | None = None) -> Tensor:
    """y[t, c] = bias[c] + Σ_j weight[c, 0, j] x[t - (K-1) + j, c], with zeros before the first token.

    x (B, L, C); weight (C, 1, K) as in PyTorch's Conv1d, its last tap on the current token; bias (C,) or None.
    Returns (B, L, C), or (B, P, C) at the positions `at` (B, P).
    """
    if current(at) is not None:
        seen = extended(x, weight.shape[-1] - 1)
        with apart():
            return short_conv(seen, weight, bias)[:, -x.shape[1] :]
    if at is not None:
        check_at(at, *x.shape[:2])
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if weight.shape[-1] in (2, 3, 4) and use_gpu("causal_conv1d", *tensors):
        from causal_conv1d import causal_conv1d_fn

        y: Tensor = causal_conv1d_fn(x.transpose(1, 2), weight[:, 0], bias).transpose(1, 2)
        return y if at is None else take(y, at)
    if use_fast(*tensors):
        return _ShortConv.apply(x, weight, bias, at)  # type: ignore[no-any-return, no-untyped-call]
    if (documents := documents_now()) is not None:
        return documents.in_batch(lambda x: short_conv(x, weight, bias, at), [x], at=at)
    return short_conv_reference(x, weight, bias, at)


def short_conv_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None, at: Tensor | None = None) -> Tensor:
    """`short_conv` by PyTorch's own convolution, padded on both sides and cut to the first L outputs."""
    length, channels, taps = x.shape[1], x.shape[2], weight.shape[2]
    y_BCL = F.conv1d(x.transpose(1, 2), weight, bias, padding=taps - 1, groups=channels)[:, :, :length]
    y = y_BCL.transpose(1, 2)
    return y if at is None else take(y, at)


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, at: Tensor | None) -> Tensor:
        channels = x.shape[2]
        bias_C = x.new_zeros(channels) if bias is None else bias.contiguous()
        at_BP = EVERYWHERE if at is None else at.contiguous()
        inputs = x.contiguous(), weight[:, 0].contiguous(), bias_C, layout(x).starts, at_BP
        y = x.new_empty(*(x.shape[:2] if at is None else at.shape), channels)
        ctx.given = arrays(*inputs)
        ctx.save_for_backward(*inputs[:3])  # so that a change to them is noticed
        short_conv_kernel.forward(*ctx.given, *arrays(y))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw_CK, dbias_C = grads = [torch.zeros_like(x) for x in ctx.saved_tensors]
        short_conv_kernel.backward(*ctx.given, *arrays(dy.contiguous(), *grads))
        return dx, dw_CK[:, None], dbias_C if ctx.needs_input_grad[2] else None, None
