"""What a user may ask of each method: one dataclass per method, each field with its help text.

A configuration is the constructor of the method's estimator, the options of its command and the
keys of a configuration file. These modules import neither torch nor NumPy, so that a misspelt
option or a page of help does not wait for them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
