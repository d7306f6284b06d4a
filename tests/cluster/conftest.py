"""A Ray cluster of two nodes on this machine, only while the tests of a file need it."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def two_nodes():
    """The address of a cluster of two nodes of one core each, and the folder of its session."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        # Ray leaves files of its own open.
        warnings.simplefilter("ignore")
        logging.getLogger("ray").setLevel(logging.ERROR)
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "include_dashboard": False,
                "object_store_memory": 1 << 28,
            },
        )
        cluster.add_node(num_cpus=1, object_store_memory=1 << 28)
        try:
            yield cluster.address, Path(cluster.head_node.get_session_dir_path())
        finally:
            ray.shutdown()
            cluster.shutdown()
