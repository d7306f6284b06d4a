"""The sentences of the privacy card: what each level and relation promises, and what it does not.

Everything here is chosen by public facts of the run. No sentence holds a number read from the data
(privacy page, sections 1, 2 and 7). What sentences call people and edges are placeholders, which
:class:`gapgnn.graph.Wording` fills in. A link is what the user has one row of the edge table for;
all links of a pair are one edge, and it is edges that relations count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Decimal

from gapgnn.errors import check_choice
from gapgnn.privacy import RELATIONS_OF_LEVEL, auto_delta, links_of

SAFE_NOISE = "operating system entropy, float-safe grid"
FAST_NOISE = "fast float32 (experiment)"
SEEDED_NOISE = "seeded: NOT A PRIVATE RELEASE"
NO_NOISE = "none: no private data was read"
UNPROTECTED = "none: nothing is protected"
REAL_NOISE = (SAFE_NOISE, FAST_NOISE, SEEDED_NOISE)
NOISE_SOURCES = (*REAL_NOISE, NO_NOISE, UNPROTECTED)

# What is protected, by relation.
PROTECTED = {
    "undirected": "all {links} between any two {entities} together (one undirected edge)",
    "directed": "all {links} from any one {entity} to any other together (one arc)",
    "add-remove": "any one {entity}'s record (features, label and own out-list)",
    "replace": "any one {entity}'s record (features, label and own out-list)",
}
SEVERAL_EDGES = (
    "up to {count} of one {{entity}}'s undirected edges (each: all {{links}} with one other "
    "{{entity}})"
)
SEVERAL_ARCS = (
    "up to {count} of the arcs that one {{entity}} has to others (each: all {{links}} to one other "
    "{{entity}})"
)

# What one of the entities is where there are several edge types.
PROTECTS = ("each", "any")
TYPES_OF = {
    "each": " of each edge type at once ({})",
    "any": " of one edge type ({}), whichever,",
}
TYPES_OF_SEVERAL = {**TYPES_OF, "any": ", all edge types ({}) taken together,"}

_POSTERIORS = (
    "Class codes (vectors of norm at most 1, centred at the class prior) of the training labels, "
    "and for all other nodes the mean code under their class posterior: in the first hop that of "
    "the feature models, then that of the classifier trained on the hops before."
)
MESSAGES = {
    "none": "Nothing: the method reads no edges.",
    "none released": (
        "Nothing: no hop was released. Of the adjacency lists only a noisy mean out-degree was "
        "released, which decided that."
    ),
    "features": "Rows computed from the features of each node, scaled to norm at most 1.",
    "labels": (
        "Class codes (vectors of norm at most 1, centred at the class prior) of the training "
        "labels, and for all other nodes the mean code under their class posterior, as far as a "
        "network trained before the hop gives one."
    ),
    "posteriors": _POSTERIORS,
    "posteriors both ways": (
        f"{_POSTERIORS} They travel along every arc and against it, so one arc moves two rows and "
        "the noise is scaled to sqrt(2) for it (twice that for both arcs of a pair); arcs from a "
        "node to itself are left out."
    ),
    "votes": (
        "Class codes (vectors of norm at most 1, centred at the class prior) of the training "
        "labels, divided by the root of the sender's out-degree; where there is a second hop, also "
        "the mean code that every other {entity} derives from the released rows of their "
        "neighbours."
    ),
    "perturbed": "Rows computed from features, along edges that had been randomised before.",
}

# Of these, what travels in noisy hops.
IN_HOPS = ("features", "labels", "posteriors", "posteriors both ways", "votes")

# Why the predictions of a method for graphs do not depend on any edge.
EDGES_UNREAD = {
    "no hop": (
        "This model reads no edges: with this budget and so short adjacency lists a noisy sum over "
        "neighbours would be noise, so no hop was released and the rest of the budget went into "
        "training on features and labels. Predictions are those of a features-only model, and "
        "predicting on other graphs is free of charge."
    ),
    "weight 0": (
        "This model reads no edges: on validation labels the released hops predicted no better "
        "than features alone, so their mixing weight is 0. What the hops cost was spent on finding "
        "that out. Predictions are those of a features-only model, and predicting on other graphs "
        "is free of charge (except with own=record, which reads the {entity}'s own neighbours)."
    ),
}

# Per step: why it costs nothing at edge level, and at node level. None: it is charged there, or
# not done at all, and so has no row (privacy page, section 2).
STEPS: dict[str, tuple[str, str, str | None]] = {
    "preparation": (
        "classes, label encoding, who trains, validates and tests",
        "no edges are read",
        "classes are declared, and a role is a public hash of (seed, id) or given with the record",
    ),
    "training": (
        "training on features and labels",
        "reads features and labels only, which are public at this level",
        None,
    ),
    "statistics": (
        "batch norm and feature statistics",
        "read features only, which are public at this level",
        None,
    ),
    "hop0": (
        "hop 0, a node's own features as the encoder sees them",
        "reads features only, which are public at this level",
        "never written to disk or shared: recomputed from the asker's features",
    ),
    "classifier": (
        "training the classifier on the released hops",
        "post-processing of what was charged, with labels that are public at this level",
        None,
    ),
    "selection": (
        "choosing the best epoch on validation labels",
        "post-processing of what was charged, with labels that are public at this level",
        None,
    ),
    "auto threshold": (
        "choosing the threshold on validation labels",
        "post-processing of what was charged, with labels that are public at this level",
        None,
    ),
    "rate threshold": (
        "the threshold that as many predictions exceed as nodes are of the class",
        "post-processing of what was charged, with rates that are declared or public at this level",
        None,
    ),
    "prior threshold": (
        "the threshold, the rate of the class",
        "declared, or counted among labels that are public at this level",
        "declared: no label is counted, and the answer about {an_entity} follows from the "
        "prediction about that {entity} alone",
    ),
    "perturbed": (
        "training, batch statistics and predictions along the released edges",
        "post-processing of what was charged, with features and labels that are public at this "
        "level; the released edges are never drawn again",
        None,
    ),
    "own list": (
        "{an_entity}'s own list, read for that {entity}'s prediction",
        "for that {entity} alone, with labels that are public at this level; never stored",
        "for that {entity} alone, with labels that were released; never stored",
    ),
    "prediction": (
        "predictions for the graph of training",
        "the released hops are kept and used again, never drawn again",
        "the released hops are kept and used again, never drawn again",
    ),
    "features": (
        "predictions, on any graph",
        "read features only, which are public at this level",
        "read the features of the {entity} asked about only, with weights that were charged",
    ),
}


def travelled(messages: str) -> str:
    """Say what travelled along the edges: of a known kind, or as a method's own sentence.

    >>> travelled("none"), travelled("One vote of each training node.")
    ('Nothing: the method reads no edges.', 'One vote of each training node.')
    """
    if messages.endswith("."):
        return messages
    return MESSAGES[check_choice("messages", messages, MESSAGES)]


def rounded_up(number: float) -> str:
    """Write an epsilon or delta with few digits, never smaller than it is.

    >>> rounded_up(1.0), rounded_up(0.99612), rounded_up(1e-6), rounded_up(0.00123)
    ('1.00', '1.00', '1e-06', '0.0013')
    """
    exact = Decimal(repr(float(number)))
    if exact >= Decimal("0.1"):
        return str(exact.quantize(Decimal("0.01"), rounding=ROUND_CEILING))
    if exact == 0:
        return "0"
    digits = Decimal(1).scaleb(exact.adjusted() - 1)
    return f"{float(exact.quantize(digits, rounding=ROUND_CEILING)):.2g}"


def percent(share: float) -> str:
    """Write a share in percent, rounded up, and never as certainty where it is none.

    >>> percent(0.5), percent(0.7311), percent(0.99999), percent(1.0), percent(0.00123)
    ('50 %', '73.2 %', '99.999 %', '100 %', '0.13 %')
    """
    exact = Decimal(repr(100 * share))
    for digits in ("0.1", "0.01", "0.001", "0.0001")[share < 0.01 :]:
        # What the last digits of a float add must not push 50 to 50.1.
        shown = (exact - Decimal("1e-9")).quantize(Decimal(digits), rounding=ROUND_CEILING)
        if shown < 100 or share >= 1:
            return f"{shown.normalize():f} %"
    return "nearly 100 %"


def price(epsilon: float | None, delta: float | None) -> str:
    """Write the two numbers of a guarantee.

    >>> price(1.0, 1e-6)
    'epsilon 1.00, delta 1e-06'
    """
    if epsilon is None or delta is None:
        return "no epsilon"
    return f"epsilon {rounded_up(epsilon)}, delta {rounded_up(delta)}"


def protected(relation: str) -> str:
    """Say what a relation protects, with placeholders for people and edges.

    >>> protected("undirected")
    'all {links} between any two {entities} together (one undirected edge)'
    >>> protected("5-edges")[:45]
    "up to 5 of one {entity}'s undirected edges (e"
    """
    if relation in PROTECTED:
        return PROTECTED[relation]
    links = links_of(relation)
    return (SEVERAL_ARCS if links.are_arcs else SEVERAL_EDGES).format(count=links.count)


def hidden(relation: str, place: str, *, edge_types: Sequence[str] = (), protects: str = "") -> str:
    """Say what is hidden, of which edge types where there are several.

    >>> hidden("directed", "it")
    'whether or not all {links} from any one {entity} to any other together (one arc) are in it'
    >>> hidden("undirected", "it", edge_types=("calls", "visits"), protects="any")[54:]
    'together (one undirected edge) of one edge type (calls, visits), whichever, are in it'
    """
    listed, what = ", ".join(edge_types), protected(relation)
    if relation in RELATIONS_OF_LEVEL["node"]:
        if edge_types:
            what = what.replace("own out-list", f"own out-lists of all edge types ({listed})")
        if relation == "replace":
            return f"whether {what} is the true one or another"
        return f"whether or not {what} is in {place}"
    if edge_types:
        of_types = TYPES_OF if relation in PROTECTED else TYPES_OF_SEVERAL
        what += of_types[protects].format(listed)
    return f"whether or not {what} are in {place}"


def composed(count: int, epsilon: float | None, delta: float | None) -> str:
    """Return what all releases of a model come to for what is in the graphs of all of them.

    >>> print(composed(4, 9.086, 1e-7))
    That is the training alone. This model made 4 releases; about what is in all of their graphs \
