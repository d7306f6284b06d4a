"""The estimators: fit, predict, score, save, load."""
