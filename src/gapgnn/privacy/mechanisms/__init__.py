"""What releases: noise, noisy hops in memory, on disk and on a device, randomised response."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