all of them together promise epsilon 9.09, delta 1e-07.
    """
    return (
        f"That is the training alone. This model made {count} releases; about what is in all of "
        f"their graphs all of them together promise {price(epsilon, delta)}."
    )


def promise(
    level: str,
    relation: str,
    epsilon: float | None,
    delta: float | None,
    *,
    edge_types: Sequence[str] = (),
    protects: str = "",
    own: str = "",
) -> str:
    """Return the guarantee as one plain sentence, with placeholders for people and edges.

    Up to an epsilon of 1 it speaks of learning almost the same. Above that "almost" would be
    untrue, so it states the factor by which odds can move.

    >>> promise("edge", "undirected", 4.0, 1e-6)[-50:]
    'at most a factor of 55: epsilon 4.00, delta 1e-06.'
    """
    if level == "none" or epsilon is None or delta is None:
        return "Nothing is promised: the model may reveal anything about the graph."
    if level == "edge" and own == "record":
        seen, data = (
            "this model and the predictions for everybody but the "
            f"{'two ' * (links_of(relation).count == 1)}{{entities}} concerned",
            "the graph",
        )
    elif level == "edge" or own == "nothing":
        seen, data = (
            "this model and its predictions",
            "the graph" if level == "edge" else "the data",
        )
    else:
        seen, data = "this model and the predictions for everybody else", "the data"
    place = "it" if 0 < epsilon <= 1 else data
    what = hidden(relation, place, edge_types=edge_types, protects=protects)
    if epsilon == 0:
        return f"{seen[0].upper()}{seen[1:]} are the same {what}: epsilon 0."
    if epsilon <= 1:
        return (
            f"Anyone who sees {seen} learns almost the same about {data} {what}: "
            f"{price(epsilon, delta)}."
        )
    return (
        f"Seeing {seen} shifts the odds on {what} by at most a factor of "
        f"{odds(epsilon)}: {price(epsilon, delta)}."
    )


def odds(epsilon: float) -> str:
    """Return e^epsilon, rounded up to two digits.

    >>> odds(1.0), odds(8.0), odds(1000.0)
    ('2.8', '3000', 'e^1000')
    """
    if epsilon > 50:
        return f"e^{epsilon:g}"
    exact = Decimal(repr(math.exp(epsilon)))
    digits = Decimal(1).scaleb(exact.adjusted() - 1)
    return f"{exact.quantize(digits, rounding=ROUND_CEILING):f}"


# Rows of the edge table that connect the same two are one edge (their amounts are added up).
ROWS_OF_EDGE = (
    "All {links} between the same two {entities} together: every row of the edge table that names "
    "the two of them, in either order, is part of one edge."
)
ROWS_OF_ARC = (
    "All {links} from one {entity} to the same other {entity} together: every row of the edge "
    "table that names the two of them in this order is part of one arc."
)


def covered(level: str, relation: str, *, notion: str | None) -> tuple[str, ...]:
    """Say who is covered.

    >>> covered("edge", "directed", notion=None)[0]
    'Every single arc u->v, present or absent.'
    """
    if level == "none":
        return ("Nobody.",)
    if level == "edge":
        links = links_of(relation)
        together = ROWS_OF_ARC if links.are_arcs else ROWS_OF_EDGE
        if links.count > 1:
            what = (
                f"{links.count} of the arcs that one {{entity}} has to others"
                if links.are_arcs
                else f"{links.count} of one {{entity}}'s undirected edges, both arcs of each"
            )
            whole = f"Up to {what}, present or not, whoever that {{entity}} is: all at once."
            return (whole, together)
        if not links.are_arcs:
            whole = "Every single undirected edge (both of its arcs), present or not."
            return (whole, together)
        return ("Every single arc u->v, present or absent.", together)
    change = "withdrawn or added" if relation == "add-remove" else "exchanged for another record"
    lines = [
        f"Every {{entity}}'s record (features, label and own out-list), if it is {change}: in the "
        "model and in everything released on all other nodes."
    ]
    if notion == "strict":
        lines.append(
            "No out-list had to be cut, so this also holds in the strict sense: the {entity} may "
            "vanish from everybody else's list too."
        )
    return tuple(lines)


def covered_edges(
    level: str, relation: str, edge_types: Sequence[str], protects: str, is_weighted: bool
) -> tuple[str, ...]:
    """Say what is covered of edge types and weights of edges.

    >>> covered_edges("edge", "undirected", ("calls", "visits"), "each", False)
    ('One edge of each type (calls, visits), all at once.',)
    >>> covered_edges("edge", "5-edges", ("calls", "visits"), "any", False)
    ("Up to 5 of one {entity}'s edges, those of all edge types (calls, visits) counted together.",)
    """
    if level == "none":
        return ()
    lines = []
    if edge_types and level == "edge":
        names = ", ".join(edge_types)
        each = f"One edge of each type ({names}), all at once."
        any_type = f"One edge of one type ({names}), whichever."
        count = links_of(relation).count
        if count > 1:
            each = f"Up to {count} of one {{entity}}'s edges of each type ({names}), all at once."
            any_type = (
                f"Up to {count} of one {{entity}}'s edges, those of all edge types ({names}) "
                "counted together."
            )
        lines.append(each if protects == "each" else any_type)
    elif edge_types:
        lines.append(f"The record's out-lists of all edge types ({', '.join(edge_types)}).")
    if is_weighted:
        lines.append(
            "The amount of an edge, as part of it: an edge may come, go or have another amount."
        )
    return tuple(lines)


def not_covered_edges(
    level: str,
    relation: str,
    edge_types: Sequence[str],
    protects: str,
    *,
    every_type_epsilon: float | None,
) -> tuple[str, ...]:
    """Say what is not covered where there are several edge types, and its own epsilon.

    >>> two = ("calls", "visits")
    >>> not_covered_edges("edge", "undirected", two, "any", every_type_epsilon=1.836)[0][-45:]
    'epsilon for all these edges together is 1.84.'
    """
    if level != "edge" or not edge_types or protects != "any":
        return ()
    stated = (
        "is larger than stated"
        if every_type_epsilon is None
        else f"is {rounded_up(every_type_epsilon)}"
    )
    count, names = links_of(relation).count, ", ".join(edge_types)
    if count > 1:
        return (
            f"Up to {count} of one {{entity}}'s edges of every type at once: what is covered "
            f"counts all edge types together. Epsilon for {count} of each type ({names}) {stated}.",
        )
    return (
        f"Edges of several edge types at once: where two {{entities}} are connected by every type "
        f"({names}), epsilon for all these edges together {stated}.",
    )


# At edge level, where a prediction reads its own person's list (section 1).
OWN_LIST = (
    "{An_entity}'s prediction reads that {entity}'s exact list: it is for that {entity}, or for "
    "whoever may know the list. What everybody else gets, all together, hides an edge from all but "
    "the two {entities} it connects (joint differential privacy). Everybody's predictions, handed "
    "out together, would tell lists."
)

# What a prediction reads of its own person at node level, and who may see it (section 1).
OWN = ("nothing", "features", "record")
OWN_SENTENCES = {
    "nothing": (
        "Nobody's prediction reads anything of its own {entity} but what was released with noise: "
        "all of them may be handed out."
    ),
    "features": (
        "{An_entity}'s prediction also reads that {entity}'s features: it is for that {entity}, or "
        "for whoever may know them. What everybody else gets, all together, hides the record "
        "(joint differential privacy)."
    ),
    "record": (
        "{An_entity}'s prediction also reads that {entity}'s features and own list: it is for that "
        "{entity}, or for whoever may know both. What everybody else gets, all together, hides the "
        "record (joint differential privacy). Everybody's probabilities beside the released rows "
        "would let a reader solve for lists."
    ),
}


def covered_own(level: str, own: str) -> tuple[str, ...]:
    """Say what a prediction reads of its own person, and so who may see it.

    >>> covered_own("edge", "record")[0][:57]
    "{An_entity}'s prediction reads that {entity}'s exact list"
    """
    if not own:
        return ()
    return (OWN_SENTENCES[own],) if level == "node" else (OWN_LIST,)


def not_covered(level: str, relation: str, *, notion: str | None, own: str = "") -> tuple[str, ...]:
    """Say who and what is not covered.

    >>> not_covered("none", "none", notion=None)
    ('Everybody: features, labels and edges are unprotected.',)
    """
    if level == "none":
        return ("Everybody: features, labels and edges are unprotected.",)
    if level == "edge":
        links = links_of(relation)
        several = (
            "Several edges at once, beyond what group privacy gives: k of them at k times epsilon."
        )
        if links.count > 1:
            several = (
                f"More than {links.count} of one {{entity}}'s edges, and edges of several "
                "{entities} at once, beyond what group privacy gives. All that concerns "
                "{an_entity} is covered at node level."
            )
        lines = [
            "Features and labels: they are public at this level, and so is who is in the graph.",
            several,
        ]
        if links.are_arcs:
            lines.append(
                "An undirected edge stored as two arcs: it counts as two."
                if links.count == 1
                else "Arcs that others have to that {entity}: each is one of theirs."
            )
        if own == "record":
            lines.append(
                "{An_entity}'s own edges, from whoever sees the prediction about that {entity}: it "
                "is computed from them."
            )
        return tuple(lines)
    about_own = (
        "{An_entity}'s own row and own predicted label: they are computed from that {entity}'s own "
        "features, and nothing hides {an_entity} from the prediction about themselves."
    )
    if own == "record":
        about_own = (
            "{An_entity}'s own predicted label: it is computed from that {entity}'s own features "
            "and list, and nothing hides {an_entity} from the prediction about themselves."
        )
    lines = [
        *([] if own == "nothing" else [about_own]),
        "Which ids have a row in a saved model: it is treated as public. Where it is not, keep the "
        "folder and hand out other {entities_own} predictions only.",
    ]
    if notion == "own record":
        lines.append(
            "Entries that name {an_entity} in other {entities_own} out-lists: they belong to those "
            "{entities} and stay when the {entity} leaves, contributing nothing."
        )
    return tuple(lines)


def not_charged(level: str, steps: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return what was not charged, and why, for the steps that a method has taken.

    >>> not_charged("edge", ["preparation"])
    (('classes, label encoding, who trains, validates and tests', 'no edges are read'),)
    """
    if level == "none":
        return (("every step", "nothing is protected at this level"),)
    taken = [check_choice("steps", step, STEPS) for step in steps]
    rows = []
    for name, (what, at_edge, at_node) in STEPS.items():
        why = at_edge if level == "edge" else at_node
        if name in taken and why is not None:
            rows.append((what, why))
    return tuple(rows)


