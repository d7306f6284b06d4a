"""Which modules can be trained on single sub-graphs, tried out before anything is charged.

A root's gradient is clipped as one, which bounds a record's influence only if the gradient depends
on the sub-graph of that root alone. The training loop calls the module with one sub-graph at a
time, so what is left to break it is state that goes from one call to the next: running statistics,
and caches. And what a module says of a node must follow from that node's neighbourhood: normalised
or pooled over all nodes, it would be another function on the whole graph than it was in training.

The checks run the module on made-up rows and arcs. They find what is done on every call, in a known
layer or in somebody's own code. They do not find what a module hides on purpose.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import Subgraph
from gapgnn.rng import experiment_rng
from gapgnn.training import root_row

_NORM_FIX = "Use `GroupNorm` or `LayerNorm`, which normalise each row by itself."


def message_layers(module: nn.Module) -> int:
    """Return the number of PyG's message passing layers in a module, each along one arc.

    >>> message_layers(nn.Linear(2, 2))
    0
    """
    from torch_geometric.nn import MessagePassing

    layers = [part for part in module.modules() if isinstance(part, MessagePassing)]
    for part in layers:
        if getattr(part, "K", 1) not in (None, 0, 1):
            raise InputError(
                "`layers` must be given for a module with layers of several hops. Got auto and "
                f"{part}."
            )
    return len(layers)


def check_module(
    module: nn.Module,
    *,
    layers: int,
    columns: int,
    classes: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Raise unless a module can be trained on one sub-graph at a time.

    Args:
        module: called as it will be in training; left as it was.
        layers: of message passing.
        columns: of the features.
        classes: number of scores that it must give.
        loss: of one root.
    """
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(value):
            raise InputError(
                f"`module` must have all parameters before it is trained. Got a lazy {name!r}: "
                "state the width of its input."
            )
    _check_parts(module)
    tried = copy.deepcopy(module).train()
    with torch.random.fork_rng(devices=[]), _without_dropout(tried):
        trial = _Trial(tried, layers, columns)
        _check_shape(trial.again(), classes, leaves=4)
        _check_state(trial)
        _check_locality(trial.again())
        for leaves in (0, 1):
            _check_shape(trial.again(), classes, leaves=leaves)
        row = trial.again().run(*trial.star(4))
        value = loss(row, torch.zeros(1, dtype=torch.long))
        if value.numel() != 1 or not value.requires_grad:
            raise InputError(
                "`loss` must give one number with a gradient for a row of scores and a label. Got "
                f"shape {tuple(value.shape)}."
            )


def _check_parts(module: nn.Module) -> None:
    """Refuse layers that are known to keep statistics or to mix nodes."""
    from torch.nn.modules.batchnorm import _NormBase

    for name, part in module.named_modules():
        layer = type(part).__name__
        is_norm = isinstance(part, _NormBase) and "BatchNorm" in layer
        if is_norm or getattr(part, "track_running_stats", False):
            raise PrivacyError(
                f"`module` must not have {layer} ({name!r}): its running statistics would be "
                f"released without noise, and they mix the nodes. {_NORM_FIX}"
            )
        if getattr(part, "cached", False) is True:
            raise PrivacyError(
                f"`module` must not cache ({name!r}, {layer}): the arcs of the first sub-graph "
                "would be used for all roots. Set cached=False."
            )


