"""Private multi-hop aggregation (PMA): aggregate, perturb, normalise, K times.

This is the only place that multiplies by the adjacency on a private path. One hop is the sums of an
operator (:mod:`gapgnn.privacy.operators`) over rows of norm at most 1, plus Gaussian noise of
``noise_multiplier * sensitivity``; the operator states its sensitivity under the neighbouring
relation, and each hop is one Gaussian event (privacy page, sections 1 and 2).

On the safe path the sum is exact. Rows are cut to a grid of 2**-14, or where edges have weights to
a coarser one, so that their products with weights lie on that of the noise
(:mod:`gapgnn.graph.weights`); then noise on a finer grid is added (section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError, PrivacyError, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.privacy import (
    DegreeBounded,
    Messages,
    Neighbors,
    Operator,
    OutDegreeNormalized,
    Relation,
    Release,
    Symmetrized,
    UnionOfTypes,
    Unprotected,
    active_observer,
    observe,
    parse_relation,
)
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.mechanisms.backends import BlockRelease, backend_of, in_lists
from gapgnn.privacy.mechanisms.device import longest_row
from gapgnn.privacy.mechanisms.noise import GRID, NoiseSource, SafeOrFast
from gapgnn.privacy.mechanisms.sums import (
    WEIGHTED_GRID,
    check_contributions,
    divide_rows,
    quantise_rows,
    whole_rows,
)
from gapgnn.rng import NoiseKey

NORM_TOLERANCE = 1e-6


class PrivateAggregation:
    """K noisy hops over one private graph.

    Relation and sensitivity: one hop changes by at most ``operator.sensitivity(relation)`` in L2
    norm, which the operator proves, and that many standard deviations of its noise is what its
    event counts (privacy page, sections 1 and 2).

    Args:
        operator: what a hop adds up, for all repeats or one for each. Where lists are cut, each
            repeat cuts them with a key of its own.
        relation: which graphs are neighbours; ``Unprotected()`` for no noise and no event.
        noise_multiplier: standard deviation over sensitivity; positive unless nothing is protected.
        keys: the secret of each repeat. Use a key for one aggregation object only.
        noise: ``safe`` for releases, ``fast`` for experiments.
        device: where products are computed and results live.
        name: of these edges among several edge types, for whoever observes releases.

    >>> import numpy as np, torch
    >>> from gapgnn.privacy.relations import Undirected
    >>> graph = Graph.from_arcs([0, 1], [1, 2], num_nodes=3, features=np.eye(3))
    >>> aggregation = PrivateAggregation(
    ...     Neighbors(graph), Undirected(), noise_multiplier=2.0, keys=[NoiseKey.fresh()]
    ... )
    >>> hops = aggregation.run(torch.eye(3), 2)
    >>> [tuple(hop.shape) for hop in hops], len(aggregation.events)
    ([(3, 3), (3, 3)], 2)
    """

    def __init__(
        self,
        operator: Operator | Sequence[Operator],
        relation: Relation,
        *,
        noise_multiplier: float,
        keys: Sequence[NoiseKey],
        noise: SafeOrFast = "safe",
        device: str | torch.device = "cpu",
        name: str | None = None,
    ) -> None:
        secrets = {key.secret for key in keys}
        if not keys or len(secrets) != len(keys):
            raise PrivacyError(
                f"`keys` must be one different key per repeat. Got {len(secrets)} of {len(keys)}."
            )
        of_repeats = operator if isinstance(operator, Sequence) else [operator] * len(keys)
        self.graph = of_repeats[0].graph
        if len(of_repeats) != len(keys) or any(one.graph is not self.graph for one in of_repeats):
            raise PrivacyError(
                f"`operator` must be one, or one of the same graph per repeat. Got "
                f"{len(of_repeats)} for {len(keys)}."
            )
        self._messages = [one.messages for one in of_repeats]
        cut_by = {one.key.secret for sent in self._messages for one in sent.arcs if one.key}
        if secrets & cut_by:
            raise PrivacyError("`keys` must differ from the key that lists are cut by. Got it.")
        self.relation = relation
        self.is_private = not isinstance(relation, Unprotected)
        if self.is_private:
            self.noise_multiplier = check_number("noise_multiplier", noise_multiplier, above=0)
            self.sensitivity = max(one.sensitivity(relation) for one in of_repeats)
        else:
            self.noise_multiplier = check_number(
                "noise_multiplier", noise_multiplier, at_least=0, at_most=0
            )
            self.sensitivity = 0.0
        self.name = name
        self.device = torch.device(device)
        self.noise = noise
        self._sources = [NoiseSource(key, noise=noise) for key in keys]
        self._released: set[int] = set()
        self._events: list[Gaussian] = []

    @property
    def std(self) -> float:
        """Standard deviation of the noise of one hop."""
        return self.noise_multiplier * self.sensitivity

    @property
    def events(self) -> tuple[Gaussian, ...]:
        """What was released so far, per repeat: one Gaussian event per hop."""
        return tuple(self._events)

    def run(
        self, rows: Tensor, hops: int, progress: Callable[[int, int], None] | None = None
    ) -> list[Tensor]:
        """Release hops 1 to ``hops``, each computed from the one before; hop 0 is ``rows``.

        ``progress`` is called with the number of finished hops and their total.
        """
        results: list[Tensor] = []
        for index in range(1, check_integer("hops", hops, at_least=1) + 1):
            rows = self.hop(rows, index)
            results.append(rows)
            if progress is not None:
                progress(index, hops)
        return results

    def hop(self, rows: Tensor, index: int, *, normalise: bool = True) -> Tensor:
        """Release one hop: unit rows in, noisy rows out, in float32.

        Args:
            rows: ``(N, d)``, or ``(R, N, d)`` with one block per repeat, rows of norm at most 1.
                A row that is not finite is refused; at node level it counts as zeros.
            index: the number of this hop, which names its noise. An index is used once: two
                releases with the same noise would reveal the difference of what is beneath.
            normalise: scale the noisy rows to norm 1, as the paper does. Not scaling them releases
                nothing more: the noisy sum is what was paid for, and scaling is post-processing.
        """
        batch = self._checked_batch(rows)
        check_integer("index", index, at_least=1)
        if index in self._released:
            raise PrivacyError(
                f"`index` must be new for every hop: its noise is drawn once. Got {index} again."
            )
        # Recorded before anything is computed: a failure below leaves a charge, not a free release.
        self._released.add(index)
        if self.is_private:
            self._events.append(Gaussian(self.noise_multiplier, label=f"aggregation hop {index}"))
        out = torch.empty(batch.shape, dtype=torch.float32, device=self.device)
        for repeat, (block, messages) in enumerate(zip(batch, self._messages, strict=True)):
            backend = backend_of(messages, self.device)
            sent = self._sent(block, messages, backend.takes_whole_numbers)
            source = self._sources[repeat] if self.is_private else None
            hop = BlockRelease(source, self.std, index, normalise, messages.to_self, self._is_exact)
            backend.release(hop, sent, out[repeat])
            if self.is_private:
                describe = partial(self._describe, repeat, sent, index, len(batch))
                released = observe(describe, out[repeat])
                if active_observer() is not None:
                    out[repeat] = released
        return out.reshape(rows.shape)

    @property
    def _is_exact(self) -> bool:
        """Whether rows are cut to a grid and sums have no rounding."""
        return self.is_private and self.noise == "safe"

    def _sent(
        self, rows: Tensor, messages: Messages, takes_whole_numbers: Callable[[int], bool]
    ) -> Tensor:
        """Return rows as they are added up: divided where they are, and cut to the grid."""
        copies = None
        if messages.copies is not None:
            copies = torch.from_numpy(messages.copies).to(self.device)
            rows = divide_rows(rows, copies)
        if self._is_exact and rows.numel() and takes_whole_numbers(rows.shape[1]):
            return whole_rows(rows)
        rows = (self._quantised(rows, messages) if self._is_exact else rows.float()).contiguous()
        if copies is not None:
            check_contributions(rows, copies)
        return rows

    def _quantised(self, rows: Tensor, messages: Messages) -> Tensor:
        """Cut rows to the grid on which sums are exact: of the rows, or of their products."""
        if messages.is_weighted:
            return quantise_rows(rows, grid=WEIGHTED_GRID)
        # As a CPU adds them up; a check of normalised rows and a device's product take float64.
        is_single = self.device.type == "cpu" and messages.copies is None
        return quantise_rows(rows, dtype=torch.float32 if is_single else torch.float64)

    def _describe(self, repeat: int, sent: Tensor, index: int, repeats: int) -> Release:
        """Return what an observer sees of one hop: the sums without noise, NOT private."""
        messages = self._messages[repeat]
        sums = torch.empty(sent.shape, dtype=torch.float64)
        if self.noise == "safe":
            sent = sent.double() if sent.is_floating_point() else sent.double().mul_(GRID)
        blind = BlockRelease(None, 0.0, index, False, messages.to_self, self._is_exact)
        backend_of(messages, torch.device("cpu")).release(blind, sent.cpu(), sums)
        along = "" if self.name is None else f" along {self.name}"
        return Release(
            f"hop {index}{along}" + (f" of repeat {repeat + 1}" if repeats > 1 else ""),
            sums.numpy(),
            self.std,
            self.sensitivity,
            rows_of_people=True,
            covers_own_row=messages.copies is not None,
        )

    def _checked_batch(self, rows: Tensor) -> Tensor:
        """Return rows as ``(R, N, d)`` on the device, or refuse them."""
        batch = rows.detach().to(self.device)
        if batch.dim() == 2:
            batch = batch.unsqueeze(0)
        wanted = (len(self._sources), self.graph.num_nodes)
        if batch.dim() != 3 or tuple(batch.shape[:2]) != wanted or not batch.is_floating_point():
            raise InputError(
                f"`rows` must be floating-point of shape ({wanted[0]}, {wanted[1]}, columns). "
                f"Got {tuple(rows.shape)} of {rows.dtype}."
            )
        if not batch.numel():
            return batch
        longest = longest_row(batch)
        if not math.isfinite(longest) and self.relation.level == "node":
            # One record must not be able to stop the run (privacy page, section 2).
            batch = torch.where(torch.isfinite(batch).all(dim=-1, keepdim=True), batch, 0.0)
            longest = longest_row(batch)
        if not math.isfinite(longest):
            raise PrivacyError("`rows` must be finite. Got NaN or infinity.")
        if self.is_private and longest > 1 + NORM_TOLERANCE:
            raise PrivacyError(
                f"`rows` must have norm at most 1, which the noise is scaled to. Got a row of norm "
                f"{longest:.9g}."
            )
        return batch

    def in_lists(self, repeat: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return who writes to each row in one repeat's hops, in CSR form: private, not released.

        At node level adjacency lists are cut to D entries first, each as a function of that list
        and the repeat's secret alone (privacy page, section 1).
        """
        (arcs,) = self._messages[repeat].arcs
        return in_lists(arcs)[:2]


