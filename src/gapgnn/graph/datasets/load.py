"""Load the registered data sets.

A data set is prepared as in the publication it is known from. Nodes without a label, classes below
a minimum count (1,000 for Facebook100, 10,000 for Reddit, 100,000 for Amazon) and self-loops are
dropped; edges are symmetrised; nodes without edges are kept. The split is random, 75/10/15.

Some schools of Facebook100 are too small for that minimum. Where fewer than two years reach it, it
is lowered to the size of the sixth largest year, which keeps six years (more if some are equal).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from gapgnn.errors import DataError, InputError
from gapgnn.graph import Graph, Progress, filter_classes, random_split
from gapgnn.graph.datasets.download import DataFile, find, obtain
from gapgnn.graph.datasets.registry import DatasetInfo, known_datasets

# Published sizes may count nodes without edges or repeated edges in another way; the sizes of a
# wrong or unfiltered file differ much more.
_PUBLISHED_TOLERANCE = 0.05


def load_dataset(
    name: str, *, split_seed: int | None = 0, progress: Progress | None = None
) -> Graph:
    """Return a known data set, prepared and split; its files are downloaded if they are not here.

    Files are looked for under the folder in ``GAPGNN_DATA``, then in the user's cache.

    Args:
        name: one of :func:`dataset_names`.
        split_seed: seed of the random 75/10/15 split; None leaves the graph without a split.
        progress: called during a download with the file's name, bytes so far and bytes in total.

    >>> load_dataset("Cornell5")
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `dataset` must be a known name. Got 'Cornell5'. Did you mean \
'facebook100/Cornell5'? `gapgnn datasets` lists all.
    """
    info = dataset_info(name)
    paths = _obtain(info, progress)
    graph = info.parser(paths)
    if info.min_class_count is not None:
        graph = filter_classes(graph, _class_minimum(graph, info))
    if paths:
        _check_sizes(graph, info, paths[0])
    # Published data sets are public as a whole, whatever was read from their files.
    graph = replace(graph, name=info.name, inferred=(), population=_population(info))
    return graph if split_seed is None else random_split(graph, seed=split_seed)


def dataset_names() -> tuple[str, ...]:
    """Return all known names, the 100 schools of Facebook100 after the others.

    >>> dataset_names()[:4], len([name for name in dataset_names() if "/" in name])
    (('social', 'facebook', 'reddit', 'amazon'), 100)
    """
    return tuple(known_datasets())


def dataset_info(name: str) -> DatasetInfo:
    """Return the registry entry of a data set without loading it.

    >>> dataset_info("facebook").name, dataset_info("pubmed").nodes
    ('facebook100/UIllinois20', 19717)
    """
    known = known_datasets()
    if not isinstance(name, str) or name not in known:
        raise InputError(
            f"`dataset` must be a known name. Got {name!r}.{_nearest(name)} "
            "`gapgnn datasets` lists all."
        )
    return known[name]


def default_metric(graph: Graph) -> str:
    """Return the metric that publications report for a registered data set; accuracy for others.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> default_metric(social_graph(num_nodes=50, mean_degree=4))
    'accuracy'
    """
    info = known_datasets().get(graph.name)
    is_registered = info is not None and graph.population == _population(info)
    return info.metric if info is not None and is_registered else "accuracy"


def _population(info: DatasetInfo) -> str:
    """Return the population that a data set is charged to."""
    return f"dataset {info.people or info.name}"


def local_status(name: str) -> str:
    """Return where a data set is: ``built in``, ``GAPGNN_DATA``, ``cache`` or ``not here``.

    >>> local_status("social")
    'built in'
    """
    info = dataset_info(name)
    if not info.files:
        return "built in"
    for files in _alternatives(info):
        places = [find(file) for file in files]
        if None not in places:
            inside_data = all(place is not None and place[1] == "GAPGNN_DATA" for place in places)
            return "GAPGNN_DATA" if inside_data else "cache"
    return "not here"


def fetch_dataset(name: str, *, progress: Progress | None = None) -> tuple[Path, ...]:
    """Download the missing files of a data set and return the paths of its files.

    >>> fetch_dataset("social")
    ()
    """
    return tuple(_obtain(dataset_info(name), progress))


def _alternatives(info: DatasetInfo) -> list[tuple[DataFile, ...]]:
    return [info.files] if info.archive is None else [info.files, (info.archive,)]


def _obtain(info: DatasetInfo, progress: Progress | None) -> list[Path]:
    here = (files for files in _alternatives(info) if all(find(file) for file in files))
    files = next(here, _alternatives(info)[-1])
    return [obtain(file, progress=progress) for file in files]


def _class_minimum(graph: Graph, info: DatasetInfo) -> int:
    minimum = info.min_class_count or 0
    counts = np.sort(np.bincount(graph.labels[graph.labels >= 0]))[::-1]
    if info.fallback_classes is None or (counts >= minimum).sum() >= 2 or not counts.any():
        return minimum
    return int(counts[counts > 0][: info.fallback_classes][-1])


def _check_sizes(graph: Graph, info: DatasetInfo, path: Path) -> None:
    found = (graph.num_nodes, graph.num_arcs, graph.num_features, graph.num_classes)
    expected = (info.nodes, info.arcs, info.features, info.classes)
    loose = (not info.measured,) * 2 + (False, False)
    for what, got, size, about in zip(
        ("nodes", "arcs", "features", "classes"), found, expected, loose, strict=True
    ):
        slack = _PUBLISHED_TOLERANCE * size if about and size is not None else 0
        if size is not None and abs(got - size) > slack:
            raise DataError(
                f"`{path}` must give {'about ' if about else ''}{size:,} {what}. Got {got:,}; the "
                "file is not the published one."
            )


def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def _nearest(name: object) -> str:
    """Return `` Did you mean ...?`` with up to three names; schools match without their prefix."""
    spellings = {_plain(known): known for known in known_datasets()}
    spellings |= {_plain(known.split("/")[1]): known for known in known_datasets() if "/" in known}
    wanted = _plain(name)
    near = [wanted] if wanted in spellings else difflib.get_close_matches(wanted, spellings, n=3)
    names = list(dict.fromkeys(spellings[spelling] for spelling in near))
    return f" Did you mean {' or '.join(map(repr, names))}?" if names else ""
