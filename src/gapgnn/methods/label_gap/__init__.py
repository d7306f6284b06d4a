"""Methods that send class codes along the edges: LabelGAP at edge level, NodeLabelGAP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.methods.label_gap.budget import SHARES as SHARES

__getattr__, __dir__, __all__ = front(__name__)
