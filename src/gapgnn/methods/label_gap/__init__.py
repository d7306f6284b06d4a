"""Methods that send class codes along the edges: LabelGAP at edge level, NodeLabelGAP."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
