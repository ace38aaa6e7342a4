"""PyTorch's GRU (Cho et al. 2014) as it comes: nothing is wrapped.

    mecheval check examples/gru.py
    mecheval evaluate examples/gru.py:GRU

The check says how it is called, GRU(input_size=..., hidden_size=..., batch_first=True), and that of its outputs, all
hidden states and the last one, the first is taken. Its layers are set by `--set num_layers=2`.
"""

from torch.nn import GRU

__all__ = ["GRU"]
