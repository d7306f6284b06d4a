"""Graph neural networks on private graphs, with differential privacy.

>>> from gapgnn import LabelGAP, load_dataset
>>> graph = load_dataset("social")
>>> model = LabelGAP(level="edge", epsilon=1.0)

What is public is listed in docs/reference/api.md: the names of this package, ``gapgnn.accounting``,
``gapgnn.attacks`` and ``gapgnn.audits``. Everything else may change.
"""

import lazy_loader

__version__ = "0.3.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