class _Trial:
    """A module and made-up sub-graphs for it."""

    def __init__(self, module: nn.Module, layers: int, columns: int) -> None:
        self.module, self.layers, self._columns = module, layers, columns

    def again(self) -> _Trial:
        """Return the trial of a copy that has seen nothing yet."""
        return _Trial(copy.deepcopy(self.module), self.layers, self._columns)

    def star(self, leaves: int) -> tuple[Tensor, Subgraph]:
        """Return a root to which so many nodes send."""
        rng = experiment_rng(0, "module check", leaves)
        rows = torch.from_numpy(rng.normal(size=(leaves + 1, self._columns)).astype(np.float32))
        edges = np.stack([np.arange(1, leaves + 1), np.zeros(leaves, dtype=np.int64)])
        if not self.layers:
            rows, edges = rows[:1], edges[:, :0]
        return rows, Subgraph(np.arange(len(rows)), edges)

    def run(self, rows: Tensor, subgraph: Subgraph, *, seed: int = 0) -> Tensor:
        """Return what the module says of the root."""
        torch.manual_seed(seed)
        return root_row(self.module, rows, subgraph, self.layers)

    def whole(self, rows: Tensor, subgraph: Subgraph) -> Tensor:
        """Return what the module says of all nodes."""
        if not self.layers:
            found: Tensor = self.module(rows)
        else:
            found = self.module(rows, torch.from_numpy(subgraph.edges))
        return found


def _check_shape(trial: _Trial, classes: int, *, leaves: int) -> None:
    rows, subgraph = trial.star(leaves)
    try:
        found = trial.whole(rows, subgraph)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        called = "module(x)" if not trial.layers else "module(x, edge_index)"
        raise InputError(
            f"`module` must take {called} with {rows.shape[1]} columns and any number of arcs, "
            f"none included. Got, with {leaves} arcs: {' '.join(str(error).split())}"
        ) from error
    wanted = (len(rows), classes)
    if not isinstance(found, Tensor) or found.shape != wanted:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"`module` must give a row of {classes} scores for every node, {wanted} here. Got "
            f"{shape}. A module that pools over all nodes has no row for the root."
        )


def _check_state(trial: _Trial) -> None:
    """Refuse what goes from one call to the next, and randomness that cannot be switched off."""
    first, other = trial.star(4), trial.star(7)
    used = trial.again()
    used.run(*other)
    after = used.module.state_dict()
    before = trial.module.state_dict()
    changed = [name for name, value in after.items() if not torch.equal(value, before[name])]
    if changed:
        raise PrivacyError(
            f"`module` must not keep statistics of what it sees. Got {changed[0]!r}, which changed "
            f"in a forward pass and would be released without noise. {_NORM_FIX}"
        )
    alone = trial.again().run(*first)
    if not _alike(alone, used.run(*first)):
        raise PrivacyError(
            "`module` must say the same of a root whatever it saw before. Got another row after "
            "another sub-graph: it keeps state between calls."
        )
    if not _alike(alone, trial.again().run(*first, seed=1)):
        raise PrivacyError(
            "`module` must draw at random in `nn.Dropout` alone, or in PyG layers with a "
            "`dropout`: other randomness cannot be switched off for the checks. Got another row "
            "for another seed."
        )


def _check_locality(trial: _Trial) -> None:
    """Refuse what lets a root's row depend on nodes that do not reach it."""
    if not trial.layers:
        return
    rows, subgraph = trial.star(4)
    others, _ = trial.star(6)
    # Nodes without an arc to the root, and so unlike the others that they would move any mean.
    more = Subgraph(np.arange(len(rows) + len(others)), subgraph.edges)
    if not _alike(trial.run(rows, subgraph), trial.run(torch.cat([rows, 9 * others]), more)):
        raise PrivacyError(
            "`module` must compute a node's row from nodes that reach it alone. Got a row that "
            "changes with unconnected nodes, as in batch norm, graph norm and global pooling: on "
            f"the whole graph it would read everybody. {_NORM_FIX}"
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two rows differ by no more than the order of adding up the same numbers."""
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4)


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """Switch known dropout off in a block; the module stays in training mode."""
    kept: list[tuple[nn.Module, str, float]] = []
    for part in module.modules():
        for name in ("p", "dropout"):
            value = getattr(part, name, None)
            is_dropout = name == "dropout" or isinstance(part, nn.modules.dropout._DropoutNd)
            if is_dropout and isinstance(value, float) and value > 0:
                kept.append((part, name, value))
                setattr(part, name, 0.0)
    try:
        yield
    finally:
        for part, name, value in kept:
            setattr(part, name, value)
