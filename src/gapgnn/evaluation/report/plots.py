"""What each figure shows, whoever draws it: the paper's five, the attack, precision and recall.

A plot is a row of panels, a panel has lines over one axis and level lines for comparison. The files
for papers and the report's own drawings (:mod:`gapgnn.evaluation.report.figures`) are made from the
same description.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gapgnn.evaluation import shown_interval
from gapgnn.evaluation.grid import ATTACKS, FIGURES, LEVELS, METHODS, Record, title_of
from gapgnn.training import CURVE_RECALLS, Ranking


@dataclass(frozen=True)
class Style:
    """How a line looks; marker and dashes tell lines apart where colour is not seen.

    Dashes are lengths on and off, none for a full line; a reference is a thinner line.
    """

    colour: str
    marker: str
    dashes: tuple[float, ...]
    level_dashes: tuple[float, ...]


STYLES = (
    Style("#0b5cad", "o", (), (1, 2)),
    Style("#b93a0b", "D", (), (4, 1.5)),
    Style("#1b7a4b", "s", (6, 2), (5, 1.5, 1, 1.5)),
    Style("#7b3fa0", "^", (2, 1.5), (8, 3)),
    Style("#5b5b5b", "v", (8, 2, 2, 2), (1, 1)),
    Style("#8a6100", "P", (4, 1, 1, 1), (2, 4)),
    Style("#a3195b", "X", (1, 1), (6, 1)),
    Style("#00707a", "p", (5, 1, 2, 1), (3, 1.5)),
)


@dataclass(frozen=True)
class Value:
    """One mean over repeats with its 95 % interval, at one place of the axis.

    With few repeats there is no interval: ``low`` and ``high`` are the mean.
    """

    x: float
    mean: float
    low: float
    high: float
    repeats: int


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    label: str
    style: int
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Panel:
    """One set of axes; a reference is a level line, the same whatever the axis says.

    ``y_label`` is given where the panel shows another figure than its plot.
    """

    title: str
    lines: tuple[Line, ...]
    references: tuple[Line, ...] = ()
    y_label: str = ""


@dataclass(frozen=True)
class Plot:
    """One figure, its panels side by side.

    ``name`` is that of its files, ``x_name`` what the axis is called where one value is named.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    is_log: bool
    x_name: str
    panels: tuple[Panel, ...]

    def y_label_of(self, panel: Panel) -> str:
        """Return what the upright axis of a panel is called."""
        return panel.y_label or self.y_label


def row_title(record: Record) -> str:
    """Return the name of a record's row in tables and figures; what is not private is marked."""
    return title_of(record.method) + ("-∞" if record.level == "none" else "")


def shown(record: Record) -> str:
    """Return what a record is called for people: its row, and how it was chosen or measured.

    >>> class Row: method, level, select, extra = "gap", "none", "validation", {}
    >>> shown(Row)
    'GAP-∞, selected'
    """
    selected = ", selected" if record.select == "validation" else ""
    attack = record.extra.get("attack") or {}
    shadow = ", shadow model" if attack.get("on") == "shadow" else ""
    return row_title(record) + selected + shadow


def order(record: Record) -> tuple[int, int]:
    """Return the place of a record in the tables, by level and method; unknown ones come last."""
    place = METHODS.index(record.method) if record.method in METHODS else len(METHODS)
    return LEVELS.index(record.level), place


def headlined(records: Iterable[Record]) -> list[Record]:
    """Return results whose ``runs`` are the figure that their data set is judged by.

    That is accuracy unless a record says otherwise. Where one does, those that lack its figure, as
    where only one class occurs, cannot be compared with it and are left out.
    """
    every = list(records)
    judged = {record.dataset: record.headline for record in every if record.headline != "accuracy"}
    made = []
    for record in every:
        name = judged.get(record.dataset)
        if name is None or record.metric != "test_accuracy":
            made.append(record)
        elif figures := record.figures(name):
            made.append(replace(record, runs=figures, extra={**record.extra, "headline": name}))
    return made


