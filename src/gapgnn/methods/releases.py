"""The released hops of every graph a model has read, and how a graph finds its own again.

A fingerprint is an exact function of private data: whoever knows all edges but one could try both
values. So a saved model never holds one. It holds the random id of the ledger's charge, and only
the curator's ledger knows which data set that charge was for (privacy page, sections 6 and 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import PrivacyError
from gapgnn.graph import Graph
from gapgnn.privacy.ledger import Charge, Ledger
from gapgnn.rng import system_entropy


@dataclass(frozen=True)
class ReleasedHops:
    """What was released on one graph: prediction on it reads this instead of the edges.

    Attributes:
        release: random id; the ledger's charge id where something was charged.
        ids: outside name of each row.
        hops: ``(nodes, width)`` each; at level none and edge hop 0 is the first.
        has_hop_zero: whether the first one is hop 0. At node level it never is.
    """

    release: str
    ids: NDArray[Any]
    hops: tuple[Tensor, ...]
    has_hop_zero: bool


@dataclass
class Releases:
    """All releases of one model; the first is the training graph's."""

    hops: dict[str, ReleasedHops] = field(default_factory=dict)
    _release_of: dict[str, str] = field(default_factory=dict, repr=False)

    def add(
        self, graph: Graph, charge: Charge | None, hops: tuple[Tensor, ...], *, has_hop_zero: bool
    ) -> ReleasedHops:
        """Keep what was just released on ``graph``."""
        release = system_entropy(12).hex() if charge is None else charge.id
        self.hops[release] = ReleasedHops(release, graph.ids, hops, has_hop_zero)
        self._release_of[graph.fingerprint] = release
        return self.hops[release]

    def training(self) -> ReleasedHops:
        """Return the training graph's release."""
        return next(iter(self.hops.values()))

    def find(self, graph: Graph, ledger: Ledger, *, by_ids: bool = True) -> ReleasedHops | None:
        """Return what was released on this very graph, or None if it is another one.

        In the process that released it, and wherever the ledger that was charged is at hand, the
        fingerprint decides. Without that ledger a graph with the same node ids in the same order is
        taken to be the same graph, unless ``by_ids`` is False. Rows come in the order of the
        graph's nodes: a fingerprint does not depend on it.
        """
        if not self._release_of.get(graph.fingerprint):
            owners = self._owners(ledger)
            for release, known in self.hops.items():
                owner = owners.get(release)
                if owner == graph.fingerprint or (
                    by_ids
                    and owner is None
                    and release not in self._release_of.values()
                    and np.array_equal(*_alike(known.ids, graph.ids))
                ):
                    self._release_of[graph.fingerprint] = release
        found = self._release_of.get(graph.fingerprint)
        return None if found is None else _in_order_of(graph, self.hops[found])

    def sharing(self, graph: Graph, ledger: Ledger) -> list[str]:
        """Return the fingerprints of earlier graphs that share a node id with ``graph``.

        Sequential composition charges them too (privacy page, section 2).
        """
        owners = self._owners(ledger)
        owners |= {release: fingerprint for fingerprint, release in self._release_of.items()}
        fingerprints = []
        for release, known in self.hops.items():
            shared = _shared(known.ids, graph.ids)
            if shared and release not in owners:
                raise PrivacyError(
                    f"the graph shares {shared} node ids with one that was charged in another "
                    "ledger, so both cannot be charged. Use the ledger of the training, or other "
                    "ids if they are other people."
                )
            if shared:
                fingerprints.append(owners[release])
        return fingerprints

    def _owners(self, ledger: Ledger) -> dict[str, str]:
        """Return which data set each release was charged to, as far as this ledger knows."""
        first: dict[str, str] = {}
        for charge in ledger.entries():
            if charge.id in self.hops:
                # A charge of several data sets lists the one that was read first.
                first.setdefault(charge.id, charge.fingerprint)
        return first


def _in_order_of(graph: Graph, known: ReleasedHops) -> ReleasedHops:
    """Return the rows of the same nodes in the order in which ``graph`` lists them."""
    before, now = _alike(known.ids, graph.ids)
    if np.array_equal(before, now):
        return known
    by_id = np.argsort(before)
    rows = torch.from_numpy(by_id[np.searchsorted(before, now, sorter=by_id)])
    return replace(known, ids=graph.ids, hops=tuple(hop[rows] for hop in known.hops))


def _shared(some: NDArray[Any], others: NDArray[Any]) -> int:
    """Count common ids."""
    return len(np.intersect1d(*_alike(some, others), assume_unique=True))


def _alike(some: NDArray[Any], others: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ids in one form: numbers and strings are compared by how they are written."""
    if some.dtype.kind != others.dtype.kind:
        return some.astype(str), others.astype(str)
    return some, others
