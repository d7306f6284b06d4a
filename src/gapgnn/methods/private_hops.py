"""Private hops: noisy sums over neighbours as a product of their own, for any model on top."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor
from typing_extensions import Self

from gapgnn.errors import InputError, PrivacyError, check_all, check_choice, check_integer
from gapgnn.graph import Graph, as_graph, from_scipy
from gapgnn.methods.checks import check_budget, check_sizes, choose_device
from gapgnn.methods.configs import PrivateHopsConfig
from gapgnn.methods.edgefacts import EdgeFacts
from gapgnn.methods.releases import ReleasedHops, Releases
from gapgnn.methods.unused import Unused, described, refuse_unused
from gapgnn.privacy import (
    LEVELS,
    Checkpoint,
    Declared,
    Guarantee,
    NoCheckpoint,
    Plan,
    PrivateSession,
    SessionOptions,
    resolve_edge_types,
    resolve_relation,
)
from gapgnn.privacy.card import ChargedRelease, PrivacyCard, ReleaseFacts
from gapgnn.privacy.ledger import Ledger, People
from gapgnn.privacy.mechanisms import row_normalise
from gapgnn.rng import NoiseKey
from gapgnn.training import FeatureInputs

METHOD, HOPS = "private-hops", "aggregation"
# Steps by which a row depends on other rows. Their names end a backward graph of autograd.
_SUMS_ROWS = ("Scatter", "IndexAdd", "IndexReduce", "SegmentReduce", "Sparse")
_MIXES_ROWS = {"edge": _SUMS_ROWS, "node": (*_SUMS_ROWS, "BatchNorm")}


class PrivateHops(  # type: ignore[call-arg]
    PrivateHopsConfig,
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
    auto_wrap_output_keys=None,
):
    """Noisy sums over the neighbours of every node, K times in a row, to build any model on.

    Hop 0 is what nodes send: rows scaled to norm at most 1. Hop k adds up the rows of hop k - 1
    over the in-neighbours of every node, adds Gaussian noise and scales the sums to norm 1. ``fit``
    charges all K hops once, before an edge is read, and releases them. What is computed from the
    released rows is free, and so are the released rows of the same graph asked for again. Another
    graph is charged when it is transformed, and the price is printed before.

    What the promise rests on, and no library can check:

    - **Level edge.** Features and labels are public; edges are not. Rows must not be computed from
      edges: no degrees, random walks or outputs of a graph network, other than from released rows.
      What is trained on the hops is post-processing and may be handed out.
    - **Level node.** Each row must be a function of that person's own record and of released
      values. Standardising by means of the table, and any network that was trained on these people
      without noise, break that. Hop 0 is neither returned nor saved. Adjacency lists are cut to
      ``max_degree``. What is trained on the hops *and on private labels or features* reads records
      again: train it by ``gapgnn.dp_sgd``, or on labels that are public.

    The card states both. Rows that autograd knows to mix nodes, as batch norm and graph
    convolutions do, are refused. A release has no gradient: where ``x`` has one, a backward pass
    through a hop is refused.

    Its parameters are those of :class:`~gapgnn.methods.configs.private_hops.PrivateHopsConfig`. It
    keeps the contract of a scikit-learn transformer (``get_params``, ``clone``, pipelines).

    >>> from gapgnn import load_dataset
    >>> hops = PrivateHops(level="edge", epsilon=1.0, hops=2)
    >>> z = hops.fit_transform(load_dataset("social"))
    >>> [tuple(hop.shape) for hop in z], hops.card_.epsilon <= 1.0
    ([(10000, 349), (10000, 349), (10000, 349)], True)
    """

    method: ClassVar[str] = METHOD

    plan_: Plan[Declared]
    card_: PrivacyCard
    releases_: Releases
    edges_: EdgeFacts
    n_features_in_: int
    # What was sent at node level, by release; in this process alone.
    _sent: dict[str, Tensor]

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # the parameter is scikit-learn's
        """Level and epsilon, and every other parameter that differs from its default."""
        return described(self, N_CHAR_MAX)

    # Fitting ------------------------------------------------------------------------------------

    def fit(
        self,
        graph: Any,
        x: Any = None,
        *,
        checkpoint: Checkpoint | None = None,
        announce: Callable[[str], None] | None = None,
        curator_only: str | None = None,
    ) -> Self:
        """Charge and release the hops of a graph, and return the transformer itself.

        Args:
            graph: a PyG ``Data``, a ``Graph``, a NetworkX graph, what ``read_tables`` returned, or
                a SciPy sparse adjacency (row = source) together with ``x``.
            x: the rows that nodes send, ``(nodes, columns)``: a tensor, an array or a sparse
                matrix. They are scaled to norm 1. Left out: the features of the graph.
            checkpoint: keeps finished hops, for a run that can be killed and resumed.
            announce: called with the price before it is charged; left out: it is printed to stderr.
            curator_only: at level none, why people with a budget are read without spending it.
        """
        self._fit(graph, x, checkpoint, announce, curator_only)
        return self

    def fit_transform(self, graph: Any, x: Any = None, **options: Any) -> list[Tensor]:
        """Charge and release the hops of a graph, and return them.

        Hop 0 comes first, except at node level, where it is not released. It keeps the gradient of
        ``x``; through any other hop a backward pass is refused.

        Args:
            graph: as for :meth:`fit`.
            x: likewise.
            options: likewise.
        """
        return self._fit(graph, x, **{**_NO_OPTIONS, **options})

    def _fit(
        self,
        data: Any,
        x: Any,
        checkpoint: Checkpoint | None,
        announce: Callable[[str], None] | None,
        curator_only: str | None,
    ) -> list[Tensor]:
        graph, rows = self._read(data, x)
        plan = self.plan_for(graph)
        session = PrivateSession(
            plan,
            graph,
            self._options("fit", curator_only),
            checkpoint=NoCheckpoint() if checkpoint is None else checkpoint,
            about={"params": self.saved_parameters()},
            announce=_print_price if announce is None else announce,
        )
        with session:
            # Unfitted until the end: an interrupted fit must not keep an earlier fit's card.
            self.__dict__.pop("card_", None)
            self.plan_, self.releases_, self._sent = plan, Releases(), {}
            self.edges_, self.n_features_in_ = EdgeFacts.of(graph), rows.shape[1]
            found = self._released(session, graph, rows)
        self.card_ = session.card(self._card_facts(session, "features" if x is None else "given"))
        return found

    def plan_for(self, graph: Any) -> Plan[Declared]:
        """Return what one fit on a graph would release and cost; nothing is charged or released.

        Args:
            graph: whatever :meth:`fit` takes.
        """
        self.check()
        if sp.issparse(graph):
            graph = _from_sparse(graph, np.zeros((graph.shape[0], 1), np.float32), "refuse")
        graph = as_graph(graph, not_finite=self._not_finite)
        if len(graph.edge_types) == 1:
            only = resolve_edge_types(self.level)
            refuse_unused(self, [Unused(("edge_types",), "with one edge type", (only,))])
        return Plan.declare(
            graph,
            level=self.level,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            hops={HOPS: self.hops},
            max_degree=self.max_degree,
            edge_types=self.edge_types,
            method=METHOD,
        )

    def check(self) -> None:
        """Raise if parameters cannot work, about all of them at once, before any data is read."""
        check_choice("level", self.level, LEVELS)
        check_all(
            lambda: check_integer("hops", self.hops, at_least=1),
            lambda: check_sizes(self),
            lambda: check_integer("max_degree", self.max_degree, at_least=1),
            lambda: check_choice("noise", self.noise, ("safe", "fast")),
            lambda: check_budget(self),
            lambda: choose_device(self.device),
            lambda: resolve_edge_types(self.level, self.edge_types),
            lambda: refuse_unused(self, self.unused()),
        )

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters without an effect, given the others."""
        if self.level != "node":
            reason = f"at level {self.level}: adjacency lists are cut at level node only"
            yield Unused(("max_degree",), reason)
        if self.level == "none":
            why = "at level none: nothing is protected, so no noise is drawn and nothing is charged"
            yield Unused(("epsilon",), why, (float("inf"),))
            yield Unused(("delta", "noise", "insecure_noise_seed", "reason"), why)
            yield Unused(("edge_types",), "at level none: nothing is protected", ("any",))

    def saved_parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON can hold them, without those of this machine."""
        machine = ("ledger", "device", "reason")
        params = {name: value for name, value in self.get_params().items() if name not in machine}
        return {**params, "epsilon": str(self.epsilon)}

    # Answers ------------------------------------------------------------------------------------

    def transform(
        self,
        graph: Any = None,
        x: Any = None,
        *,
        announce: Callable[[str], None] | None = None,
    ) -> list[Tensor]:
        """Return the released hops of a graph; one without a release is charged for its own.

        Args:
            graph: left out, or the graph of :meth:`fit`: its released hops, free of charge.
                Another graph is charged the price that :meth:`guarantee` states, and so is every
                earlier one that it shares people with.
            x: the rows that nodes send, as for :meth:`fit`. Released hops answer only for the rows
                that were sent.
            announce: called with the price before it is charged; left out: it is printed to stderr.
        """
        self.check_fitted()
        if graph is None:
            return list(self.releases_.training().hops)
        graph, rows = self._read(graph, x)
        known = self._known(graph)
        if known is not None:
            self._check_sent(known, rows, is_given=x is not None)
            return list(known.hops)
        plan = self._further_plan(graph)
        if rows.shape[1] != self.n_features_in_:
            raise InputError(
                f"`x` must have the {self.n_features_in_} columns of the first graph. Got "
                f"{rows.shape[1]}."
            )
        if plan.promise.events:
            # Refuse before the charge what cannot be listed on the card.
            self.card_.with_release(ChargedRelease.of(plan.promise, None, "transform"))
        session = PrivateSession(
            plan,
            graph,
            self._options(People.of(graph).fingerprint),
            purpose="predict",
            announce=_print_price if announce is None else announce,
        )
        with session:
            if session.charge is not None:
                # Before any noise is drawn, so that the card lists every release.
                self.card_ = self.card_.with_release(session.charged_release("transform"))
            return self._released(session, graph, rows)

    def guarantee(self, graph: Any, x: Any = None) -> Guarantee | None:
        """Return what transforming a graph would promise and cost; None if it is free.

        Args:
            graph: as for :meth:`transform`.
            x: likewise.
        """
        self.check_fitted()
        read, _ = self._read(graph, x)
        is_free = self.level == "none" or self._known(read) is not None
        return None if is_free else self._further_plan(read).promise

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return one name for each column of the released hops side by side.

        Args:
            input_features: for scikit-learn's sake; names follow from the number of hop and column.
        """
        self.check_fitted()
        names = [
            f"hop{number}_{column}"
            for number, hop in self.releases_.training().numbered()
            for column in range(hop.shape[1])
        ]
        return np.array(names, dtype=object)

    def check_fitted(self) -> None:
        """Raise unless hops were released, at the level that the transformer has now."""
        if not hasattr(self, "card_"):
            raise NotFittedError("This PrivateHops is not fitted yet. Call `fit` or `load` first.")
        if self.level != self.card_.level:
            raise PrivacyError(
                f"`level` must be {self.card_.level}, at which the hops were released. Got "
                f"{self.level!r}. Fit again at the new level."
            )

    def _known(self, graph: Graph) -> ReleasedHops | None:
        return self.releases_.find(graph, Ledger(self.ledger), is_paid=self.level != "none")

    def _further_plan(self, graph: Graph) -> Plan[Declared]:
        """Return the release of another graph, with the noise of the first one."""
        self.edges_.check(graph)
        promise = Guarantee.of_events(
            graph,
            self.plan_.promise.events,
            relation=resolve_relation(self.level, self.relation, is_directed=graph.is_directed),
            delta=self.delta,
            noise_multiplier=self.plan_.promise.noise_multiplier,
        )
        return self.plan_.for_prediction(promise)

    def _check_sent(self, known: ReleasedHops, rows: Tensor, *, is_given: bool) -> None:
        """Refuse other rows than those that were sent, as far as they are known here."""
        if not is_given:
            return
        sent = known.hops[0] if known.has_hop_zero else self._sent.get(known.release)
        if sent is not None and not torch.equal(sent.cpu(), rows.detach().cpu()):
            raise InputError(
                "`x` must be the rows that were sent on this graph, or left out. Got others: "
                "`fit` releases and charges them."
            )

    # Releasing ----------------------------------------------------------------------------------

    @property
    def _not_finite(self) -> Literal["zero", "refuse"]:
        return "zero" if self.level == "node" else "refuse"

    def _read(self, data: Any, x: Any) -> tuple[Graph, Tensor]:
        """Return the graph, and what its nodes send: rows of norm at most 1."""
        self.check()
        given = None if x is None else _as_rows(x)
        plain = None if given is None else given.detach().cpu().numpy()
        if sp.issparse(data):
            if plain is None:
                raise InputError("`x` must come with a sparse adjacency. Got none.")
            graph = _from_sparse(data, plain, self._not_finite)
        else:
            graph = as_graph(_with_rows(data, plain), not_finite=self._not_finite)
        device = choose_device(self.device)
        rows = FeatureInputs(graph, device).dense() if given is None else given.to(device)
        if rows.shape[0] != graph.num_nodes or not rows.shape[1]:
            raise InputError(
                f"`x` must have a row for each of the {graph.num_nodes} nodes, and a column. Got "
                f"shape {tuple(rows.shape)}."
            )
        is_finite = torch.isfinite(rows).all(dim=1, keepdim=True)
        if self.level == "node":
            # One record must not be able to stop the run (privacy page, section 2).
            rows = torch.where(is_finite, rows, 0.0)
        elif not bool(is_finite.all()):
            raise InputError("`x` must be finite. Got NaN or infinity.")
        if self.level != "none":
            _check_apart(rows, self.level)
        return graph, row_normalise(rows)

    def _options(self, path: str, curator_only: str | None = None) -> SessionOptions:
        options = SessionOptions(
            noise=self.noise,
            is_seeded=self.insecure_noise_seed is not None,
            device=choose_device(self.device),
            ledger=self.ledger,
            reason=self.reason,
            curator_only=curator_only,
        )
        if self.insecure_noise_seed is None:
            return options
        seeded = NoiseKey.insecure(self.insecure_noise_seed).derive("hops", path)
        return replace(options, keys=[seeded])

    def _released(self, session: PrivateSession, graph: Graph, rows: Tensor) -> list[Tensor]:
        """Release the hops and keep them; each edge type has its own chain."""
        hops = [] if self.level == "node" else [rows]
        sent: Tensor | Sequence[Tensor] = rows
        for _ in range(self.hops):
            sent = session.release(HOPS, sent, normalise=True)
            hops.append(torch.cat(sent, dim=-1))
        kept = tuple(hop.detach().clone() for hop in hops)
        has_hop_zero = self.level != "node"
        known = self.releases_.add(graph, session.charge, kept, has_hop_zero=has_hop_zero)
        if not has_hop_zero:
            self._sent[known.release] = rows.detach().clone()
        return hops

    def _card_facts(self, session: PrivateSession, rows: str) -> ReleaseFacts:
        facts = session.facts()
        return replace(
            facts,
            method="PrivateHops",
            messages="features" if rows == "features" else facts.messages,
            steps=["rows sent", "again"],
            product="rows",
        )

    # Folders ------------------------------------------------------------------------------------

    @property
    def num_types_(self) -> int:
        """Number of edge types."""
        return len(self.edges_.edge_types) or 1

    def save(
        self, folder: str | Path, *, format: Literal["safetensors", "parquet"] = "safetensors"
    ) -> None:
        """Write the released rows and their card to a new folder, which :meth:`load` reads.

        Args:
            folder: new or empty.
            format: ``parquet`` adds a table with an id and all columns for each release.
        """
        from gapgnn.methods.persistence import save_hops

        self.check_fitted()
        check_choice("format", format, ("safetensors", "parquet"))
        save_hops(self, Path(folder), is_table=format == "parquet")

    def save_releases(self, folder: str | Path) -> None:
        """Add what was released since saving to the folder, and the card that lists it."""
        from gapgnn.methods.persistence import save_releases

        save_releases(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, **overrides: Any) -> Self:
        """Read what :meth:`save` wrote; the released hops answer for their graphs as before.

        Args:
            folder: of released rows.
            overrides: ``device`` or ``ledger`` of this machine.
        """
        from gapgnn.methods.persistence import load_hops

        return load_hops(cls, Path(folder), overrides)