def named(record: Record) -> str:
    """Return a data set's name, with the figure it is judged by where that is not accuracy."""
    is_usual = record.headline == "accuracy"
    return record.dataset if is_usual else f"{record.dataset} ({FIGURES[record.headline]})"


_STYLES = {
    "gap": 0,
    "label-gap": 1,
    "node-label-gap": 1,
    "sage": 2,
    "mlp": 3,
    "vote": 4,
    "node-label-gap own record": 5,
    "node-label-gap own nothing": 6,
    "progap": 7,
}
SWEPT = {
    "encoder": ("encoder_layers", "encoder layers"),
    "hops": ("hops", "K ="),
    "degree": ("max_degree", "D ="),
}


def setting(record: Record) -> str:
    """Return a row's label with what its ablation varied."""
    name, symbol = SWEPT.get(record.experiment, ("", ""))
    value = record.parameters.get(name)
    return shown(record) if value is None else f"{shown(record)}, {symbol} {value}"


def style_of(method: str) -> int:
    """Return the style of a row; the two methods of class codes are never at one level.

    >>> [style_of(name) for name in ("gap", "label-gap", "node-label-gap", "another")]
    [0, 1, 1, 4]
    """
    return _STYLES.get(method, 4)


def value_of(record: Record, x: float) -> Value:
    """Return mean and 95 % bootstrap interval of a record."""
    low, high = shown_interval(record.runs) or (record.mean, record.mean)
    return Value(x, record.mean, low, high, len(record.runs))


def small(number: float) -> str:
    """Write a small number without the padding of its exponent.

    >>> small(1e-6), small(0.0)
    ('1e-6', '0')
    """
    return f"{number:g}".replace("e-0", "e-")


def deltas(records: Iterable[Record]) -> str:
    """Return the sentence of a caption that states delta; empty where nothing is private.

    >>> class Row:
    ...     def __init__(self, delta): self.epsilon, self.delta = 1.0, delta
    >>> deltas([Row(1e-6), Row(1e-6)]), deltas([Row(1e-6), Row(1e-5), Row(0.0)])
    (' δ = 1e-6.', ' δ = 1e-6 to 1e-5, and 0 for methods that need none.')
    """
    known = sorted({record.delta or 0.0 for record in records if record.epsilon})
    stated = [small(float(f"{delta:.3g}")) for delta in known if delta]
    if not stated:
        return " δ = 0." if known else ""
    ends = stated[0] if len(stated) == 1 else f"{stated[0]} to {stated[-1]}"
    return f" δ = {ends}{', and 0 for methods that need none' if 0.0 in known else ''}."


def unique(items: Iterable[Any]) -> list[Any]:
    """Return the items without repetition, in order of first appearance.

    >>> unique([3, 1, 3])
    [3, 1]
    """
    return list(dict.fromkeys(items))


def best_known(records: Iterable[Record], key: Callable[[Record], Hashable]) -> list[Record]:
    """Return one record per key: the one with the most repeats, then the newest.

    A store may hold several seeds; a figure shows one of them, never a mixture.
    """
    chosen: dict[Hashable, Record] = {}
    for record in records:
        held = chosen.get(key(record))
        if held is None or (len(record.runs), record.created) > (len(held.runs), held.created):
            chosen[key(record)] = record
    return list(chosen.values())


def plots(records: Sequence[Record]) -> list[Plot]:
    """Return every figure that the records have something for.

    >>> plots([])
    []
    """
    records = headlined(records)
    drawn = [
        _tradeoff(records, "edge"),
        _tradeoff(records, "node"),
        _encoder(records),
        _hops(records),
        _degree(records),
        *(_attack(records, experiment) for experiment in ATTACKS),
        _precision_recall(records),
    ]
    return [plot for plot in drawn if plot is not None]


