"""One replica taken out of a module, and put into it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_integer


def replica_state(module: nn.Module, replica: int) -> dict[str, Tensor]:
    """Return a copy of one replica's state, which loads into the same module with one replica.

    >>> from gapgnn.nn.layers import ReplicaMLP
    >>> state = replica_state(ReplicaMLP(4, [3, 2]), 1)
    >>> ReplicaMLP(1, [3, 2]).load_state_dict(state)
    <All keys matched successfully>
    """
    state = module.state_dict()
    check_integer("replica", replica, at_least=0, at_most=_replicas(state) - 1)
    return {
        key: value[replica : replica + 1].detach().clone(memory_format=torch.contiguous_format)
        for key, value in state.items()
    }


@torch.no_grad()
def load_replica_state(module: nn.Module, replica: int, state: Mapping[str, Tensor]) -> None:
    """Write one replica's state, as from :func:`replica_state`, into its place in a module."""
    own = module.state_dict()
    check_integer("replica", replica, at_least=0, at_most=_replicas(own) - 1)
    if own.keys() != state.keys():
        odd = sorted(own.keys() ^ state.keys())[0]
        raise InputError(
            f"`state` must have the module's own entries. Got a difference in {odd!r}."
        )
    for key, value in own.items():
        if state[key].shape != (1, *value.shape[1:]):
            raise InputError(
                f"`{key}` must have shape {(1, *value.shape[1:])}. Got {tuple(state[key].shape)}."
            )
        value[replica : replica + 1] = state[key]


def _replicas(state: Mapping[str, Tensor]) -> int:
    return next((len(value) for value in state.values()), 1)
