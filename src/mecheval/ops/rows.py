"""Tensors as the kernels of element-wise operations see them: as tables of rows, whatever the axes before the last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]


def as_rows(*tensors: Tensor) -> list[Floats]:
    """Each contiguous tensor (..., C) as an array (N, C) over the same memory."""
    return [tensor.numpy().reshape(-1, tensor.shape[-1]) for tensor in tensors]
