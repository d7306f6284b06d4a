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
from gapgnn.privacy import Links, Records, Relation, Replace, auto_delta

SAFE_NOISE = "operating system entropy, float-safe grid"
FAST_NOISE = "fast float32 (experiment)"
SEEDED_NOISE = "seeded: NOT A PRIVATE RELEASE"
NO_NOISE = "none: no private data was read"
UNPROTECTED = "none: nothing is protected"
REAL_NOISE = (SAFE_NOISE, FAST_NOISE, SEEDED_NOISE)
NOISE_SOURCES = (*REAL_NOISE, NO_NOISE, UNPROTECTED)

# What is handed out: a trained model with its predictions, released rows alone, or trained weights
# alone; and what the first release of each is for.
PRODUCTS = {"model": "training", "rows": "fit", "weights": "training"}

# What is seen of a product without predictions.
RELEASED = {"rows": "the released rows", "weights": "the trained weights"}

# Of weights: what a prediction with them would read without noise.
READS_NEIGHBOURS = {
    "edge": (
        "Predictions that read neighbours: each reads exact edges of the graph that it is made on, "
        "without noise and without a charge."
    ),
    "node": (
        "Predictions: each reads the row of its own {entity} and, through the layers, the exact "
        "rows of neighbours, without noise and without a charge."
    ),
}

# What is protected, by relation.
PROTECTED = {
    "undirected": "all {links} between any two {entities} together (one undirected edge)",
    "directed": "all {links} from any one {entity} to any other together (one arc)",
    "add-remove": "any one {entity}'s record (features, label and adjacency list)",
    "replace": "any one {entity}'s record (features, label and adjacency list)",
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

_VOTES = (
    "Class codes (vectors of norm at most 1, centred at the class prior) of the training labels, "
    "divided by the root of the sender's out-degree."
)
MESSAGES = {
    "none": "Nothing: the method reads no edges.",
    "none released": (
        "Nothing: no hop was released. Of the adjacency lists only a noisy mean out-degree was "
        "released, which decided that."
    ),
    "features": "Rows computed from the features of each node, scaled to norm at most 1.",
    "given rows": (
        "Rows that the user gave, scaled to norm at most 1. What is promised holds only if none of "
        "them was computed from edges of the graph, other than from released rows."
    ),
    "given records": (
        "Rows that the user gave, scaled to norm at most 1. What is promised holds only if each of "
        "them was computed from that {entity}'s own record and from released values: not from "
        "edges, and not with means, bounds or weights that were learned from several {entities} "
        "without noise."
    ),
    "labels": (
        "Class codes (vectors of norm at most 1, centred at the class prior) of the training "
        "labels, and for all other nodes the mean code under their class posterior, as far as a "
        "network trained before the hop gives one."
    ),
    "posteriors": (
        "Class codes (vectors of norm at most 1, centred at the class prior) of the training "
        "labels, and for all other nodes the mean code under their class posterior: in the first "
        "hop that of the feature models, then that of the classifier trained on the hops before."
    ),
    "own messages": (
        "Rows that a function of the user's own computes from features, labels and released rows, "
        "divided by a bound on their norm that is checked before each release. What is promised "
        "holds only if the function reads no edges by other ways."
    ),
    "votes": _VOTES,
    "votes and answers": (
        f"{_VOTES} In a second hop, the mean code that every other {{entity}} derives from the "
        "released rows of their neighbours, divided likewise."
    ),
    "perturbed": "Rows computed from features, along edges that had been randomised before.",
}

# Of these, what travels in noisy hops.
IN_HOPS = (
    *("features", "given rows", "given records"),
    *("labels", "posteriors", "own messages", "votes", "votes and answers"),
)
SYMMETRISED = (
    "They travel along every arc and against it, so one arc moves two rows and the noise is scaled "
    "to sqrt(2) for it (twice that for both arcs of a pair); arcs from a node to itself are left "
    "out."
)

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
    "own neighbours": (
        "{an_entity}'s own neighbours, read for that {entity}'s prediction",
        "for that {entity} alone, with labels that are public at this level; never stored",
        "for that {entity} alone, with labels that were released; never stored",
    ),
    "prediction": (
        "predictions for the graph of training",
        "the released hops are kept and used again, never drawn again",
        "the released hops are kept and used again, never drawn again",
    ),
    "rows sent": (
        "hop 0, the rows that were sent",
        "they are public at this level, or follow from what is",
        "neither released nor saved",
    ),
    "again": (
        "asking for the rows of the same graph again",
        "the released rows are kept and used again, never drawn again",
        "the released rows are kept and used again, never drawn again",
    ),
    "module checks": (
        "checks of the module before the charge",
        "they run on made-up rows and arcs",
        "they run on made-up rows and arcs",
    ),
    "own program": (
        "what the program of the author computes from released rows",
        "post-processing of what was charged, with features and labels that are public at this "
        "level",
        "post-processing of what was charged",
    ),
    "own pieces": (
        "networks and messages of the user's own code",
        "read features, labels and released rows, which are public at this level: code that reads "
        "edges by other ways breaks the promise",
        "read the record of one {entity} at a time, and are trained by DP-SGD, which is charged: "
        "code that reads other records by other ways breaks the promise",
    ),
    "features": (
        "predictions, on any graph",
        "read features only, which are public at this level",
        "read the features of the {entity} asked about only, with weights that were charged",
    ),
}


