"""The parameters of private hops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gapgnn.methods.configs.base import EDGE_TYPES, ReleaseConfig, option


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateHopsConfig(ReleaseConfig):
    """What may be asked of private hops."""

    hops: int = option(2, "number K of noisy aggregations, each of the one before")
    max_degree: int = option(
        100, "neighbours D that each adjacency list is cut to at node level, by a keyed hash"
    )
    edge_types: Literal["auto", "each", "any"] = option(
        "auto",
        EDGE_TYPES.format(union="is not released here") + ", at node level each: a record holds "
        "its adjacency lists of all types",
    )
