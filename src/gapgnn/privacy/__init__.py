"""Relations, mechanisms, accounting, ledger and cards: all access to private data."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