def travelled(messages: str, *, is_symmetrised: bool = False) -> str:
    """Say what travelled along the edges: by a known name, or as a method's own sentence.

    >>> travelled("none"), travelled("One vote of each training node.")
    ('Nothing: the method reads no edges.', 'One vote of each training node.')
    """
    if messages.endswith("."):
        return messages
    sentence = MESSAGES[check_choice("messages", messages, MESSAGES)]
    return f"{sentence} {SYMMETRISED}" if is_symmetrised else sentence


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


def at_most(number: float) -> str:
    """Write a bound with six digits, never smaller than it is.

    >>> at_most(7.42304206), at_most(3.9999999995), at_most(4.0), at_most(1e-07)
    ('7.42305', '4', '4', '1e-07')
    """
    exact = Decimal(repr(float(number)))
    if not exact:
        return "0"
    digits = Decimal(1).scaleb(exact.adjusted() - 5)
    return f"{float(exact.quantize(digits, rounding=ROUND_CEILING)):.6g}"


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


def protected(relation: Relation, *, edge_types: Sequence[str] = (), protects: str = "") -> str:
    """Say what a relation protects, with placeholders for people and edges.

    Args:
        relation: which graphs are neighbours.
        edge_types: names of the edge types, where there are several.
        protects: ``each`` or ``any`` of them.

    >>> protected(Links.of(1, are_arcs=False))
    'all {links} between any two {entities} together (one undirected edge)'
    >>> protected(Links.of(5, are_arcs=False))[:45]
    "up to 5 of one {entity}'s undirected edges (e"
    """
    listed = ", ".join(edge_types)
    if not isinstance(relation, Links):
        what = PROTECTED[relation.name]
        own = f"adjacency lists of all edge types ({listed})"
        return what.replace("adjacency list", own) if edge_types else what
    if relation.count == 1:
        what = PROTECTED[relation.name]
    else:
        what = (SEVERAL_ARCS if relation.are_arcs else SEVERAL_EDGES).format(count=relation.count)
    if edge_types:
        what += (TYPES_OF if relation.count == 1 else TYPES_OF_SEVERAL)[protects].format(listed)
    return what


def charged_for(
    epsilon: float,
    delta: float,
    relation: Relation,
    *,
    edge_types: Sequence[str] = (),
    protects: str = "",
) -> str:
    """Say what a release is charged and for what, with placeholders for people and edges.

    >>> charged_for(3.999, 1e-7, Links.of(1, are_arcs=True))[:47]
    'epsilon 4.00, delta 1e-07 (directed) for all {l'
    """
    what = protected(relation, edge_types=edge_types, protects=protects).rstrip(",")
    return f"epsilon {rounded_up(epsilon)}, delta {delta:.3g} ({relation}) for {what}"


def hidden(
    relation: Relation, place: str, *, edge_types: Sequence[str] = (), protects: str = ""
) -> str:
    """Say what is hidden, of which edge types where there are several.

    >>> hidden(Links.of(1, are_arcs=True), "it")
    'whether or not all {links} from any one {entity} to any other together (one arc) are in it'
    >>> undirected = Links.of(1, are_arcs=False)
    >>> hidden(undirected, "it", edge_types=("calls", "visits"), protects="any")[54:]
    'together (one undirected edge) of one edge type (calls, visits), whichever, are in it'
    """
    what = protected(relation, edge_types=edge_types, protects=protects)
    if relation == Replace():
        return f"whether {what} is the true one or another"
    are = "is" if isinstance(relation, Records) else "are"
    return f"whether or not {what} {are} in {place}"


def first_alone(epsilon: float | None, delta: float | None, *, product: str = "model") -> str:
    """Say what the first of several releases promises by itself.

    >>> first_alone(4.0, 1e-7)
    'The training alone promises epsilon 4.00, delta 1e-07.'
    """
    first = "first release" if product == "rows" else "training"
    return f"The {first} alone promises {price(epsilon, delta)}."


