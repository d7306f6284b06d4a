"""An operator of one's own: a sum along edges, the proof of its sensitivity, and its test.

``Leaning`` adds up what arrives along arcs, and a part of what arrives against them. Its proof
stands in its docstring. A property test draws neighbouring graphs and compares the exact distance
of their sums with the bound. The release goes through a session: declared, charged, observed.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gapgnn import Graph, Plan, PrivateSession, load_dataset
from gapgnn.accounting import Gaussian
from gapgnn.privacy import Directed, Release, Undirected, observe
from gapgnn.privacy.mechanisms import NoiseSource


@dataclass(frozen=True)
class Leaning:
    """The sums ``A^T X + c A X`` of rows of norm at most 1, with 0 <= c <= 1 and no self-loops.

    **Theorem.** The sensitivity is sqrt(1 + c^2) for one arc and sqrt(2) (1 + c) for one edge.

    *Proof.* An arc u->v adds ``x_u`` to row v and ``c x_v`` to row u, which are two rows: 1 + c^2
    in squares. An edge is u->v and v->u. They add ``(1 + c) x_u`` to row v and ``(1 + c) x_v`` to
    row u: 2 (1 + c)^2 in squares. QED.
    """

    graph: Graph
    c: float = 0.5

    def sums(self, rows: Tensor) -> Tensor:
        """Return the exact sums, NOT private: multiples of 2^-15, which the noise grid holds."""
        cut = (rows.double() * 2**14).trunc().numpy() / 2**14  # towards zero: no row gets longer
        arcs = self.graph.adjacency()
        return torch.from_numpy(arcs.T @ cut + self.c * (arcs @ cut))

    def sensitivity(self, relation: object) -> float:
        """Return the bound of the theorem."""
        both = np.sqrt(2) * (1 + self.c)
        return {Directed: np.sqrt(1 + self.c**2), Undirected: both}[type(relation)]


# The property test: random neighbours are never further apart than the bound, and some as far.
rng, furthest = np.random.default_rng(0), 0.0
for _ in range(300):
    edges = rng.integers(6, size=(2, 8))
    rows = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(6, 3))))
    for directed, relation in ((True, Directed()), (False, Undirected())):
        build = {"num_nodes": 6, "features": np.eye(6), "directed": directed}
        more, less = (Graph.from_arcs(*edges[:, :count], **build) for count in (8, 7))
        distance = float((Leaning(more).sums(rows) - Leaning(less).sums(rows)).norm())
        assert distance <= Leaning(more).sensitivity(relation)
        furthest = max(furthest, distance / Leaning(more).sensitivity(relation))
assert furthest > 0.99, "the bound is attained"

graph = load_dataset("social")
operator, rows = Leaning(graph), torch.eye(6)[torch.tensor(graph.labels)]
plan = Plan.declare(graph, epsilon=1.0, events=[Gaussian(1.0, label="leaning")], method="Leaning")
with PrivateSession(plan, graph) as session:  # charges
    sensitivity = operator.sensitivity(plan.relation)
    std = plan.multiplier_of("leaning") * sensitivity
    noise = NoiseSource(session.options.keys[0], noise=session.options.noise)

    def release() -> dict[str, Tensor]:
        """Return the sums with noise, and let audits see what was released."""
        exact = operator.sums(rows)
        noisy = noise.add_gaussian(exact, std, "leaning")
        return {"sums": observe(lambda: Release("leaning", exact.numpy(), std, sensitivity), noisy)}

    released = session.draw("leaning", release, events=["leaning"])["sums"]
print(released.shape, f"noise {std:.2f}", session.card(), sep="\n")