_ACCURACY = "test accuracy (%)"
_EPSILON = "privacy budget ε (smaller is more private)"
_JOINT = (
    " NeighborVote and “own record” also read each node's own neighbours, for that person alone: "
    "another guarantee (joint differential privacy)."
)
_INTERVAL = "Bars are 95 % bootstrap intervals over repeats, from five repeats on."


def _tradeoff(records: Sequence[Record], level: str) -> Plot | None:
    rows = [r for r in records if r.experiment == "tradeoff" and r.metric == "test_accuracy"]
    private = [r for r in rows if r.level == level and r.epsilon]
    panels = []
    for group, title in _groups(private):
        dataset = group[0].dataset
        here = [r for r in records if r.dataset == dataset and r.metric == "test_accuracy"]
        references = [
            r
            for r in here
            if r.experiment in ("tradeoff", "accuracy")
            and (r.level == "none" or (level == "edge" and r.epsilon == 0))
        ]
        panels.append(Panel(title, _by_method(group), _references(references), _axis(group)))
    return _plot(
        f"tradeoff-{level}",
        f"{level.capitalize()} level: accuracy at each budget",
        f"{_INTERVAL}{deltas(private)} Lines without markers do not depend on the budget: ∞ is "
        + (
            "without privacy, and the MLP reads no edge at all."
            if level == "edge"
            else "without privacy."
        )
        + (_JOINT if any(r.is_joint for r in rows if r.level == level) else ""),
        panels,
    )


def _encoder(records: Sequence[Record]) -> Plot | None:
    rows = [r for r in records if r.experiment == "encoder" and r.epsilon]
    panels = []
    for group, title in _groups(rows, by_level=True):
        lines = []
        for has, label in ((True, "with encoder"), (False, "without encoder")):
            some = [r for r in group if (r.parameters.get("encoder_layers") != 0) == has]
            if some:
                lines.append(Line(label, 0 if has else 2, _values(some, lambda r: r.epsilon)))
        panels.append(Panel(title, tuple(lines), y_label=_axis(group)))
    return _plot(
        "encoder",
        "Effect of the encoder",
        "GAP with its encoder, and with the raw features sent along the edges. "
        f"{_INTERVAL}{deltas(rows)}",
        panels,
    )


def _hops(records: Sequence[Record]) -> Plot | None:
    return _plot(
        "hops",
        "Effect of the number of hops",
        "More hops see more of the graph and share the same budget, so each is noisier. "
        f"{_INTERVAL}{deltas(r for r in records if r.experiment == 'hops')}",
        _swept(records, "hops", "hops", by_level=True),
        x_label="hops K",
        x_name="K",
        is_log=False,
    )


def _degree(records: Sequence[Record]) -> Plot | None:
    return _plot(
        "degree",
        "Effect of the degree bound",
        "A larger bound D drops fewer neighbours and needs noise that grows with its square root. "
        f"{_INTERVAL}{deltas(r for r in records if r.experiment == 'degree')}",
        _swept(records, "degree", "max_degree"),
        x_label="degree bound D",
        x_name="D",
    )


# What an attack is called, and what its attacker guesses.
ATTACK_TITLES = {
    "membership": ("Membership attack", "who was in the training set"),
    "label-inference": ("Label inference", "which of two labels a node was trained with"),
    "inductive-links": (
        "Inductive link stealing",
        "who is connected in a graph that the model was not trained on",
    ),
    "reconstruction": ("Topology reconstruction", "which edges some nodes have"),
}


def _attack(records: Sequence[Record], experiment: str) -> Plot | None:
    rows = [r for r in records if r.experiment == experiment and r.metric == "auc"]
    private = [r for r in rows if r.epsilon]
    title, guessed = ATTACK_TITLES[experiment]
    panels = []
    for group, name in _groups(private):
        unprotected = [r for r in rows if r.dataset == group[0].dataset and r.epsilon is None]
        guessing = Line("guessing", 4, (Value(0, 0.5, 0.5, 0.5, 1),))
        references = (*_references(unprotected), guessing)
        panels.append(Panel(name, _by_method(group), references))
    return _plot(
        experiment,
        title,
        f"AUC of an attacker who guesses {guessed}; 50 is guessing. {_INTERVAL}{deltas(private)}",
        panels,
        y_label="attack AUC (%)",
    )