def promise(
    relation: Relation,
    epsilon: float | None,
    delta: float | None,
    *,
    edge_types: Sequence[str] = (),
    protects: str = "",
    own: str = "",
    product: str = "model",
    releases: int = 1,
) -> str:
    """Return the guarantee as one plain sentence, with placeholders for people and edges.

    Up to an epsilon of 1 it speaks of learning almost the same. Above that "almost" would be
    untrue, so it states the factor by which odds can move. Of several releases it speaks of what is
    in the graphs of all of them, at the epsilon that they come to together.

    >>> promise(Links.of(1, are_arcs=False), 4.0, 1e-6)[-50:]
    'at most a factor of 55: epsilon 4.00, delta 1e-06.'
    >>> directed = Links.of(1, are_arcs=True)
    >>> "are in the graphs of both releases" in promise(directed, 9, 1e-6, releases=2)
    True
    """
    if relation.level == "none" or epsilon is None or delta is None:
        what = "a row" if product == "rows" else "the model"
        return f"Nothing is promised: {what} may reveal anything about the graph."
    data = "the graph" if isinstance(relation, Links) else "the data"
    seen = "this model and its predictions"
    if product in RELEASED:
        seen = RELEASED[product]
    elif isinstance(relation, Links) and own == "record":
        concerned = "two {entities}" if relation.count == 1 else "{entities}"
        seen = f"this model and the predictions for everybody but the {concerned} concerned"
    elif isinstance(relation, Records) and own != "nothing":
        seen = "this model and the predictions for everybody else"
    if releases > 1:
        data = data.replace("graph", "graphs")
        data += f" of {'both' if releases == 2 else f'all {releases}'} releases"
    it = "them" if data.startswith("the graphs") else "it"
    place = it if 0 < epsilon <= 1 else data
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


def covered(relation: Relation, *, notion: str | None) -> tuple[str, ...]:
    """Say who is covered.

    >>> covered(Links.of(1, are_arcs=True), notion=None)[0]
    'Every single arc u->v, present or absent.'
    """
    if relation.level == "none":
        return ("Nobody.",)
    if isinstance(relation, Links):
        links = relation
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
    change = "exchanged for another record" if relation == Replace() else "withdrawn or added"
    lines = [
        f"Every {{entity}}'s record (features, label and adjacency list), if it is {change}: in "
        "the model and in everything released on all other nodes."
    ]
    if notion == "strict":
        lines.append(
            "No adjacency list had to be cut, so this also holds in the strict sense: the {entity} "
            "may vanish from everybody else's list too."
        )
    return tuple(lines)


def covered_edges(
    relation: Relation, edge_types: Sequence[str], protects: str, is_weighted: bool
) -> tuple[str, ...]:
    """Say what is covered of edge types and weights of edges.

    >>> covered_edges(Links.of(1, are_arcs=False), ("calls", "visits"), "each", False)
    ('One edge of each type (calls, visits), all at once.',)
    >>> covered_edges(Links.of(5, are_arcs=False), ("calls", "visits"), "any", False)
    ("Up to 5 of one {entity}'s edges, those of all edge types (calls, visits) counted together.",)
    """
    if relation.level == "none":
        return ()
    lines = []
    if edge_types and isinstance(relation, Links):
        names = ", ".join(edge_types)
        each = f"One edge of each type ({names}), all at once."
        any_type = f"One edge of one type ({names}), whichever."
        count = relation.count
        if count > 1:
            each = f"Up to {count} of one {{entity}}'s edges of each type ({names}), all at once."
            any_type = (
                f"Up to {count} of one {{entity}}'s edges, those of all edge types ({names}) "
                "counted together."
            )
        lines.append(each if protects == "each" else any_type)
    elif edge_types:
        lines.append(f"The record's adjacency lists of all edge types ({', '.join(edge_types)}).")
    if is_weighted:
        lines.append(
            "The amount of an edge, as part of it: an edge may come, go or have another amount."
        )
    return tuple(lines)


def not_covered_edges(
    relation: Relation,
    edge_types: Sequence[str],
    protects: str,
    *,
    every_type_epsilon: float | None,
) -> tuple[str, ...]:
    """Say what is not covered where there are several edge types, and its own epsilon.

    >>> two = ("calls", "visits")
    >>> undirected = Links.of(1, are_arcs=False)
    >>> not_covered_edges(undirected, two, "any", every_type_epsilon=1.836)[0][-45:]
    'epsilon for all these edges together is 1.84.'
    """
    if not isinstance(relation, Links) or not edge_types or protects != "any":
        return ()
    stated = (
        "is larger than stated"
        if every_type_epsilon is None
        else f"is {rounded_up(every_type_epsilon)}"
    )
    count, names = relation.count, ", ".join(edge_types)
    if count > 1:
        return (
            f"Up to {count} of one {{entity}}'s edges of every type at once: what is covered "
            f"counts all edge types together. Epsilon for {count} of each type ({names}) {stated}.",
        )
    return (
        f"Edges of several edge types at once: where two {{entities}} are connected by every type "
        f"({names}), epsilon for all these edges together {stated}.",
    )


