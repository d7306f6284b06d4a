"""Mistake: rows are scaled to the largest degree of the private graph, and noise to it."""

import numpy as np
from graph_folder import mu_of, noise, read, write

EPSILON, DELTA = 1.0, 1e-6
_, adjacency, rows, _, _ = read()
# A "sensitivity" that is read from the graph it should protect.
sensitivity = np.sqrt(2) * max(adjacency.sum(axis=1).max(), 1)
released = adjacency.T @ rows + noise(rows.shape, sensitivity / mu_of(EPSILON, DELTA))
write([released], relation="undirected", epsilon=EPSILON, delta=DELTA)
