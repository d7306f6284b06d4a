"""The released hops of every graph that a model has read, and their lookup by graph.

A fingerprint is an exact function of private data: an attacker who knows all edges but one could
test both values. So a saved model never holds one. It holds the random id of the ledger's charge,
and only the curator's ledger maps that charge to a data set (privacy page, sections 6 and 7).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import Graph
from gapgnn.privacy.ledger import Charge, Ledger, LedgerNotice
from gapgnn.rng import system_entropy

if TYPE_CHECKING:
    from gapgnn.methods.estimator import NodeClassifier


@dataclass(frozen=True)
class ReleasedHops:
    """The released rows of one graph, which predictions read instead of its edges.

    Attributes:
        release: random id; the ledger's charge id if something was charged.
        ids: external id of each row.
        hops: ``(nodes, width)`` each; at level none and edge hop 0 is the first.
        has_hop_zero: whether the first one is hop 0, which it never is at node level.
        is_reduced: whether people were removed from it since (:mod:`gapgnn.methods.erasure`).
        is_keyed: whether ``ids`` are keyed hashes, which the charged ledger alone computes
            (:meth:`~gapgnn.privacy.ledger.Ledger.pseudonyms`), and rows lie in their order.
    """

    release: str
    ids: NDArray[Any]
    hops: tuple[Tensor, ...]
    has_hop_zero: bool
    is_reduced: bool = False
    is_keyed: bool = False

    def keyed(self, ledger: Ledger) -> ReleasedHops:
        """Return these rows under keyed hashes, in the order of the hashes: of none but itself."""
        names = ledger.pseudonyms(self.release, self.ids)
        order = np.argsort(names)
        hops = tuple(hop[torch.from_numpy(order)] for hop in self.hops)
        return replace(self, ids=names[order], hops=hops, is_keyed=True)

    def names_of(self, ids: NDArray[Any], ledger: Ledger) -> NDArray[Any]:
        """Return how this release names people: by their ids, or by keyed hashes of them."""
        return ledger.pseudonyms(self.release, ids) if self.is_keyed else ids

    def numbered(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the hops with their numbers."""
        return enumerate(self.hops, start=0 if self.has_hop_zero else 1)