# The public fact that declares how many train.
NUM_TRAIN = "number of training {entities}"


def public_facts(
    level: str,
    *,
    num_train: int,
    train_size_is_declared: bool,
    delta_is_auto: bool,
    inferred: Iterable[str],
    has_schema: bool,
    max_degree: int | None,
    is_delta_compared: bool = False,
    edge_types: Sequence[str] = (),
    weight_bounds: Sequence[tuple[float, float] | None] = (),
) -> tuple[tuple[str, str], ...]:
    """Return every fact of the data that a release takes to be public, and where it came from.

    Nothing else that was read from the data may show in what leaves (privacy page, sections 2
    and 9).

    Args:
        level: of the release.
        num_train: number of training people, as it is used.
        train_size_is_declared: whether it was given and not counted.
        delta_is_auto: whether delta follows from the number of protected entities.
        is_delta_compared: whether a stated delta was compared with that number, for a warning.
        inferred: what was read from the data and not declared.
        has_schema: whether a schema declares columns and classes.
        max_degree: the bound that out-lists were cut to.
        edge_types: the names of several edge types.
        weight_bounds: of the weights of each type.

    >>> facts = public_facts("node", num_train=12000, train_size_is_declared=False,
    ...                      delta_is_auto=True, inferred=(), has_schema=True, max_degree=100)
    >>> facts[1]
    ('number of training {entities}', '12000: counted and rounded to two digits')
    """
    if level == "none":
        return (("everything", "nothing is protected at this level"),)
    read = set(inferred)
    origin = {
        name: "read from the data, not declared" if name in read else "declared"
        for name in ("columns", "classes", "direction")
    }
    if has_schema:
        origin["columns"] = origin["classes"] = "declared in the schema"
    rows = [("options and seed of this run", "chosen by whoever ran it")]
    if edge_types:
        rows.append(("edge types", f"{', '.join(edge_types)}: given by name"))
    for name, bounds in zip(edge_types or ("edges",), weight_bounds, strict=False):
        if bounds is not None:
            rows.append(
                (f"bounds of the amounts of {name}", f"{bounds[0]:g} to {bounds[1]:g}: declared")
            )
    follows = "whether the stated delta is warned of follows from it" if is_delta_compared else ""
    if delta_is_auto:
        follows = "delta follows from it"
    if level == "edge":
        rows += [
            ("who is in the graph, with features, labels and roles", "public at this level"),
            ("whether edges have a direction", origin["direction"]),
        ]
        if follows:
            rows.append(("order of magnitude of the number of edges", follows))
        return tuple(rows)
    counted = "counted and rounded to two digits"
    if train_size_is_declared:
        counted = "declared"
    elif num_train < 100:
        counted = "counted, and exact: rounding to two digits changes no number below 100"
    rows += [
        (NUM_TRAIN, f"{num_train}: {counted}"),
        ("which ids have a row, and how ids are written", "the saved rows are named by them"),
        ("columns of the input, their bounds and categories", origin["columns"]),
        ("classes", origin["classes"]),
        ("whether edges have a direction", origin["direction"]),
    ]
    if follows:
        rows.append(("order of magnitude of the number of {entities}", follows))
    if max_degree is not None:
        rows.append((f"whether any list is longer than {max_degree}", "the notion follows from it"))
    return tuple(rows)


