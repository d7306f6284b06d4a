"""Private multi-hop aggregation (PMA): aggregate, perturb, normalise, K times.

This is the only place that multiplies by the adjacency on a private path. One hop is ``A.T @ X``
with every row of ``X`` of norm at most 1, plus Gaussian noise of ``noise_multiplier *
sensitivity``; the sensitivity comes from the neighbouring relation (privacy page, section 1) and
each hop is one Gaussian event (section 2).

On the safe path the sum is exact. Rows are cut to a grid of 2**-20 and added in float64, where sums
of grid points have no rounding, whatever the order, the partition or the device; then noise on the
same grid is added (section 4).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError, PrivacyError, check_choice, check_integer, check_number
from gapgnn.graph.degree import bound_out_degrees
from gapgnn.graph.graph import Graph
from gapgnn.privacy.events import Gaussian
from gapgnn.privacy.noise import GRID, ROW_BLOCK, Construction, NoiseSource
from gapgnn.privacy.relations import aggregation_sensitivity
from gapgnn.rng import NoiseKey

NORM_TOLERANCE = 1e-6


def row_normalise(values: Tensor) -> Tensor:
    """Scale every row (last dimension) to L2 norm 1; a zero row stays zero.

    Tiny rows are scaled up first, so that their squares do not vanish, and norms are added in
    float64, so that the result's norm is 1 to a few units of the last place for any number of
    columns.

    >>> import torch
    >>> row_normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0], [1.0, 0.0]]
    """
    if not values.shape[-1]:
        return values
    largest = values.detach().abs().amax(dim=-1, keepdim=True)
    scaled = values / torch.where(largest > 0, largest, 1)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True, dtype=torch.float64)
    return scaled / torch.where(norm > 0, norm, 1).to(values.dtype)


def quantise_rows(rows: Tensor) -> Tensor:
    """Cut rows of norm at most 1 to the noise grid, in float64, without letting a norm exceed 1.

    Every coordinate is truncated towards zero, which makes no row longer. Rows that arrive longer
    than 1 by single-precision rounding are first shortened by ``(1 - 2**-40) / norm``; the margin
    covers the rounding of that product. That no norm exceeds 1 is then checked, not assumed: in
    units of the grid the coordinates are whole numbers and their squares add up to about 2**40, far
    below 2**53, so the sum of squares is exact and the comparison with 2**40 decides.

    >>> import torch
    >>> quantise_rows(torch.tensor([[0.6, -0.8]])).mul(2**20).tolist()
    [[629145.0, -838860.0]]
    """
    exact = rows.to(torch.float64)
    steps = torch.trunc(exact / GRID)
    too_long = steps.square().sum(dim=-1) > GRID**-2
    if bool(too_long.any()):
        norms = torch.linalg.vector_norm(exact[too_long], dim=-1, keepdim=True)
        shorter = exact[too_long] * ((1 - 2.0**-40) / norms)
        steps[too_long] = torch.trunc(shorter / GRID)
        if bool((steps.square().sum(dim=-1) > GRID**-2).any()):
            raise PrivacyError("A quantised row must have norm at most 1. Got a longer one.")
    return steps * GRID


class PrivateAggregation:
    """K noisy hops over one private graph.

    Args:
        graph: the private graph.
        level: ``none`` (no noise, no event), ``edge`` or ``node``.
        relation: the neighbouring relation, resolved (not ``auto``).
        noise_multiplier: standard deviation over sensitivity; positive unless the level is
            ``none``.
        max_degree: D at node level, where each replica cuts the out-lists with its own key; None
            elsewhere. (At edge level a cut list would take in another entry when one leaves.)
        keys: the secret of each replica. Use a key for one aggregation object only.
        construction: ``safe`` for releases, ``fast`` for experiments.
        device: where products are computed and results live.

    Relation and sensitivity: one hop changes by at most 1 (``directed``), sqrt(2) (``undirected``),
    sqrt(D) (``add-remove``) or 2 sqrt(D) (``replace``) in L2 norm. At node level that counts the
    rows of all other nodes; a person's own row is computed from the person's own place in the graph
    and is not covered (privacy page, section 1).

    >>> import numpy as np, torch
    >>> keys = [NoiseKey.fresh()]
    >>> graph = Graph.from_arcs([0, 1], [1, 2], num_nodes=3, features=np.eye(3))
    >>> aggregation = PrivateAggregation(
    ...     graph, level="edge", relation="undirected", noise_multiplier=2.0, keys=keys
    ... )
    >>> hops = aggregation.run(torch.eye(3), 2)
    >>> [tuple(hop.shape) for hop in hops], len(aggregation.events)
    ([(3, 3), (3, 3)], 2)
    """

    def __init__(
        self,
        graph: Graph,
        *,
        level: str,
        relation: str,
        noise_multiplier: float,
        max_degree: int | None = None,
        keys: Sequence[NoiseKey],
        construction: Construction = "safe",
        device: str | torch.device = "cpu",
    ) -> None:
        self.level = check_choice("level", level, ("none", "edge", "node"))
        different = len({key.secret for key in keys})
        if not keys or different != len(keys):
            raise PrivacyError(
                f"`keys` must be one different key per replica. Got {different} of {len(keys)}."
            )
        if max_degree is not None and self.level != "node":
            raise InputError(
                f"`max_degree` must be None at level {level!r}: lists are cut at level 'node'. "
                f"Got {max_degree!r}."
            )
        if self.level == "none":
            self.noise_multiplier = check_number(
                "noise_multiplier", noise_multiplier, at_least=0, at_most=0
            )
            self.sensitivity = 0.0
        else:
            self.noise_multiplier = check_number("noise_multiplier", noise_multiplier, above=0)
            self.sensitivity = aggregation_sensitivity(level, relation, max_degree=max_degree)
        self.graph = graph
        self.relation = relation
        self.max_degree = max_degree
        self.device = torch.device(device)
        self.construction = construction
        self._sources = [NoiseSource(key, construction=construction) for key in keys]
        self._lists: dict[int, tuple[NDArray[np.int64], NDArray[Any]]] = {}
        self._matrices: dict[int, Tensor] = {}
        self._released: set[int] = set()
        self._events: list[Gaussian] = []

    @property
    def std(self) -> float:
        """Standard deviation of the noise of one hop."""
        return self.noise_multiplier * self.sensitivity

    @property
    def events(self) -> tuple[Gaussian, ...]:
        """What was released so far, per replica: one Gaussian event per hop."""
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
            rows: ``(N, d)``, or ``(R, N, d)`` with one block per replica, rows of norm at most 1.
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
        if self.level != "none":
            self._events.append(Gaussian(self.noise_multiplier, label=f"aggregation hop {index}"))
        exact = self.level != "none" and self.construction == "safe"
        release = self._on_cpu if self.device.type == "cpu" else self._on_device
        out = torch.empty(batch.shape, dtype=torch.float32, device=self.device)
        for replica, block in enumerate(batch):
            block = quantise_rows(block) if exact else block.to(torch.float32)
            release(replica, block.contiguous(), index, out[replica], normalise)
        return out.reshape(rows.shape)

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
        longest = float(torch.linalg.vector_norm(batch, dim=-1, dtype=torch.float64).max())
        if not math.isfinite(longest):
            raise PrivacyError("`rows` must be finite. Got NaN or infinity.")
        if self.level != "none" and longest > 1 + NORM_TOLERANCE:
            raise PrivacyError(
                f"`rows` must have norm at most 1, which the noise is scaled to. Got a row of norm "
                f"{longest:.9g}."
            )
        return batch

    def _which_lists(self, replica: int) -> int:
        """Return whose lists a replica uses: its own cut, or the ones all replicas share."""
        return 0 if self.max_degree is None else replica

    def _in_lists(self, replica: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return who writes to each row: the out-lists, transposed where they are not symmetric."""
        which = self._which_lists(replica)
        if which not in self._lists:
            indptr, indices = self.graph.indptr, self.graph.indices
            if self.max_degree is not None:
                key = self._sources[replica].key.derive("degree")
                indptr, indices = bound_out_degrees(self.graph, self.max_degree, key)
            if self.max_degree is not None or self.graph.is_directed:
                shape = (self.graph.num_nodes,) * 2
                ones = np.ones(len(indices), dtype=np.bool_)
                columns = sp.csr_array((ones, indices, indptr), shape=shape).tocsc()
                indptr, indices = columns.indptr, columns.indices
            self._lists[which] = indptr, indices
        return self._lists[which]

    def _on_cpu(self, replica: int, rows: Tensor, index: int, out: Tensor, normalise: bool) -> None:
        """Aggregate, perturb and normalise block by block, so that no full float64 sum is held."""
        indptr, indices = self._in_lists(replica)
        source, values = self._sources[replica], rows.numpy()
        num_nodes, width = values.shape
        starts = np.arange(0, num_nodes, ROW_BLOCK)
        sizes = indptr[np.minimum(starts + ROW_BLOCK, num_nodes)] - indptr[starts]
        ones = np.ones(int(sizes.max()), dtype=values.dtype)

        def release(start: int) -> None:
            pointers = indptr[start : start + ROW_BLOCK + 1]
            first, last, count = int(pointers[0]), int(pointers[-1]), len(pointers) - 1
            parts = (ones[: last - first], indices[first:last], pointers - first)
            total = torch.from_numpy(sp.csr_array(parts, shape=(count, num_nodes)) @ values)
            if self.level != "none":
                total += source.gaussian_rows(start, count, width, self.std, "hop", index)
            out[start : start + count] = row_normalise(total) if normalise else total

        with ThreadPoolExecutor(min(torch.get_num_threads(), len(starts))) as pool:
            list(pool.map(release, starts.tolist()))

    def _on_device(
        self, replica: int, rows: Tensor, index: int, out: Tensor, normalise: bool
    ) -> None:
        """Aggregate on the accelerator in one product; noise still comes from the key."""
        which = self._which_lists(replica)
        if which not in self._matrices or self._matrices[which].dtype != rows.dtype:
            indptr, indices = self._in_lists(replica)
            index_type = torch.int32 if len(indices) < 2**31 else torch.int64
            with warnings.catch_warnings():
                # torch announces that CSR is in beta and unchecked; a Graph is checked already.
                warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant checks)")
                self._matrices[which] = torch.sparse_csr_tensor(
                    torch.from_numpy(np.array(indptr)).to(index_type),
                    torch.from_numpy(np.array(indices)).to(index_type),
                    torch.ones(len(indices), dtype=rows.dtype),
                    size=(rows.shape[0],) * 2,
                    device=self.device,
                    check_invariants=False,
                )
        total = self._matrices[which] @ rows
        if self.level != "none":
            count, width = rows.shape
            total += self._sources[replica].gaussian_rows(
                0, count, width, self.std, "hop", index, device=self.device
            )
        out.copy_(row_normalise(total) if normalise else total)