@dataclass
class Releases:
    """All releases of one model; the first is the training graph's."""

    hops: dict[str, ReleasedHops] = field(default_factory=dict)
    _release_of: dict[str, str] = field(default_factory=dict, repr=False)

    def add(
        self, graph: Graph, charge: Charge | None, hops: tuple[Tensor, ...], *, has_hop_zero: bool
    ) -> ReleasedHops:
        """Store the release on a graph."""
        return self.add_for(graph.ids, graph.fingerprint, charge, hops, has_hop_zero=has_hop_zero)

    def add_for(
        self,
        ids: NDArray[Any],
        fingerprint: str,
        charge: Charge | None,
        hops: tuple[Tensor, ...],
        *,
        has_hop_zero: bool,
    ) -> ReleasedHops:
        """Store the release on some people."""
        release = system_entropy(12).hex() if charge is None else charge.id
        self.hops[release] = ReleasedHops(release, ids, hops, has_hop_zero)
        self._release_of[fingerprint] = release
        return self.hops[release]

    def training(self) -> ReleasedHops:
        """Return the training graph's release."""
        return next(iter(self.hops.values()))

    def find(self, graph: Graph, ledger: Ledger, *, is_paid: bool = True) -> ReleasedHops | None:
        """Return the release on this graph, or None if there is none.

        The fingerprint decides, in the process that made the release and with the ledger that was
        charged. Without that ledger a charged release cannot be assigned to a graph, and is
        refused. Rows are returned in the order of the graph's nodes, on which a fingerprint does
        not depend.

        Args:
            graph: to predict on.
            ledger: maps charges to graphs.
            is_paid: whether releases are charged; otherwise an unknown graph is read again.
        """
        return self.find_for(graph.ids, graph.fingerprint, ledger, is_paid=is_paid)

    def find_for(
        self, ids: NDArray[Any], fingerprint: str, ledger: Ledger, *, is_paid: bool = True
    ) -> ReleasedHops | None:
        """Return the release on some people, by the fingerprint it was charged under."""
        known = set(self._release_of.values())
        for release in self.hops:
            if release in known or not is_paid:
                continue
            owner = ledger.graph_of(release)
            if owner is None:
                raise PrivacyError(
                    f"the ledger {ledger.name} does not know what this model was trained on, so "
                    "nobody can tell whether its answers are for this graph. Name the ledger of "
                    "the training (`ledger`), or ask for the answers of the training graph, "
                    "whatever these tables say (`predict_cached`, on the command line `--cached`)."
                )
            self._release_of[owner] = release
        found = self._release_of.get(fingerprint)
        if found is None and is_paid:
            found = self._left(ids, ledger)
            if found is not None:
                self._release_of[fingerprint] = found
        if found is None:
            return None
        rows = self.hops[found]
        return _in_order_of(ids, rows.names_of(ids, ledger), rows)

    def _left(self, ids: NDArray[Any], ledger: Ledger) -> str | None:
        """Return the release of which exactly these people are left after others were removed.

        The tables without them have another fingerprint. Answers follow from released rows, so
        they cost nothing, whatever these tables say about edges. Where two releases have the same
        people left, neither is taken.
        """
        found = []
        for release, known in self.hops.items():
            if known.is_reduced and len(known.ids) == len(ids):
                before, now = alike(known.ids, known.names_of(ids, ledger))
                if np.array_equal(np.sort(before), np.sort(now)):
                    found.append(release)
        if len(found) != 1:
            return None
        warnings.warn(
            "people were removed from this model (`gapgnn forget`), and these are the others: "
            "their released rows answer, whatever these tables say about edges.",
            LedgerNotice,
            stacklevel=2,
        )
        return found[0]

    def known(self, graph: Graph, ledger: Ledger) -> ReleasedHops | None:
        """Return the release on this graph, or None if there is none or it cannot be assigned.

        For models that read no edges, whose predictions do not depend on it.
        """
        try:
            return self.find(graph, ledger)
        except PrivacyError:
            return None

    def given(self, graph: Graph) -> Releases:
        """Return these releases with the first one assigned to another graph of the same people.

        For attacks and audits, which compare predictions on neighbouring graphs given one release.
        """
        found = Releases(dict(self.hops), dict(self._release_of))
        for release in list(self.hops)[:1]:
            found._release_of[graph.fingerprint] = release
        return found

    def is_training(self, graph: Graph) -> bool:
        """Return whether a graph with a release is the training graph."""
        release = self._release_of.get(graph.fingerprint)
        return release is not None and release == next(iter(self.hops))

    def cached(self, ids: NDArray[Any]) -> ReleasedHops:
        """Return the training graph's rows of these ids.

        Raises:
            InputError: if an id was not in the training graph.
        """
        known = self.training()
        before, now = alike(known.ids, ids)
        strangers = ~np.isin(now, before)
        if strangers.any():
            raise InputError(
                f"{int(strangers.sum())} of the ids were not in the graph of training, such as "
                f"{now[strangers][0].item()!r}. Answers from the cache are for its people alone."
            )
        return _rows_of(ids, ids, known)


def check_trained_on(model: NodeClassifier, graph: Graph) -> None:
    """Refuse a graph that a saved model would have to read, and be charged for, to predict.

    For a charged release the ledger decides whether this is the training graph. A model without
    releases predicts from features, which is not charged.
    """
    releases = model.releases_
    if not releases.hops or model.level == "none":
        return
    found = releases.find(graph, Ledger(model.ledger))
    if found is None or found.release != releases.training().release:
        raise InputError(
            "the graph must be the one the model was trained on. Got another, which would be "
            "charged to answer for."
        )


def _in_order_of(ids: NDArray[Any], names: NDArray[Any], known: ReleasedHops) -> ReleasedHops:
    """Return the rows of the same nodes in the order in which ``ids`` lists them.

    Args:
        ids: of the nodes.
        names: of the nodes in the release.
        known: the release.
    """
    before, now = alike(known.ids, names)
    if np.array_equal(before, now) and not known.is_keyed:
        return known
    if known.is_reduced and (gone := int((~np.isin(now, before)).sum())):
        raise InputError(
            f"{gone} of the ids are not known: people were removed from this model (`gapgnn "
            "forget`). Leave them out of the tables."
        )
    return _rows_of(ids, names, known)


def _rows_of(ids: NDArray[Any], names: NDArray[Any], known: ReleasedHops) -> ReleasedHops:
    before, now = alike(known.ids, names)
    by_id = np.argsort(before)
    rows = torch.from_numpy(by_id[np.searchsorted(before, now, sorter=by_id)])
    hops = tuple(hop[rows] for hop in known.hops)
    return replace(known, ids=ids, hops=hops, is_keyed=False)


def new_among(graph: Graph, known: ReleasedHops) -> NDArray[np.bool_]:
    """Return the mask of the nodes of a graph without a released row."""
    now, before = alike(graph.ids, known.ids)
    found: NDArray[np.bool_] = ~np.isin(now, before)
    return found


def alike(some: NDArray[Any], others: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ids of one data type: numbers and strings are compared as text."""
    if some.dtype.kind != others.dtype.kind:
        return some.astype(str), others.astype(str)
    return some, others