def noise_source(level: str, epsilon: float | None, noise: str, *, is_insecure: bool) -> str:
    """Say where the noise came from.

    >>> noise_source("edge", 1.0, "safe", is_insecure=True)
    'seeded: NOT A PRIVATE RELEASE'
    """
    check_choice("noise", noise, ("safe", "fast"))
    if level == "none":
        return UNPROTECTED
    if epsilon == 0:
        return NO_NOISE
    if is_insecure:
        return SEEDED_NOISE
    return SAFE_NOISE if noise == "safe" else FAST_NOISE


FEW_ENTITIES = 100


def delta_warnings(delta: float | None, entities: int | None) -> list[str]:
    """Warn of a delta that would allow publishing somebody outright, and of too few to hide among.

    Only the order of magnitude of the count decides, which is public: a warning must not tell
    whether one of them is there.

    >>> delta_warnings(1e-6, 1000), len(delta_warnings(0.01, 1000)), len(delta_warnings(1e-9, 9))
    ([], 1, 1)
    """
    if not delta or entities is None:
        return []
    lines = []
    # The largest power of ten that is at most 1 / entities.
    bound = 10 * auto_delta(entities)
    if delta > bound * (1 + 1e-9):
        lines.append(
            f"delta {delta:g} is above {bound:g}, the largest power of ten that is at most 1 / "
            "(number of protected entities): a mechanism that publishes some of them outright "
            "may meet it."
        )
    if auto_delta(entities) > auto_delta(FEW_ENTITIES):
        lines.append(
            f"There are at most {FEW_ENTITIES} protected entities: too few to promise anything "
            "useful. Noise that hides one of so few hides all of them."
        )
    return lines


