"""Predictions over HTTP: rows that were released before, by id, and never a new charge."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
