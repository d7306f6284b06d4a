"""Neighbouring inputs as files: the tables of a command with one entity changed.

Privacy page, sections 1 and 9. At edge level two inputs differ in one link, or in as many links of
one person as the relation names. At node level they differ in one record: the row of features and
label, and the links of that person. Entries of other people do not change: in an undirected graph a
line that names a removed person stays in the table, because it is also the other end's entry. If
edges have amounts, a link may also differ in its amount; with several edge types, a link of another
type may be removed, or one of each type.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gapgnn.errors import InputError, check_choice
from gapgnn.privacy import AddRemove, Links, Relation, links_of
from gapgnn.rng import experiment_rng

HUGE = "3.4e38"
NODES, EDGES, FEATURES, SCHEMA = "people.csv", "links.csv", "features", "schema.toml"


EdgeLines = tuple[tuple[str, ...], ...]
EdgeRows = tuple[str, tuple[str, ...], EdgeLines]


@dataclass(frozen=True)
class Tables:
    """The input of a command, as rows of text.

    Attributes:
        node_columns: of the node table; the first one is the id.
        nodes: its rows.
        edge_columns: of the edge table; the first two are the ends.
        edges: its rows.
        label: the column with the class.
        directed: whether a link belongs to its source alone.
        features: a matrix with one row per node, where features are not columns.
        schema: the text of the schema, where there is one.
        edge_type: the name of the edges, where there are several edge types.
        more: name, columns and rows of further edge tables, one for each further edge type.
        weight: the column of the edge table with amounts.
        edge_words: options that say what is read of the tables, and how.
    """

    node_columns: tuple[str, ...]
    nodes: tuple[tuple[str, ...], ...]
    edge_columns: tuple[str, ...]
    edges: tuple[tuple[str, ...], ...]
    label: str | None
    directed: bool
    features: Any = None
    schema: str | None = None
    edge_type: str = "links"
    more: tuple[EdgeRows, ...] = ()
    weight: str | None = None
    edge_words: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        """Everybody's id, in the order of the rows."""
        return [row[0] for row in self.nodes]

    def write(self, folder: Path) -> list[str]:
        """Write the tables into a folder and return the command-line words that choose them."""
        _write_csv(folder / NODES, self.node_columns, self.nodes)
        _write_csv(folder / EDGES, self.edge_columns, self.edges)
        # An edge type has the name of its file unless another name is given.
        first = EDGES if self.edge_type == Path(EDGES).stem else f"{self.edge_type}={EDGES}"
        words = ["--edges", first, "--nodes", NODES, *self.edge_words]
        for number, (edge_type, columns, rows) in enumerate(self.more):
            file = f"more-{number}.csv"
            _write_csv(folder / file, columns, rows)
            words += ["--edges", f"{edge_type}={file}"]
        if self.label is not None:
            words += ["--label", self.label]
        words.append("--directed" if self.directed else "--undirected")
        if self.features is not None:
            words += ["--features", _write_features(folder, self.features)]
        if self.schema is not None:
            (folder / SCHEMA).write_text(self.schema, encoding="utf-8")
            words += ["--schema", SCHEMA]
        return words

    def links(self, person: str, targets: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """Return lines that link a person to others, with nothing in further columns."""
        rest = ("",) * (len(self.edge_columns) - 2)
        return tuple((person, other, *rest) for other in targets)

    def change_edges(self, change: Callable[[Tables], EdgeLines]) -> Tables:
        """Return the input with the edge table of every edge type changed."""
        more = []
        for name, columns, rows in self.more:
            lines = change(replace(self, edge_columns=columns, edges=rows, more=()))
            more.append((name, columns, lines))
        return replace(self, edges=change(self), more=tuple(more))

    def turned(self) -> Tables:
        """Return the input with its first and last edge type exchanged."""
        *rest, (name, columns, rows) = self.more
        mine = (self.edge_type, self.edge_columns, self.edges)
        return replace(self, edge_type=name, edge_columns=columns, edges=rows, more=(*rest, mine))

    def without(self, person: str, *, mentions: bool = False) -> Tables:
        """Return the input without one person, and with ``mentions`` without links to them."""
        place = self.ids.index(person)
        nodes = self.nodes[:place] + self.nodes[place + 1 :]
        features = None
        if self.features is not None:
            features = self.features[np.arange(len(self.nodes)) != place]

        def left(tables: Tables) -> EdgeLines:
            if mentions:
                return tuple(row for row in tables.edges if person not in row[:2])
            if self.directed:
                return tuple(row for row in tables.edges if row[0] != person)
            return tables.edges

        return replace(self.change_edges(left), nodes=nodes, features=features)

    def emptied(self, person: str) -> Tables:
        """Return the input with one person's record emptied; the row stays."""
        gone, place = self.without(person), self.ids.index(person)
        empty = (person, *[""] * (len(self.node_columns) - 1))
        features = gone.features
        if features is not None:
            dense = features.toarray() if sp.issparse(features) else features
            features = np.insert(dense, place, np.float32(0), axis=0)
        nodes = (*gone.nodes[:place], empty, *gone.nodes[place:])
        return replace(gone, nodes=nodes, features=features)


@dataclass(frozen=True)
class Neighbours:
    """Two neighbouring inputs.

    Attributes:
        pair_type: what the two inputs differ in.
        first: the input of the recorded run; at node level it has the record in question.
        second: the input of the replayed run.
        who: what differs, in words.
        person: the id of the record at node level.
        entities: how many arcs they differ in where one arc is promised; otherwise 1.
    """

    pair_type: str
    first: Tables
    second: Tables
    who: str
    person: str | None = None
    entities: int = 1


EDGE_PAIRS = ("first", "last", "middle", "hub", "leaf", "random", "added")
# Where edges have amounts: what one of them is changed to.
AMOUNTS = {
    "amount-huge": "1e300",
    "amount-negative": "-1e300",
    "amount-missing": "",
    "amount-not-a-number": "nan",
}
# Where there are several edge types.
OTHER_TYPE, EACH_TYPE = "other-type", "each-type"
# Where moreover several arcs of one person are protected: arcs of all edge types with shared ends.
# Edges are left out: by them a total alone may move further than the joint bound of all sums says.
SHARED_ENDS = "shared-ends"
NODE_PAIRS = (
    *("first", "last", "middle", "hub", "isolated", "rare-class", "random", "not-training"),
    *("huge", "not-a-number", "unseen", "dangling", "lists-everybody"),
)
VANISHED = "vanished"


def edge_neighbours(
    tables: Tables, pair_type: str, *, relation: Relation, seed: int = 0
) -> Neighbours:
    """Return two inputs that differ in one link, or under ``5-edges`` in up to five of one person.

    Under ``undirected`` every line between the two ends goes. Under ``directed`` on a graph without
    direction a line is two arcs, which is what the pair then differs in. Of several links the one
    that ``pair_type`` describes is the first. The others belong to the same person: the end with
    more links, or the source of the arc. Pair types ``amount-`` change the amount of one link,
    ``other-type`` removes a link of the last edge type, ``each-type`` one of every edge type at
    once, and ``shared-ends`` adds several arcs of all edge types to as few people as possible.
    """
    check_choice(
        "pair_type", pair_type, (*EDGE_PAIRS, *AMOUNTS, OTHER_TYPE, EACH_TYPE, SHARED_ENDS)
    )
    rng = experiment_rng(seed, "edge neighbours", pair_type)
    if pair_type == SHARED_ENDS:
        return _of_shared_ends(tables, links_of(relation), rng)
    if pair_type in (OTHER_TYPE, EACH_TYPE):
        return _of_edge_types(tables, pair_type, relation=relation, seed=seed)
    lines = [row for row in tables.edges if row[0] != row[1]]
    if not lines:
        raise InputError("`edges` must have a link to remove. Got none.")
    links = links_of(relation)
    if pair_type == "added":
        ends = _unlinked(tables, rng, links.count)
        # At a random place: the lines behind it must have no influence either.
        place = int(rng.integers(len(tables.edges) + 1))
        new = tables.links(ends[0], ends[1:])
        edges = (*tables.edges[:place], *new, *tables.edges[place:])
    else:
        degrees = Counter(name for row in lines for name in set(row[:2]))
        by_degree = [degrees[row[0]] + degrees[row[1]] for row in lines]
        least = [min(degrees[row[0]], degrees[row[1]]) for row in lines]
        place = {
            "first": 0,
            "last": len(lines) - 1,
            "middle": len(lines) // 2,
            "hub": int(np.argmax(by_degree)),
            "leaf": int(np.argmin(least)),
        }.get(pair_type, int(rng.integers(len(lines))))
        ends = (lines[place][0], lines[place][1])
        if links.count > 1:
            if not links.are_arcs and degrees[ends[1]] > degrees[ends[0]]:
                ends = ends[::-1]
            ends = _own_links(tables, ends, links)
        gone = _between(tables, ends, links)
        if pair_type in AMOUNTS:
            column = tables.edge_columns.index(str(tables.weight))
            edges = tuple(
                (*row[:column], AMOUNTS[pair_type], *row[column + 1 :])
                if (row[0], row[1]) in gone
                else row
                for row in tables.edges
            )
        else:
            edges = tuple(row for row in tables.edges if (row[0], row[1]) not in gone)
    who = f"the link {ends[0]} - {ends[1]}"
    if len(ends) > 2:
        who = f"{len(ends) - 1} links of {ends[0]}"
    if pair_type in AMOUNTS:
        who += f", {'its amount' if len(ends) == 2 else 'their amounts'}"
    second = replace(tables, edges=edges)
    return Neighbours(pair_type, tables, second, who, entities=_entities(tables, links))


def _entities(tables: Tables, links: Links) -> int:
    """Return the squared distance of k edges in units of k arcs: (k^2 + k) / k."""
    return links.count + 1 if links.are_arcs and not tables.directed else 1


def _own_links(tables: Tables, ends: tuple[str, str], links: Links) -> tuple[str, ...]:
    """Return a person and the other ends of as many links as are protected, the given one first."""
    person, first = ends
    others = {first: None}
    for source, target in (row[:2] for row in tables.edges):
        if source == person != target:
            others[target] = None
        elif target == person != source and not (links.are_arcs and tables.directed):
            others[source] = None
    return (person, *list(others)[: links.count])


def _between(tables: Tables, ends: tuple[str, ...], links: Links) -> set[tuple[str, str]]:
    """Return the ends of all lines that are one of a person's links, in both orders if they may."""
    gone = {(ends[0], other) for other in ends[1:]}
    is_arc = tables.directed and links.are_arcs
    return gone if is_arc else gone | {(other, person) for person, other in gone}


def _of_edge_types(tables: Tables, pair_type: str, *, relation: Relation, seed: int) -> Neighbours:
    """Remove links of the last edge type, or of every one; several belong to one person."""
    if not tables.more:
        raise InputError(f"`{pair_type}` must have several edge types. Got one.")
    options: Any = {"relation": relation, "seed": seed}
    if pair_type == OTHER_TYPE:
        pair = edge_neighbours(tables.turned(), "random", **options)
        return replace(
            pair,
            pair_type=pair_type,
            first=tables,
            second=pair.second.turned(),
            who=f"{pair.who} of {tables.more[-1][0]}",
        )
    links = links_of(relation)
    if links.count > 1:
        return _of_each_edge_type(tables, links)
    who, entities = [], 1

    def fewer(one: Tables) -> EdgeLines:
        nonlocal entities
        pair = edge_neighbours(one, "random", **options)
        who.append(pair.who)
        entities = pair.entities
        return pair.second.edges

    second = tables.change_edges(fewer)
    return Neighbours(pair_type, tables, second, ", ".join(who), entities=entities)


def _of_each_edge_type(tables: Tables, links: Links) -> Neighbours:
    """Remove as many links as are protected, of every edge type, of the person with most links."""
    every = [tables.edges, *(rows for _, _, rows in tables.more)]
    owners = (row[:1] if links.are_arcs else row[:2] for rows in every for row in rows)
    (person, _), *_ = Counter(name for names in owners for name in names).most_common(1)

    def fewer(one: Tables) -> EdgeLines:
        ends = [
            end
            for row in one.edges
            for end in ((row[0], row[1]), (row[1], row[0]))
            if end[0] == person != end[1] and (end[0] == row[0] or not links.are_arcs)
        ]
        if not ends:
            return one.edges
        gone = _between(one, _own_links(one, ends[0], links), links)
        return tuple(row for row in one.edges if (row[0], row[1]) not in gone)

    who = f"up to {links.count} links of {person} of every edge type"
    entities = _entities(tables, links)
    return Neighbours(EACH_TYPE, tables, tables.change_edges(fewer), who, entities=entities)


def _of_shared_ends(tables: Tables, links: Links, rng: np.random.Generator) -> Neighbours:
    """Add as many arcs of one person as are protected, of all edge types to the same people."""
    num_types = 1 + len(tables.more)
    if num_types == 1 or links.count == 1 or not links.are_arcs:
        raise InputError(f"`{SHARED_ENDS}` must have several edge types and several arcs.")
    every = (*tables.edges, *(row for _, _, rows in tables.more for row in rows))
    person, *others = _unlinked(replace(tables, edges=every), rng, -(-links.count // num_types))
    ends = [(place, other) for other in others for place in range(num_types)][: links.count]
    places = iter(range(num_types))

    def more(one: Tables) -> EdgeLines:
        place = next(places)
        new = one.links(person, [other for number, other in ends if number == place])
        middle = len(one.edges) // 2
        return (*one.edges[:middle], *new, *one.edges[middle:])

    who = f"{len(ends)} arcs of {person} of {num_types} edge types to the same people"
    entities = _entities(tables, links)
    return Neighbours(SHARED_ENDS, tables, tables.change_edges(more), who, entities=entities)


def node_neighbours(
    tables: Tables,
    pair_type: str,
    *,
    relation: Relation,
    max_degree: int | None = None,
    trains: Callable[[str], bool] = lambda name: True,
    keeps_row: bool = False,
    seed: int = 0,
) -> Neighbours:
    """Return two inputs that differ in one record: there or not, or exchanged for another.

    Pair types that describe a record (``huge`` features, ``unseen`` categories and label, a
    ``dangling`` list, ``lists-everybody``) insert such a record; the others choose a person of the
    table.

    Args:
        tables: the input.
        pair_type: which record.
        relation: ``add-remove`` or ``replace``.
        max_degree: D; inserted records have more neighbours.
        trains: whether the id is in the training set: such people are in the most releases.
        keeps_row: whoever withdraws keeps a row without a record.
        seed: of the choice.
    """
    check_choice("pair_type", pair_type, (*NODE_PAIRS, VANISHED))
    rng = experiment_rng(seed, "node neighbours", pair_type)
    if pair_type in ("huge", "not-a-number", "unseen", "dangling", "lists-everybody"):
        person, first = _with_odd_record(tables, pair_type, max_degree, trains, rng)
    else:
        person, first = _person_of(tables, pair_type, trains, rng), tables
    if relation == AddRemove() and keeps_row:
        second = first.emptied(person)
    elif relation == AddRemove():
        second = first.without(person, mentions=pair_type == VANISHED)
    else:
        second = _exchanged(first, person, rng)
    return Neighbours(pair_type, first, second, f"the record of {person}", person=person)


def _person_of(
    tables: Tables, pair_type: str, trains: Callable[[str], bool], rng: np.random.Generator
) -> str:
    """Return the person whose record differs, in the training set except for ``not-training``."""
    wanted = pair_type != "not-training"
    rows = [row for row in tables.nodes if trains(row[0]) is wanted] or list(tables.nodes)
    # How many lines name each person as the owner of a link.
    owners = (row[:1] if tables.directed else row[:2] for row in tables.edges)
    degrees = Counter(name for names in owners for name in names)
    lengths = [degrees[row[0]] for row in rows]
    if pair_type == "rare-class" and tables.label is not None:
        column = tables.node_columns.index(tables.label)
        counts = Counter(row[column] for row in tables.nodes if row[column])
        return min(rows, key=lambda row: (counts.get(row[column], len(tables.nodes)), row[0]))[0]
    place = {
        "first": 0,
        "last": len(rows) - 1,
        "middle": len(rows) // 2,
        "hub": int(np.argmax(lengths)),
        VANISHED: int(np.argmax(lengths)),
        "isolated": int(np.argmin(lengths)),
    }.get(pair_type, int(rng.integers(len(rows))))
    return rows[place][0]


def _with_odd_record(
    tables: Tables,
    pair_type: str,
    max_degree: int | None,
    trains: Callable[[str], bool],
    rng: np.random.Generator,
) -> tuple[str, Tables]:
    """Insert a record with extreme or invalid values, which the command must survive."""
    ids = tables.ids
    every = [tables.edges, *(rows for _, _, rows in tables.more)]
    known = set(ids) | {name for rows in every for row in rows for name in row[:2]}
    whole = [int(name) for name in known if name.lstrip("-").isdigit()]
    are_whole = len(whole) == len(known)
    new = (str(max(whole) + k) if are_whole else f"somebody-new-{k}" for k in range(1, 1000))
    person = next(name for name in new if trains(name))
    alike = tables.nodes[int(rng.integers(len(ids)))]
    cells = dict(zip(tables.node_columns[1:], alike[1:], strict=True))
    odd = {"huge": HUGE, "not-a-number": "nan", "unseen": "HIV clinic, resident 17"}.get(pair_type)
    if odd is not None:
        label = tables.label if pair_type != "unseen" else None
        cells = {name: value if name == label else odd for name, value in cells.items()}
    length = max(3, 2 * (max_degree or 10))
    targets = rng.choice(ids, size=min(length, len(ids)), replace=False).tolist()
    if pair_type == "dangling":
        nobody = range(int(person) + 1, int(person) + 1 + length) if are_whole else range(length)
        targets = [str(k) if are_whole else f"nobody-{k}" for k in nobody] + targets
    if pair_type == "lists-everybody":
        targets = list(ids)
    # At some place among the rows.
    place = int(rng.integers(len(ids) + 1))
    features = tables.features
    if features is not None:
        value = {"huge": 3.4e38, "not-a-number": np.nan}.get(pair_type, 1.0)
        dense = features.toarray() if sp.issparse(features) else features
        features = np.insert(dense, place, np.float32(value), axis=0)
    listed = tables.change_edges(lambda one: (*one.edges, *one.links(person, targets)))
    return person, replace(
        listed,
        nodes=(*tables.nodes[:place], (person, *cells.values()), *tables.nodes[place:]),
        features=features,
    )


def _exchanged(tables: Tables, person: str, rng: np.random.Generator) -> Tables:
    """Replace a person's features and label by another's and, in a directed graph, their links."""
    ids = tables.ids
    place = ids.index(person)
    other = (place + 1 + int(rng.integers(len(ids) - 1))) % len(ids)
    row = (person, *tables.nodes[other][1:])
    features = tables.features
    if features is not None:
        features = features.tolil() if sp.issparse(features) else features.copy()
        features[place] = features[other]
        features = features.tocsr() if sp.issparse(features) else features

    def another_list(one: Tables) -> EdgeLines:
        if not tables.directed:
            return one.edges
        kept = tuple(line for line in one.edges if line[0] != person)
        size = min(len(ids), max(1, len(one.edges) - len(kept)))
        targets = rng.choice(ids, size=size, replace=False).tolist()
        return (*kept, *one.links(person, (name for name in targets if name != person)))

    nodes = (*tables.nodes[:place], row, *tables.nodes[place + 1 :])
    return replace(tables.change_edges(another_list), nodes=nodes, features=features)


def _unlinked(tables: Tables, rng: np.random.Generator, count: int) -> tuple[str, ...]:
    """Return a person and up to ``count`` others, at least one, that are not linked to them."""
    linked = {frozenset(row[:2]) for row in tables.edges}
    ids = tables.ids
    for _ in range(10_000):
        size = min(count + 1, len(ids))
        person, *others = (ids[place] for place in rng.choice(len(ids), size, replace=False))
        free = [other for other in others if frozenset((person, other)) not in linked]
        if free:
            return person, *free
    raise InputError("`edges` must leave out a pair to add. Got a complete graph.")


def _write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def _write_features(folder: Path, features: Any) -> str:
    name = f"{FEATURES}.npz" if sp.issparse(features) else f"{FEATURES}.npy"
    with (folder / name).open("wb") as file:
        if sp.issparse(features):
            sp.save_npz(file, sp.csr_matrix(features))
        else:
            np.save(file, np.asarray(features, dtype=np.float32))
    return name
