"""Honest: two noisy hops at edge level, each with the sensitivity of an undirected edge."""

import numpy as np
from graph_folder import mu_of, noise, read, unit, write

EPSILON, DELTA, HOPS = 1.0, 1e-6, 2
_, adjacency, rows, _, _ = read()
# One edge moves two rows by 1 each; the squares of the shifts of both hops add up.
std = np.sqrt(2 * HOPS) / mu_of(EPSILON, DELTA)
released = []
for _ in range(HOPS):
    rows = unit(adjacency.T @ rows + noise(rows.shape, std))
    released.append(rows)
write(released, relation="undirected", epsilon=EPSILON, delta=DELTA)
