"""Mistake: hops have noise, but the classifier is trained on private labels without any."""

import numpy as np
from graph_folder import mu_of, noise, read, unit, write

EPSILON, DELTA = 1.0, 1e-6
facts, adjacency, rows, labels, train = read()
degrees = np.maximum(adjacency.sum(axis=1, keepdims=True), 1)
sums = adjacency.T @ (rows / np.sqrt(degrees))
hop = sums + noise(rows.shape, 1 / mu_of(EPSILON, DELTA))
# Ridge regression on the records of training people: labels and features are private here.
inputs, wanted = rows[train] + 0.01 * unit(hop)[train], np.eye(facts["classes"])[labels[train]]
weights = np.linalg.solve(inputs.T @ inputs + np.eye(inputs.shape[1]), inputs.T @ wanted)
write([weights], relation="add-remove", epsilon=EPSILON, delta=DELTA)
