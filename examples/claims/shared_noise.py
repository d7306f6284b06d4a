"""Mistake: noise is drawn once and added to both hops, so that it cancels in their difference."""

import numpy as np
from graph_folder import mu_of, noise, read, unit, write

EPSILON, DELTA = 1.0, 1e-6
_, adjacency, rows, _, _ = read()
drawn = noise(rows.shape, np.sqrt(4) / mu_of(EPSILON, DELTA))
first = adjacency.T @ rows + drawn
second = adjacency.T @ unit(first) + drawn
write([first, second], relation="undirected", epsilon=EPSILON, delta=DELTA)
