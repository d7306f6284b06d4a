"""How many examples a record or an edge enters, where an example is a root's sub-graph.

An example is a root with whoever reaches it along at most r arcs of adjacency lists that are cut to
D (:mod:`gapgnn.graph.rooted`). Its gradient is clipped to C as one. What one protected entity
changes of a batch (proofs page, Theorem 20):

- *Level node.* A record v changes the sub-graph of a root only if v is in it: others' lists stay as
  they are cut, and an entry that names v keeps its slot. v reaches at most D^i roots along i arcs.
  Its own example comes or goes.
- *Level edge.* Features and labels are public, and no example comes or goes. Where k arcs of one
  list differ, the cut list differs in at most 2 k: each arc that goes may let another one in. A
  root changes only if the last arc on its way that differs is followed by at most r - 1 others: at
  most D^(i - 1) roots for each such arc. An undirected edge is an arc of two lists.

Every root joins a Poisson batch by its own coin, and draws the arcs that it keeps by coins of its
own, so the number of touched examples in a batch is a sum of independent trials.
"""

from __future__ import annotations

from gapgnn.errors import PrivacyError, check_integer
from gapgnn.privacy import Links, Relation
from gapgnn.privacy.accounting import SubgraphGaussian


def reach_of(relation: Relation, *, layers: int, max_degree: int) -> tuple[int, ...]:
    """Return how many roots one protected entity reaches along 1, 2, ... r arcs at most.

    Under ``replace`` that of either record; :class:`SubgraphGaussian` counts both.

    >>> from gapgnn.privacy import AddRemove, KArcs, Undirected
    >>> reach_of(AddRemove(), layers=2, max_degree=10)
    (10, 100)
    >>> reach_of(Undirected(), layers=2, max_degree=10), reach_of(KArcs(3), layers=1, max_degree=10)
    ((4, 40), (6,))
    """
    check_integer("layers", layers, at_least=0)
    degree = check_integer("max_degree", max_degree, at_least=1)
    if relation.level == "node":
        return tuple(degree**arcs for arcs in range(1, layers + 1))
    if not isinstance(relation, Links):
        raise PrivacyError("`relation` must protect something. Got none.")
    # Arcs that may differ in lists as they are cut, all lists together.
    differing = 2 * relation.count * (1 if relation.are_arcs else 2)
    return tuple(differing * degree**arcs for arcs in range(layers))


def rooted_event(
    relation: Relation,
    *,
    layers: int,
    max_degree: int,
    keep: float,
    sampling_rate: float,
    steps: int,
    label: str,
) -> SubgraphGaussian:
    """Return what DP-SGD on sub-graphs releases, at a noise of :func:`rooted_sensitivity` clips.

    Args:
        relation: which graphs are neighbours.
        layers: r.
        max_degree: D.
        keep: probability of an arc to stay in a root's sub-graph.
        sampling_rate: probability of a root to join a batch.
        steps: number of batches.
        label: for the card.

    >>> from gapgnn.privacy import AddRemove
    >>> event = rooted_event(AddRemove(), layers=1, max_degree=3, keep=1.0, sampling_rate=0.1,
    ...                      steps=5, label="training")
    >>> event.reach, event.own, event.noise_multiplier
    ((3,), 1, 7.0)
    """
    reach = reach_of(relation, layers=layers, max_degree=max_degree)
    own = int(relation.level == "node")
    return SubgraphGaussian(
        rooted_sensitivity(reach, own),
        sampling_rate=sampling_rate,
        reach=reach,
        own=own,
        keep=keep,
        steps=steps,
        label=label,
    )


def rooted_sensitivity(reach: tuple[int, ...], own: int) -> float:
    """Return how far an entity moves the clipped sum if everybody is in the batch, in clips.

    Two for every other example that it enters, since one clipped gradient takes the place of
    another; one for its own.

    >>> rooted_sensitivity((10, 100), 1)
    221.0
    """
    return 2.0 * sum(reach) + own
