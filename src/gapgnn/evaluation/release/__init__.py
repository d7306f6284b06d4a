"""Folders for outsiders: what was released, the evidence for it, and its verification."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
