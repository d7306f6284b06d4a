"""The public data sets: where from, checksums, parsers; and graphs that are generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.graph.datasets.examples import write_example as write_example
    from gapgnn.graph.datasets.load import dataset_info as dataset_info
    from gapgnn.graph.datasets.load import dataset_names as dataset_names
    from gapgnn.graph.datasets.load import default_metric as default_metric
    from gapgnn.graph.datasets.load import fetch_dataset as fetch_dataset
    from gapgnn.graph.datasets.load import load_dataset as load_dataset
    from gapgnn.graph.datasets.load import local_status as local_status
    from gapgnn.graph.datasets.registry import DatasetInfo as DatasetInfo
    from gapgnn.graph.datasets.registry import register_dataset as register_dataset

__getattr__, __dir__, __all__ = front(__name__)