def _precision_recall(records: Sequence[Record]) -> Plot | None:
    panels = []
    for title, group in curve_groups(records):
        lines = tuple(
            Line(shown(record), style_of(record.method), curve_values(record.rankings))
            for record in group
        )
        panels.append(Panel(title, lines, (guessing_line(group[0].rankings),)))
    shown_records = [record for _, group in curve_groups(records) for record in group]
    return precision_recall_plot(panels, about=deltas(shown_records))


def precision_recall_plot(panels: Sequence[Panel], *, about: str = "") -> Plot | None:
    """Return the figure of precision-recall curves; None without any panel.

    Args:
        panels: one for each data set, level and budget.
        about: what the caption says at its end, such as delta.
    """
    several = any(value.repeats > 1 for panel in panels for value in panel.lines[0].values)
    return _plot(
        "precision-recall",
        "Precision at each recall",
        "Nodes are looked at by their probability of a class, the highest first. Recall is the "
        "share of the class that is reached by then, precision the share of those looked at that "
        "are of it: the highest that goes with at least this recall. Guessing has the share of "
        f"the class, whatever the recall.{f' {_INTERVAL}' if several else ''}{about}",
        panels,
        x_label="recall (share of the class that is reached)",
        y_label="precision (%)",
        x_name="recall",
        is_log=False,
    )


def ranked_class(record: Record) -> str:
    """Return the class that a two-class record ranks in every repeat; empty where there is none."""
    metrics = record.extra.get("metrics", ())
    if record.metric != "test_accuracy" or any(len(one["per_class"]) != 2 for one in metrics):
        return ""
    names = {ranking.positive for ranking in record.rankings}
    return names.pop() if len(names) == 1 else ""


