"""Audits: lower bounds on epsilon, exact checks, and whole commands on neighbouring files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
