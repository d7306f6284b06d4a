"""What a saved folder released, and what everybody sent: the auditor's view of one fit.

The rows of every hop are read from the folder. What each node sends along each of its arcs follows
from public data and from the hops before, so the auditor computes it again. The sums over arcs are
computed here, without the code under audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.audits.scores import Matrix
from gapgnn.errors import InputError
from gapgnn.graph import Graph, csr
from gapgnn.methods import GAP, LabelGAP, NodeClassifier, NodeLabelGAP, ProGAP
from gapgnn.privacy import Neighbors, OutDegreeNormalized, Symmetrized
from gapgnn.privacy.accounting import Event, Gaussian
from gapgnn.privacy.ledger import Ledger
from gapgnn.training import FeatureInputs

# Of the grid to which messages are cut (privacy page, section 4).
_GRID = 2.0**-14
# How many of its standard errors the unit of released rows may be off before another is used.
_OFF = 6.0


@dataclass(frozen=True)
class ReleasedHop:
    """One hop as the folder holds it, beside what the auditor knows.

    Attributes:
        rows: as released: in units of the noise, or unit rows where only the direction is kept.
        sent: what each node sends along each arc, in no units.
        std: of the accounted noise.
        is_direction: whether rows are scaled to norm 1.
        to_self: whether every node also sends to itself.
        group: of people who send in this hop; empty: everybody.
    """

    rows: Matrix
    sent: Matrix
    std: float
    is_direction: bool = False
    to_self: bool = False
    group: str = ""


def check_readable(model: NodeClassifier) -> None:
    """Refuse a method of which the auditor does not know what others sent.

    >>> check_readable(GAP(level="node"))
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `estimator` must be label-gap, gap or progap at level edge, or \
node-label-gap. Got gap at level node: where adjacency lists are cut by a secret key, what others \
sent to a row is not known, and no score is exact.
    """
    is_known = isinstance(model, NodeLabelGAP) or (
        isinstance(model, LabelGAP | ProGAP | GAP) and model.level == "edge"
    )
    if not is_known:
        raise InputError(
            "`estimator` must be label-gap, gap or progap at level edge, or node-label-gap. Got "
            f"{model.method} at level {model.level}: where adjacency lists are cut by a secret "
            "key, what others sent to a row is not known, and no score is exact."
        )


def released_hops(model: NodeClassifier, graph: Graph) -> list[ReleasedHop]:
    """Return the hops of a fitted model, with what everybody sent.

    Args:
        model: as loaded from its folder.
        graph: it was trained on, with its split.
    """
    check_readable(model)
    kept = model.releases_.find(graph, Ledger(model.ledger))
    if kept is None:
        raise InputError("`graph` must be the one of training. Got another.")
    hops = [hop.unsqueeze(0) for hop in kept.hops[int(kept.has_hop_zero) :]]
    with torch.no_grad():
        if isinstance(model, NodeLabelGAP):
            return list(_of_records(model, graph, hops))
        if isinstance(model, LabelGAP):
            sent = _of_labels(model, graph, hops)
        elif isinstance(model, ProGAP):
            sent = _of_stages(model, graph, hops)
        else:
            assert isinstance(model, GAP)
            sent = _of_embeddings(model, graph, hops)
    (std,) = {event.noise_multiplier for event in _gaussians(model)}
    operator = Symmetrized if is_symmetrised(model) else Neighbors
    std *= operator.bound(model.card_.relation)
    return [
        ReleasedHop(_rows(hop), _cut(_rows(one)), std, is_direction=isinstance(model, GAP))
        for hop, one in zip(hops, sent, strict=True)
    ]


def _gaussians(model: NodeClassifier) -> list[Gaussian]:
    events = [Event.from_dict(dict(event)) for event in model.card_.events]
    return [event for event in events if isinstance(event, Gaussian)]


def charged_hops(model: NodeClassifier) -> int:
    """Return how many hops the card charges for."""
    return sum(event.count for event in _gaussians(model))


def is_symmetrised(model: NodeClassifier) -> bool:
    """Return whether messages travel along arcs and against them."""
    return any(one.is_symmetrised for one in model.plan_.hops.values())


def _of_labels(model: LabelGAP, graph: Graph, hops: Sequence[Tensor]) -> list[Tensor]:
    model.networks_on(torch.device("cpu"))
    stages = model._stages(graph)
    labels = torch.tensor(graph.labels)
    sends = torch.tensor(graph.train_mask).unsqueeze(0)
    return stages.messages(FeatureInputs(graph, torch.device("cpu")), labels, sends, hops)


def _of_stages(model: ProGAP, graph: Graph, hops: Sequence[Tensor]) -> list[Tensor]:
    model.networks_on(torch.device("cpu"))
    features = FeatureInputs(graph, torch.device("cpu"))
    first, sent = model._first(features), [model._messages(features)]
    for place in range(1, len(hops)):
        sent.append(model._next_messages(f"stage{place}", first, hops[:place]))
    return sent


def _of_embeddings(model: GAP, graph: Graph, hops: Sequence[Tensor]) -> list[Tensor]:
    model.networks_on(torch.device("cpu"))
    return [model._encode(model._features(graph, torch.device("cpu"))), *hops[:-1]]


def _of_records(model: NodeLabelGAP, graph: Graph, hops: Sequence[Tensor]) -> Iterator[ReleasedHop]:
    """Yield the hops of NodeLabelGAP: that of training people, then that of the others."""
    if not hops:
        raise InputError(
            "`method` must have released hops to be audited. Got a model whose noisy mean "
            "out-degree chose none; give a larger epsilon, or `hop_share`."
        )
    sends = torch.tensor(graph.train_mask).unsqueeze(0)
    votes = model._votes(graph, sends)
    sent = [votes._labels, *([votes._guesses(hops[0])[0]] if len(hops) > 1 else [])]
    to_self = model.own == "record"
    degrees = votes.graph.out_degrees[: graph.num_nodes] + int(to_self)
    roots = np.sqrt(np.maximum(degrees, 1))[:, None]
    for event, rows, one in zip(_gaussians(model), hops, sent, strict=False):
        std = event.noise_multiplier * OutDegreeNormalized.bound(model.card_.relation)
        written = _cut(_rows(one)[: graph.num_nodes] / roots)
        yield ReleasedHop(_rows(rows), written, std, to_self=to_self, group=event.group)


def _rows(hop: Tensor) -> Matrix:
    rows: Matrix = (
        hop[0].detach().cpu().double().numpy() if hop.dim() == 3 else hop.double().numpy()
    )
    return rows


def _cut(rows: Matrix) -> Matrix:
    cut: Matrix = np.trunc(rows / _GRID) * _GRID
    return cut


def received(graph: Graph, hop: ReleasedHop, *, symmetrised: bool) -> Matrix:
    """Return the sums of what all nodes of a graph receive in a hop, without noise.

    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2), directed=True)
    >>> received(graph, ReleasedHop(np.eye(2), np.eye(2), 1.0), symmetrised=False).tolist()
    [[0.0, 0.0], [1.0, 0.0]]
    """
    matrix = csr.matrix(graph.indptr, graph.indices).astype(np.float64)
    sums: Matrix = matrix.T @ hop.sent
    if symmetrised and graph.is_directed:
        sums = sums + matrix @ hop.sent
    if hop.to_self:
        loops = matrix.diagonal()[:, None]
        sums = sums + (1.0 - loops) * hop.sent
    return sums


def unit_of(rows: Matrix, sums: Matrix, std: float) -> float:
    """Return the factor from sums to released rows: 1 / std, unless the rows say otherwise.

    Least squares over all rows. Without a fault the factor is what is accounted for, to within its
    standard error, and is taken to be exactly that.

    >>> rng = np.random.default_rng(0)
    >>> sums = 30 * rng.normal(size=(500, 2))
    >>> round(unit_of(sums / 3 + rng.normal(size=(500, 2)), sums, 6.0), 1)
    0.3
    """
    squares = float((sums**2).sum())
    if squares <= 0:
        return 1 / std
    found = float((rows * sums).sum()) / squares
    noise = max(float(((rows - found * sums) ** 2).mean()), 1e-12)
    error = (noise / squares) ** 0.5
    # Canaries themselves are a small part of the sums, and rows are kept in single precision.
    slack = _OFF * error + 0.02 / std
    return 1 / std if abs(found - 1 / std) <= slack else found


def untouched_rows(count: int, touched: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the mask of rows that no canary writes to.

    >>> untouched_rows(3, np.array([1])).tolist()
    [True, False, True]
    """
    mask = np.ones(count, dtype=np.bool_)
    mask[touched] = False
    return mask
