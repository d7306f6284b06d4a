"""Graph neural networks on private graphs, with differential privacy."""

__version__ = "0.1.0"