def relation_warnings(
    relation: str, *, is_symmetric: bool, undirected_epsilon: float | None
) -> list[str]:
    """Warn where one arc is protected and readers will think of an undirected edge.

    >>> relation_warnings("directed", is_symmetric=True, undirected_epsilon=5.887)[0][-26:]
    'under undirected, is 5.89.'
    """
    if not is_symmetric or relation in ("none", "add-remove", "replace"):
        return []
    links = links_of(relation)
    if not links.are_arcs:
        return []
    stated = (
        "is larger than stated"
        if undirected_epsilon is None
        else f"is {rounded_up(undirected_epsilon)}"
    )
    if links.count > 1:
        k = links.count
        return [
            f"The graph is symmetric but {k} arcs are protected, not {k} undirected edges: epsilon "
            f"for {k} undirected edges of one {{entity}}, under {k}-edges, {stated}."
        ]
    return [
        "The graph is symmetric but one arc is protected, not one undirected edge: epsilon for all "
        f"{{links}} between two {{entities}}, under undirected, {stated}."
    ]


def ledger_warnings(
    epsilon: float | None, *, is_recorded: bool, is_limited: bool, repeats: int
) -> list[str]:
    """Warn of a release that no budget limits, and of several releases at once.

    >>> ledger_warnings(1.0, is_recorded=True, is_limited=True, repeats=1)
    []
    """
    if not epsilon:
        return []
    lines = []
    if not is_recorded:
        lines.append("This release is not recorded in a ledger.")
    elif not is_limited:
        lines.append(
            "No budget is set for these {entities}: the charge is recorded but not limited "
            "(`gapgnn ledger grant`)."
        )
    if repeats > 1:
        lines.append(
            f"{repeats} independent releases were made and charged; this card speaks of the first."
        )
    return lines