_NO_OPTIONS: Mapping[str, Any] = {"checkpoint": None, "announce": None, "curator_only": None}


def _print_price(text: str) -> None:
    print(f"Price: {text}", file=sys.stderr)


def _as_rows(x: Any) -> Tensor:
    """Return rows as a tensor of floating-point numbers that keeps its gradient."""
    if sp.issparse(x):
        x = x.toarray()
    try:
        rows = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float32))
    except (TypeError, ValueError):
        raise InputError(f"`x` must be numbers. Got {type(x).__name__}.") from None
    if rows.layout is not torch.strided:
        rows = rows.to_dense()
    if rows.dim() != 2 or rows.is_complex():
        raise InputError(
            f"`x` must be real, of shape (nodes, columns). Got {tuple(rows.shape)} of {rows.dtype}."
        )
    return rows.float()


def _from_sparse(
    adjacency: Any, features: NDArray[np.float32], not_finite: Literal["zero", "refuse"]
) -> Graph:
    return from_scipy(adjacency, features, not_finite=not_finite)


def _with_rows(data: Any, rows: NDArray[np.float32] | None) -> Any:
    """Return data that has no features of its own with the given rows in their place."""
    if rows is None or isinstance(data, Graph):
        return data
    if hasattr(data, "edge_index") and getattr(data, "x", None) is None:
        found = copy.copy(data)
        found.x = torch.from_numpy(rows)
        return found
    if hasattr(data, "edge_types") and len(data.node_types) == 1:
        found = copy.copy(data)
        nodes = found[data.node_types[0]]
        if nodes.get("x") is None:
            nodes.x = torch.from_numpy(rows)
        return found
    if hasattr(data, "adjacency") and hasattr(data, "nodes") and len(data) == len(rows):
        nodes = list(data)
        if all("x" not in data.nodes[node] for node in nodes):
            found = data.copy()
            for node, row in zip(nodes, rows, strict=True):
                found.nodes[node]["x"] = row
            return found
    return data


def _check_apart(rows: Tensor, level: str) -> None:
    """Refuse rows of which autograd knows that each was computed from several nodes.

    Only the names of the steps are read, no value.
    """
    waiting, seen = [rows.grad_fn], set()
    while waiting:
        step = waiting.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        name = step.name()
        if any(part in name for part in _MIXES_ROWS[level]):
            wanted = "each from one person's own record" if level == "node" else "without edges"
            raise PrivacyError(
                f"`x` must be computed {wanted}. Got rows in which `{name}` mixes nodes. Send rows "
                "of a network without batch norm and graph convolutions; detach them only if they "
                "follow from released or public values alone."
            )
        waiting += [one for one, _ in step.next_functions]
