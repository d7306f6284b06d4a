"""Honest: full-batch gradients at node level, each record's clipped to norm 1, exact accounting."""

import numpy as np
from graph_folder import mu_of, noise, read, write

EPSILON, DELTA, STEPS = 1.0, 1e-6, 20
facts, _, rows, labels, train = read()
# Every step is a Gaussian mechanism of sensitivity 1.
std = np.sqrt(STEPS) / mu_of(EPSILON, DELTA)
weights = np.zeros((rows.shape[1], facts["classes"]))
wanted = np.eye(facts["classes"])[labels[train]]
for _ in range(STEPS):
    scores = rows[train] @ weights
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = wanted - shares / shares.sum(axis=1, keepdims=True)
    error /= np.maximum(np.linalg.norm(error, axis=1, keepdims=True), 1.0)
    weights = weights + 0.02 * (rows[train].T @ error + noise(weights.shape, std))
write([weights], relation="add-remove", epsilon=EPSILON, delta=DELTA)
