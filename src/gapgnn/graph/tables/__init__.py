"""A graph from people's own tables: columns, ids, edges, and what is declared about them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