def curve_groups(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Return the title of each panel of precision-recall curves, and its records.

    A panel is about a class, a level and a budget: of several budgets the one that most methods
    have, and of equally many the middle one. What reads no edges stands at every budget.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for experiment in ("accuracy", "tradeoff"):
        known = {key[0] for key in groups}
        for record in records:
            name = ranked_class(record)
            if record.experiment == experiment and name and record.dataset not in known:
                key = (record.dataset, name, record.level, record.relation)
                groups.setdefault(key, []).append(record)
    places = unique(key[:2] for key in groups)
    titled = []
    for key in sorted(groups, key=lambda key: (places.index(key[:2]), LEVELS.index(key[2]), key)):
        dataset, name, level, relation = key
        budget = _middle_budget(groups[key])
        group = [r for r in groups[key] if r.epsilon in (budget, 0.0)]
        several = len({k[3] for k in groups if k[:3] == key[:3]}) > 1
        price = "no privacy" if level == "none" else f"{level} level"
        price += f", ε = {budget:g}" if budget else ""
        title = ", ".join([dataset, f"class {name}", price, *([relation] * several)])
        titled.append((title, sorted(best_known(group, key=shown), key=order)))
    return titled


def _middle_budget(group: Sequence[Record]) -> float | None:
    """Return the budget that most records have; of equally many the middle one.

    >>> class Row:
    ...     def __init__(self, epsilon): self.epsilon = epsilon
    >>> _middle_budget([Row(1.0), Row(2.0), Row(4.0), Row(0.0), Row(0.0)])
    2.0
    """
    private = [record.epsilon for record in group if record.epsilon]
    if not private:
        return group[0].epsilon
    most = max(map(private.count, private))
    usual = sorted({budget for budget in private if private.count(budget) == most})
    return usual[len(usual) // 2]


def curve_values(rankings: Sequence[Ranking]) -> tuple[Value, ...]:
    """Return the precision-recall curve: its mean over repeats with the interval."""
    values = []
    for recall, *found in zip(CURVE_RECALLS, *(one.curve for one in rankings), strict=True):
        mean = sum(found) / len(found)
        low, high = shown_interval(found) or (mean, mean)
        values.append(Value(recall, mean, low, high, len(found)))
    return tuple(values)


def guessing_line(rankings: Sequence[Ranking]) -> Line:
    """Return the precision of guessing: the share of the class."""
    share = sum(one.share for one in rankings) / len(rankings)
    return Line("guessing", 4, (Value(0, share, share, share, 1),))


def _plot(
    name: str,
    title: str,
    caption: str,
    panels: Sequence[Panel],
    *,
    x_label: str = _EPSILON,
    y_label: str = _ACCURACY,
    x_name: str = "ε",
    is_log: bool = True,
) -> Plot | None:
    filled = tuple(panel for panel in panels if panel.lines)
    if not filled:
        return None
    return Plot(name, title, caption, x_label, y_label, is_log, x_name, filled)


def _groups(records: Sequence[Record], *, by_level: bool = False) -> list[tuple[list[Record], str]]:
    """Return the records of each panel with its title: data set, level, relation if several."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.level, record.dataset, record.relation), []).append(record)
    several = len(groups) > len({(level, dataset) for level, dataset, _ in groups})
    datasets = unique(record.dataset for record in records)
    titled = []
    for level, dataset, relation in sorted(groups, key=lambda key: (datasets.index(key[1]), key)):
        group = groups[level, dataset, relation]
        words = [dataset, *([f"{level} level"] if by_level else []), *([relation] * several)]
        titled.append((group, ", ".join(words)))
    return titled


def _by_method(records: Sequence[Record]) -> tuple[Line, ...]:
    lines = []
    for label in unique(map(shown, sorted(records, key=order))):
        group = [record for record in records if shown(record) == label]
        lines.append(Line(label, style_of(group[0].method), _values(group, lambda r: r.epsilon)))
    return tuple(lines)


def _swept(
    records: Sequence[Record], experiment: str, parameter: str, *, by_level: bool = False
) -> list[Panel]:
    """Return panels over a parameter: one line per method and budget, a budget's look the same."""
    rows = [r for r in records if r.experiment == experiment and parameter in r.parameters]
    budgets = unique(record.epsilon for record in sorted(rows, key=_price))
    panels = []
    for group, title in _groups(rows, by_level=by_level):
        pairs = unique((shown(r), r.epsilon) for r in sorted(group, key=_price))
        several = len({label for label, _ in pairs}) > 1
        lines = []
        for label, epsilon in pairs:
            name = "no privacy" if epsilon is None else f"ε = {epsilon:g}"
            same = [r for r in group if (shown(r), r.epsilon) == (label, epsilon)]
            values = _values(same, lambda r: r.parameters[parameter])
            style = budgets.index(epsilon) % len(STYLES)
            lines.append(Line(f"{label}, {name}" if several else name, style, values))
        panels.append(Panel(title, tuple(lines), y_label=_axis(group)))
    return panels


def _axis(group: Sequence[Record]) -> str:
    name = group[0].headline
    return "" if name == "accuracy" else f"test {FIGURES[name]} (%)"


def _price(record: Record) -> tuple[float, tuple[int, int]]:
    return float("inf") if record.epsilon is None else record.epsilon, order(record)


def _values(records: Sequence[Record], x: Callable[[Record], Any]) -> tuple[Value, ...]:
    chosen = best_known(records, key=x)
    return tuple(value_of(record, float(x(record))) for record in sorted(chosen, key=x))


def _references(records: Sequence[Record]) -> tuple[Line, ...]:
    chosen = best_known(records, key=shown)
    return tuple(
        Line(shown(record), style_of(record.method), (value_of(record, 0.0),))
        for record in sorted(chosen, key=order)
    )