# At edge level, where a prediction reads the neighbours of its own person (section 1).
OWN_NEIGHBOURS = (
    "{An_entity}'s prediction reads that {entity}'s exact neighbours: it is for that {entity}, "
    "or for whoever may know them. What everybody else gets, all together, hides an edge from all "
    "but the two {entities} it connects (joint differential privacy). Everybody's predictions, "
    "handed out together, would reveal neighbours."
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
        "{An_entity}'s prediction also reads that {entity}'s features and own neighbours: it is "
        "for that {entity}, or for whoever may know both. What everybody else gets, all together, "
        "hides the record (joint differential privacy). Everybody's probabilities beside the "
        "released rows would let a reader solve for neighbours."
    ),
}


def covered_own(level: str, own: str) -> tuple[str, ...]:
    """Say what a prediction reads of its own person, and so who may see it.

    >>> covered_own("edge", "record")[0][:63]
    "{An_entity}'s prediction reads that {entity}'s exact neighbours"
    """
    if not own:
        return ()
    return (OWN_SENTENCES[own],) if level == "node" else (OWN_NEIGHBOURS,)


def not_covered(
    relation: Relation, *, notion: str | None, own: str = "", product: str = "model"
) -> tuple[str, ...]:
    """Say who and what is not covered.

    >>> not_covered(Links.of(1, are_arcs=True), notion=None)[0]
    'Features and labels: they are public at this level, and so is who is in the graph.'
    """
    if relation.level == "none":
        return ("Everybody: features, labels and edges are unprotected.",)
    if isinstance(relation, Links):
        links = relation
        several = (
            "Several edges at once, beyond what group privacy gives: k of them at k times epsilon "
            "and k e^((k - 1) epsilon) times delta."
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
        if product == "weights":
            lines.append(READS_NEIGHBOURS["edge"])
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
    has_row = (
        "Which ids have a row in a saved model: it is treated as public. Where it is not, keep the "
        "folder and hand out other {entities_own} predictions only."
    )
    if product == "rows":
        about_own = (
            "{An_entity}'s own released row, which holds what others send to that {entity}: "
            "without that {entity} there is none."
        )
        has_row = "Which ids have a released row: it is treated as public."
    lines = [*([] if own == "nothing" else [about_own]), has_row]
    if product == "weights":
        lines = [READS_NEIGHBOURS["node"]]
    if notion == "own record":
        lines.append(
            "Entries that name {an_entity} in other {entities_own} adjacency lists: they belong to "
            "those {entities} and stay when the {entity} leaves, contributing nothing."
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
        num_train: number of training people, as it is used; 0 where nobody's role matters.
        train_size_is_declared: whether it was given and not counted.
        delta_is_auto: whether delta follows from the number of protected entities.
        is_delta_compared: whether a stated delta was compared with that number, for a warning.
        inferred: what was read from the data and not declared.
        has_schema: whether a schema declares columns and classes.
        max_degree: the bound on the out-degree, where adjacency lists were cut.
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
    if num_train:
        rows.append((NUM_TRAIN, f"{num_train}: {counted}"))
    rows += [
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
    if auto_delta(entities) >= auto_delta(FEW_ENTITIES):
        lines.append(
            f"There are at most {FEW_ENTITIES} protected entities: too few to promise anything "
            "useful. Noise that hides one of so few hides all of them."
        )
    return lines


def relation_warnings(
    relation: Relation, *, is_symmetric: bool, undirected_epsilon: float | None
) -> list[str]:
    """Warn where one arc is protected and readers will think of an undirected edge.

    >>> directed = Links.of(1, are_arcs=True)
    >>> relation_warnings(directed, is_symmetric=True, undirected_epsilon=5.887)[0][-26:]
    'under undirected, is 5.89.'
    """
    if not is_symmetric or not isinstance(relation, Links) or not relation.are_arcs:
        return []
    stated = (
        "is larger than stated"
        if undirected_epsilon is None
        else f"is {rounded_up(undirected_epsilon)}"
    )
    if relation.count > 1:
        k = relation.count
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


def chosen_from(settings: int, number: str) -> str:
    """Return what a card says of a model that was selected among candidates.

    Args:
        settings: number of settings that candidates were drawn from.
        number: the distribution of the number of candidates.
    """
    return (
        f"This is the best of a random number of candidates ({number}) with settings drawn from "
        f"{settings}, by their scores on validation nodes. Its price is that of the whole "
        "selection. It covers neither the other candidates nor their number, which must not be "
        "handed out."
    )


def chosen_by_pilots(settings: int) -> str:
    """Return what a card says of a model whose setting was chosen by pilots."""
    return (
        f"Its setting was chosen from {settings} by a pilot of each, on validation nodes. The "
        "price is that of all pilots and of this fit together."
    )
