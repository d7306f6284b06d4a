"""One replica taken out of a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapgnn.errors import check_integer


def replica_state(module: nn.Module, replica: int) -> dict[str, Tensor]:
    """Return a copy of one replica's state, which loads into the same module with one replica.

    >>> from gapgnn.nn.layers import ReplicaMLP
    >>> state = replica_state(ReplicaMLP(4, [3, 2]), 1)
    >>> ReplicaMLP(1, [3, 2]).load_state_dict(state)
    <All keys matched successfully>
    """
    state = module.state_dict()
    replicas = next((len(value) for value in state.values()), 1)
    check_integer("replica", replica, at_least=0, at_most=replicas - 1)
    return {
        key: value[replica : replica + 1].detach().clone(memory_format=torch.contiguous_format)
        for key, value in state.items()
    }