def hop_mechanisms(
    graph: Graph,
    *,
    level: str,
    relation: Relation | str,
    keys: Sequence[NoiseKey],
    max_degree: int | None = None,
    normalised: bool = False,
    to_self: bool = False,
    symmetrised: bool = False,
    with_total: bool = False,
    **noise: Any,
) -> list[PrivateAggregation]:
    """Return the noisy hops of every edge type of a graph, each with keys of its own.

    Relation and sensitivity of each are those of its operator. What they cost together depends on
    who the neighbours are (privacy page, sections 1 and 2): one edge of one type moves the hops of
    that type only, so a hop of all types is one Gaussian event, and with their union two; one edge
    of each type, or a record with its lists of all types, moves them all, and each is an event.

    Args:
        graph: with one edge type or several.
        level: what is protected.
        relation: which graphs are neighbours, or its name.
        keys: the secret of each repeat, from which every type derives its own, and so does the
            union: noise that two of them shared would cancel in their difference.
        max_degree: cut adjacency lists to so many entries, each repeat with a key of its own
            (:class:`~gapgnn.privacy.operators.DegreeBounded`).
        normalised: divide messages by the root of the out-degree
            (:class:`~gapgnn.privacy.operators.OutDegreeNormalized`).
        to_self: and every node also sends to itself.
        symmetrised: messages travel along arcs and against them
            (:class:`~gapgnn.privacy.operators.Symmetrized`).
        with_total: append the union of all types, where there are several
            (:class:`~gapgnn.privacy.operators.UnionOfTypes`).
        noise: ``noise_multiplier``, ``noise`` and ``device`` of the hops.
    """
    neighbours = parse_relation(relation, level)
    if max_degree is not None and (level != "node" or normalised):
        raise InputError(
            "`max_degree` must be None where lists are not cut: it is for level node without "
            f"degree-normalised messages. Got {max_degree!r} at level {level!r}."
        )
    if to_self and not normalised:
        raise PrivacyError("`to_self` must be False unless messages are normalised. Got True.")
    if symmetrised and (level == "node" or normalised):
        raise PrivacyError("`symmetrised` must be False at level node. Got True.")

    def operators(one: Graph, keys: Sequence[NoiseKey]) -> list[Operator]:
        if max_degree is not None:
            return [DegreeBounded(one, max_degree, key.derive("degree")) for key in keys]
        if normalised:
            return [OutDegreeNormalized(one, to_self)] * len(keys)
        return [Symmetrized(one) if symmetrised else Neighbors(one)] * len(keys)

    if not graph.more_edge_types:
        return [PrivateAggregation(operators(graph, keys), neighbours, keys=keys, **noise)]
    found, types = [], []
    for one in graph.edge_types:
        own = [key.derive("kind", one.edge_type) for key in keys]
        along = operators(one, own)
        found.append(PrivateAggregation(along, neighbours, keys=own, name=one.edge_type, **noise))
        types.append(along[0])
    if with_total:
        own = [key.derive("total of all kinds") for key in keys]
        union = UnionOfTypes(types, beside_types=True)
        found.append(
            PrivateAggregation(union, neighbours, keys=own, name="all edge types", **noise)
        )
    return found
