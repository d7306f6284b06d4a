"""The same graph on disk in parts, for graphs that outgrow the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.graph.store.arcs import Limits as Limits
    from gapgnn.graph.store.arcs import PartFile as PartFile
    from gapgnn.graph.store.arcs import find_limits as find_limits
    from gapgnn.graph.store.build import build_store as build_store
    from gapgnn.graph.store.build import store_graph as store_graph
    from gapgnn.graph.store.format import check_once as check_once
    from gapgnn.graph.store.graph import InProcess as InProcess
    from gapgnn.graph.store.graph import StoredGraph as StoredGraph
    from gapgnn.graph.store.graph import open_store as open_store

__getattr__, __dir__, __all__ = front(__name__)
