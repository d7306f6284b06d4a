"""The list of known data sets: addresses, checksums, parsers and sizes; and how to add one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gapgnn.errors import InputError
from gapgnn.graph import Graph, one_class_against_all
from gapgnn.graph.datasets import parsers
from gapgnn.graph.datasets.download import DataFile
from gapgnn.registration import load_registered


@dataclass(frozen=True)
class DatasetInfo:
    """One data set of the registry.

    Attributes:
        name: for :func:`load_dataset`.
        description: one line for people.
        parser: turns the files into a graph.
        files: looked for under ``GAPGNN_DATA`` and in the cache; empty if it is built in.
        archive: one file with the same content, if only that can be downloaded.
        nodes: number of nodes after preparation, None if unknown. ``arcs``, ``features`` and
            ``classes`` likewise.
        measured: whether these sizes were measured on the file, or only published.
        min_class_count: smallest class that is kept; None keeps all, unlabelled nodes too.
        fallback_classes: number of classes to keep where fewer than two reach that minimum.
        metric: the metric that publications report for it.
        people: the data set with the same people, of which this is another view: both are
            charged to the same budget (privacy page, section 6).
    """

    name: str
    description: str
    parser: Callable[[Sequence[Path]], Graph]
    files: tuple[DataFile, ...] = ()
    archive: DataFile | None = None
    nodes: int | None = None
    arcs: int | None = None
    features: int | None = None
    classes: int | None = None
    measured: bool = False
    min_class_count: int | None = None
    fallback_classes: int | None = None
    metric: str = "accuracy"
    people: str | None = None


def _sizes(nodes: int, arcs: int, features: int, classes: int) -> dict[str, Any]:
    return {"nodes": nodes, "arcs": arcs, "features": features, "classes": classes}


def _social(paths: Sequence[Path]) -> Graph:
    from gapgnn.graph.datasets.synthetic import social_graph

    return social_graph(seed=0)


_SCHOOLS = """
American75, Amherst41, Auburn71, BC17, BU10, Baylor93, Berkeley13, Bingham82, Bowdoin47,
Brandeis99, Brown11, Bucknell39, Cal65, Caltech36, Carnegie49, Colgate88, Columbia2, Cornell5,
Dartmouth6, Duke14, Emory27, FSU53, GWU54, Georgetown15, Hamilton46, Harvard1, Haverford76,
Howard90, Indiana69, JMU79, Johns Hopkins55, Lehigh96, MIT8, MSU24, MU78, Maine59, Maryland58,
Mich67, Michigan23, Middlebury45, Mississippi66, NYU9, Northeastern19, Northwestern25,
Notre Dame57, Oberlin44, Oklahoma97, Penn94, Pepperdine86, Princeton12, Reed98, Rice31,
Rochester38, Rutgers89, Santa74, Simmons81, Smith60, Stanford3, Swarthmore42, Syracuse56,
Temple83, Tennessee95, Texas80, Texas84, Trinity100, Tufts18, Tulane29, UC33, UC61, UC64, UCF52,
UCLA26, UCSB37, UCSC68, UCSD34, UChicago30, UConn91, UF21, UGA50, UIllinois20, UMass92, UNC28,
UPenn7, USC35, USF51, USFCA72, UVA16, Vanderbilt48, Vassar85, Vermont70, Villanova62,
Virginia63, Wake73, WashU32, Wellesley22, Wesleyan43, William77, Williams40, Wisconsin87, Yale4
"""

# SHA-256, bytes, then nodes, arcs, features and classes after preparation, measured on these files.
_MEASURED_SCHOOLS = {
    "Caltech36": (
        "597d8307f9aaaaf50343e12a22893c203c52b92e1dd5b3fb35e13f19871d6ffa",
        58_993,
        (626, 29_152, 79, 6),
    ),
    "Reed98": (
        "d12ec74dc8c6e237385975b976c3709555a83629a1260be693fb688e3446070e",
        70_347,
        (800, 30_004, 117, 6),
    ),
    "Cornell5": (
        "d9ff76ae34e855cb77b0779a3a320f7f73f848901cb13352e2734c17804c4aec",
        3_543_757,
        (15_374, 1_303_452, 349, 6),
    ),
    "Rutgers89": (
        "40a138fda9324a24e2c14c409909d29f766383a50f370b525cd103da374b4760",
        3_811_528,
        (20_064, 1_219_462, 376, 5),
    ),
    "Wisconsin87": (
        "9e1bc77dd1486cf1b41a1aa38c80a41510c944085d8b8b84ac50f724f9c84e86",
        4_007_185,
        (17_703, 1_090_990, 613, 5),
    ),
}
_PUBLISHED_SCHOOLS = {"UIllinois20": (26_406, 2_117_924, 501, 6)}

# The planetoid parser's order. The files x and y of the archive repeat rows of allx and ally.
_PLANETOID_PARTS = ("allx", "ally", "tx", "ty", "graph", "test.index")
_PLANETOID_FILES = {
    "pubmed": {
        "allx": ("508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e", 7_578_385),
        "ally": ("0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e", 224_739),
        "tx": ("4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d", 405_505),
        "ty": ("ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd", 12_135),
        "graph": ("5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9", 471_808),
        "test.index": ("b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5", 6_000),
    },
    "cora": {
        "allx": ("9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543", 257_305),
        "ally": ("2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71", 47_959),
        "tx": ("b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a", 148_025),
        "ty": ("41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad", 28_135),
        "graph": ("58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d", 59_847),
        "test.index": ("297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875", 5_000),
    },
    "citeseer": {
        "allx": ("2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668", 595_021),
        "ally": ("f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95", 55_623),
        "tx": ("539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21", 260_321),
        "ty": ("55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce", 24_135),
        "graph": ("d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7", 61_987),
        "test.index": ("2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4", 5_000),
    },
}


def _school(school: str) -> DatasetInfo:
    sha256, size, sizes = _MEASURED_SCHOOLS.get(school, (None, None, None))
    known = sizes or _PUBLISHED_SCHOOLS.get(school)
    host = "https://github.com/sisaman/pyg-datasets/raw/main/datasets/facebook100"
    return DatasetInfo(
        name=f"facebook100/{school}",
        description="Facebook friends at one US school in 2005, class year (Facebook100)",
        parser=parsers.facebook100,
        files=(DataFile(f"facebook100/{school}.mat", f"{host}/{quote(school)}.mat", sha256, size),),
        **({} if known is None else _sizes(*known)),
        measured=sizes is not None,
        min_class_count=1_000,
        fallback_classes=6,
    )


def _year_against_all(school: str, year: str, nodes: int, arcs: int, features: int) -> DatasetInfo:
    """Return a school with one class year against all others: a real graph with a rare class."""
    info = _school(school)
    return replace(
        info,
        name=f"{school.lower()}-{year}",
        description=f"Facebook friends at {school}, class year {year} or another: a rare class",
        people=info.name,
        parser=partial(_one_class, info.parser, year),
        **_sizes(nodes, arcs, features, 2),
        min_class_count=None,
        fallback_classes=None,
        metric="average_precision",
    )


def _one_class(
    parser: Callable[[Sequence[Path]], Graph], positive: str, paths: Sequence[Path]
) -> Graph:
    return one_class_against_all(parser(paths), positive)


def _planetoid(name: str, description: str, sizes: tuple[int, int, int, int]) -> DatasetInfo:
    host = "https://github.com/kimiyoung/planetoid/raw/master/data"
    known = _PLANETOID_FILES[name]
    return DatasetInfo(
        name=name,
        description=description,
        parser=parsers.planetoid,
        files=tuple(
            DataFile(
                f"planetoid/ind.{name}.{part}",
                f"{host}/ind.{name}.{part}",
                *known[part],
            )
            for part in _PLANETOID_PARTS
        ),
        **_sizes(*sizes),
        measured=True,
    )


# SHA-256, bytes, then nodes, arcs, features and classes, measured on these files.
_HETEROPHILOUS = {
    "tolokers": (
        "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667",
        1_329_769,
        (11_758, 1_038_000, 10, 2),
    ),
    "minesweeper": (
        "e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3",
        135_045,
        (10_000, 78_804, 7, 2),
    ),
    "actor": (
        "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816",
        252_956,
        (7_600, 53_318, 932, 5),
    ),
    "squirrel": (
        "d436e3b42c0546b105241c0ab0766097074e68e55f67b133eeb9b0162e55cbd9",
        704_277,
        (5_201, 396_706, 2_089, 5),
    ),
    "squirrel_directed": (
        "3f0436486716cf77b651c372e54f6b4c2cc52262e7faeeab584a34b41bae2616",
        760_119,
        (5_201, 216_933, 2_089, 5),
    ),
    "squirrel_filtered": (
        "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7",
        208_215,
        (2_223, 93_996, 2_089, 5),
    ),
    "chameleon": (
        "4c640bd2877fc4f9f101531e2f977bc16445a54e09a5cb01178df608e552f3fd",
        177_840,
        (2_277, 62_742, 2_325, 5),
    ),
    "chameleon_directed": (
        "34aea6b6888063544232100d53d4aa7e87e37953ec8dd3a7092afb25bb2f0328",
        191_520,
        (2_277, 36_051, 2_325, 5),
    ),
    "chameleon_filtered": (
        "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5",
        58_924,
        (890, 17_708, 2_325, 5),
    ),
}
_CLASS_NAMES = {"tolokers": ("kept", "banned"), "minesweeper": ("free", "mine")}
# The same arrays as in the public files, packed anew without pickles.
_REPACKED = {
    "computers": "be58a1ec75405bfb2f9917b85cc34eb29c606df5a988da355468dda97d19b753",
    "photo": "616582b757950a34e573543c4d3c02e1087c11d5ad3b324aa1b0ddb95db1c99d",
}


def _heterophilous(name: str, description: str) -> DatasetInfo:
    host = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
    sha256, size, sizes = _HETEROPHILOUS[name]
    folder = "tolokers" if name == "tolokers" else "heterophilous"
    names = _CLASS_NAMES.get(name, tuple(str(label) for label in range(sizes[3])))
    is_directed = name.endswith("_directed")
    return DatasetInfo(
        name=name,
        description=description,
        parser=partial(parsers.heterophilous, label_names=names, directed=is_directed),
        files=(DataFile(f"{folder}/{name}.npz", f"{host}/{name}.npz", sha256, size),),
        **_sizes(*sizes),
        measured=True,
        metric="auc" if name in _CLASS_NAMES else "accuracy",
    )


def _electronics(name: str, sizes: tuple[int, int, int, int]) -> DatasetInfo:
    host = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
    file = f"amazon_electronics_{name}.npz"
    return DatasetInfo(
        name=f"amazon-{name}",
        description=f"{name} bought together, category (Amazon)",
        parser=parsers.amazon_electronics,
        files=(DataFile(f"amazon/{file}", f"{host}/{file}", repacked=_REPACKED[name]),),
        **_sizes(*sizes),
        measured=True,
    )


_SNAP = "https://snap.stanford.edu/data"
_PAGES = "facebook-page-page"
_PAGE_FILES = {
    "facebook_edges.csv": (
        "7c50d8f02a75cc0829577814a1fc14535164daa38d79c3612340c9e9cdbd4022",
        1_882_610,
    ),
    "facebook_target.csv": (
        "7bd96eafea3c2ca40f44bfa9e73642194696c21e38c7b29ed409c32ad14075cd",
        1_177_912,
    ),
    "facebook.json": (
        "ea870537646a93642a0008d38aa9bfeff02018070ba97b1f3f469d9622626436",
        2_088_766,
    ),
}
_MAIN = (
    DatasetInfo(
        name="social",
        description="a generated social network (built in)",
        parser=_social,
        **_sizes(10_000, 601_514, 349, 6),
    ),
    _school("UIllinois20"),
    DatasetInfo(
        name="reddit",
        description="posts linked by common commenters, community (GraphSAGE)",
        parser=parsers.reddit,
        files=(DataFile("reddit/reddit.zip", "https://data.dgl.ai/dataset/reddit.zip"),),
        **_sizes(116_713, 46_233_380, 602, 8),
        min_class_count=10_000,
    ),
    DatasetInfo(
        name="amazon",
        description="products bought together, category (Cluster-GCN)",
        parser=parsers.amazon,
        files=(
            DataFile(
                "amazon/products.zip",
                "https://snap.stanford.edu/ogb/data/nodeproppred/products.zip",
            ),
        ),
        **_sizes(1_790_731, 80_966_832, 100, 10),
        min_class_count=100_000,
    ),
    _planetoid("pubmed", "citations, type of diabetes", (19_717, 88_648, 500, 3)),
    _planetoid("cora", "citations, field of machine learning", (2_708, 10_556, 1_433, 7)),
    _planetoid("citeseer", "citations, field of computer science", (3_327, 9_104, 3_703, 6)),
    DatasetInfo(
        name=_PAGES,
        description="verified pages that like each other, category (MUSAE)",
        parser=parsers.facebook_page_page,
        files=tuple(
            DataFile(f"{_PAGES}/{file}", f"{_SNAP}/facebook_large.zip", *known)
            for file, known in _PAGE_FILES.items()
        ),
        archive=DataFile(f"{_PAGES}/facebook_large.zip", f"{_SNAP}/facebook_large.zip"),
        **_sizes(22_470, 341_646, 4_714, 4),
        measured=True,
    ),
    DatasetInfo(
        name="github",
        description="developers who follow each other, machine learning or web (MUSAE)",
        parser=parsers.github,
        files=(
            DataFile(
                "github/git_web_ml.zip",
                f"{_SNAP}/git_web_ml.zip",
                "56c0c1c2c460dc4c7bf89357b1fec020f45e2ecebab81d131d073b10e28ec031",
                2_396_031,
            ),
        ),
        **_sizes(37_700, 578_006, 4_005, 2),
        measured=True,
    ),
    _heterophilous("tolokers", "crowd workers who shared tasks, banned or not"),
    _heterophilous("minesweeper", "a board of mines (generated), neighbouring cells are joined"),
    _heterophilous("actor", "actors on the same page, role (Film)"),
    *(
        _heterophilous(f"{name}{variant}", f"articles on {animal}, traffic{what}")
        for name, animal in (("squirrel", "squirrels"), ("chameleon", "chameleons"))
        for variant, what in (
            ("", ""),
            ("_directed", ", links with their direction"),
            ("_filtered", ", without copies of articles"),
        )
    ),
    _electronics("computers", (13_752, 491_722, 767, 10)),
    _electronics("photo", (7_650, 238_162, 745, 8)),
    _year_against_all("Cornell5", "2003", 18_660, 1_581_554, 349),
)

DATASETS: dict[str, DatasetInfo] = {
    **{"facebook" if "/" in info.name else info.name: info for info in _MAIN},
    **{info.name: info for info in (_school(part.strip()) for part in _SCHOOLS.split(","))},
}


def register_dataset(info: DatasetInfo) -> DatasetInfo:
    """Add a data set under its name, for this process.

    An installed package is found by itself: an entry point in the group ``gapgnn.datasets`` names
    one :class:`DatasetInfo` (docs/how-to/extending.md).
    """
    if not isinstance(info, DatasetInfo):
        raise InputError(f"a data set must be a DatasetInfo. Got {info!r}.")
    if DATASETS.setdefault(info.name, info) != info:
        raise InputError(f"a data set must have a name of its own. Got {info.name!r} again.")
    return info


def known_datasets() -> dict[str, DatasetInfo]:
    """Return every known data set by name, those of other packages last."""
    registered = load_registered("gapgnn.datasets")
    for name, info in registered.found.items():
        if name not in registered.failed:
            try:
                register_dataset(info)
            except InputError as error:
                registered.failed[name] = str(error)
    return DATASETS
