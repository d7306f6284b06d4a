"""Mistake: the second hop has no noise, as if reading edges again cost nothing."""

import numpy as np
from graph_folder import mu_of, noise, read, unit, write

EPSILON, DELTA = 1.0, 1e-6
_, adjacency, rows, _, _ = read()
first = unit(adjacency.T @ rows + noise(rows.shape, np.sqrt(2) / mu_of(EPSILON, DELTA)))
second = adjacency.T @ first
write([first, second], relation="undirected", epsilon=EPSILON, delta=DELTA)
