"""What the private data is: a graph with features, labels and a split; what can be done to it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
