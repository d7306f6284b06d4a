"""``gapgnn noise``: from a budget to noise, or from noise to what it costs."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

# Named, and not what they offer: that loads NumPy and torch, and a misspelt option needs neither.
import gapgnn.privacy as privacy
import gapgnn.privacy.accounting as accounting
import gapgnn.privacy.dpsgd as dpsgd
from gapgnn.cli.output import console, emit_json, say
from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy import (
    MOST_EPSILON,
    Links,
    aggregation_ratio,
    check_delta,
    check_epsilon,
    describe_relation,
    links_of,
    parse_relation,
    resolve_relation,
)

if TYPE_CHECKING:
    from rich.console import Console

    from gapgnn.privacy.accounting import AttackBounds, Composition

DEFAULT_MAX_DEGREE = 100

EXAMPLES = """\
examples:
  gapgnn noise --level edge --epsilon 1 --delta 1e-7 --hops 2
  gapgnn noise --level edge --epsilon 1 2 4 --delta 1e-7 --hops 2
  gapgnn noise --level edge --relation directed --noise-multiplier 2 --delta 1e-6
  gapgnn noise --relation 5-edges --epsilon 1 --delta 1e-7 --hops 4
  gapgnn noise --level node --epsilon 8 --delta 1e-5 --hops 2 --steps 1546 --sampling-rate 0.0129
  gapgnn noise --level node --relation replace --max-degree 50 --epsilon 8 --delta 1e-5 --json
  gapgnn noise --level node --divided --epsilon 8 --delta 1e-5 --hops 1
  gapgnn noise --method sage --level node --epsilon 8 --delta 1e-5 --steps 450 \\
      --sampling-rate 0.0222 --train-nodes 11530

The noise multiplier counts the standard deviation in what one edge or record can contribute: per
hop 1 (directed or divided), sqrt(2) (undirected), sqrt(k^2 + k) (k edges of one person), sqrt(k) (k
arcs out of one) or sqrt(max degree), per DP-SGD step the clip, for sage (2 max degree + 1) times
it: a record is part of its neighbours' examples too. Under `replace` two records can oppose each
other: the sensitivity is twice the contribution, and is charged.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--method",
        default="gap",
        help="gap (default), or sage: one layer at node level, where a training example is a node "
        "with its in-neighbours",
    )
    parser.add_argument("--level", default="edge", help="what is protected: edge (default) or node")
    parser.add_argument(
        "--relation",
        default="auto",
        help="edge: directed, undirected, or up to so many links of one person (5-edges, 5-arcs); "
        "node: add-remove or replace. auto (default) is add-remove at node level and, as no graph "
        "is given here, undirected (a symmetric graph) at edge level",
    )
    parser.add_argument(
        "--epsilon",
        type=float,
        nargs="+",
        help="the budget to find the noise for; several are answered one after the other",
    )
    parser.add_argument(
        "--noise-multiplier", type=float, help="instead of --epsilon: report what this noise costs"
    )
    parser.add_argument("--delta", type=float, required=True, help="between 0 and 1")
    parser.add_argument("--hops", type=int, help="aggregation hops (default 2, for sage 1)")
    parser.add_argument(
        "--steps", type=int, help="node: DP-SGD steps of all phases together (default: none)"
    )
    parser.add_argument(
        "--sampling-rate", type=float, help="node: probability of a record to join a step's batch"
    )
    parser.add_argument(
        "--max-degree",
        type=int,
        help=f"node: the bound D on every out-list (default {DEFAULT_MAX_DEGREE})",
    )
    parser.add_argument(
        "--divided",
        action="store_true",
        help="node: messages are divided by the root of their list's length, nothing is cut",
    )
    parser.add_argument(
        "--both-ways",
        action="store_true",
        help="edge: messages travel along arcs and against them, as labels do by default on a "
        "graph with directions",
    )
    parser.add_argument(
        "--train-nodes",
        type=int,
        help="sage: number of training nodes, for the original theorem (default: very many)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Answer the question for each budget and print it; of several, JSON is one object too."""
    budgets = args.epsilon or [None]
    answers = []
    for place, args.epsilon in enumerate(budgets):
        if place and not args.json:
            say("")
        answers.append(_answer(args))
    if args.json:
        emit_json(answers[0] if len(answers) == 1 else {"answers": answers})
    return 0


def _answer(args: argparse.Namespace) -> dict[str, Any]:
    """Answer the question for one budget or noise multiplier, and print tables unless JSON is."""
    question = _Question.from_args(args)
    if args.delta == 0:
        raise InputError(
            "`delta` must be above 0 for Gaussian noise: in its tails there are outcomes that tell "
            "two neighbours apart by any factor, so no epsilon holds without exception. Got 0."
        )
    check_delta(args.delta, can_be_zero=False)
    if (args.epsilon is None) == (args.noise_multiplier is None):
        raise InputError("give one of --epsilon and --noise-multiplier.")
    if args.epsilon is not None:
        check_epsilon(args.epsilon)
        found = accounting.calibrate(
            question.events(1.0), epsilon=args.epsilon, delta=args.delta, relation=question.relation
        )
        multiplier, epsilon, accountant = found.noise_multiplier, found.epsilon, found.accountant
    else:
        multiplier = check_number("noise_multiplier", args.noise_multiplier, above=0)
        spend = accounting.account(
            question.events(multiplier), args.delta, relation=question.relation
        )
        epsilon, accountant = spend.epsilon, spend.accountant
        if not epsilon <= MOST_EPSILON:
            cost = f"it costs an epsilon above {MOST_EPSILON:g}, which hides nothing"
            if math.isinf(epsilon):
                cost = "no finite epsilon describes it"
            raise InputError(f"`noise_multiplier` {multiplier:g} is too small: {cost}.")
    attacker = question.attack_bounds(multiplier, epsilon, args.delta)
    if not args.json:
        _print_table(args, question, multiplier, epsilon, accountant)
        _print_attacker(attacker)
        return {}
    answer = {
        "noise_multiplier": multiplier,
        "sigma": question.sigma(multiplier),
        "sensitivity": question.sensitivity,
        "epsilon": epsilon,
        "delta": args.delta,
        "accountant": accountant,
        **asdict(attacker),
    }
    if question.method == "sage":
        answer["original_theorem_epsilon"] = question.original(multiplier, args.delta)
    return answer


@dataclass(frozen=True)
class _Question:
    """A validated composition whose noise multiplier is still free."""

    method: str
    level: str
    relation: str
    hops: int
    steps: int
    sampling_rate: float
    max_degree: int
    train_nodes: int | None
    both_ways: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> _Question:
        level = check_choice("level", args.level, ("edge", "node"))
        relation = resolve_relation(level, args.relation, is_directed=False)
        method = check_choice("method", args.method, ("gap", "sage"))
        if method == "sage":
            _check_sage(args, level, relation)
        elif args.train_nodes is not None:
            raise InputError("--train-nodes has a meaning for --method sage only.")
        hops = (1 if method == "sage" else 2) if args.hops is None else args.hops
        check_integer("hops", hops, at_least=1)
        if level == "edge":
            for name in ("steps", "sampling_rate", "max_degree"):
                if getattr(args, name) is not None:
                    raise InputError(
                        f"--{name.replace('_', '-')} has no meaning at level edge: training reads "
                        "no edges there and is free. Use --level node or leave it out."
                    )
        if args.divided and (level != "node" or method != "gap" or args.max_degree is not None):
            raise InputError(
                "--divided is for gap at level node, instead of --max-degree: all that a person "
                "sends has norm 1 then."
            )
        if args.both_ways and (level != "edge" or args.relation == "auto"):
            raise InputError(
                "--both-ways is for level edge and a graph with directions: name the relation, "
                "directed (one arc), undirected (both arcs of a pair), 5-arcs or 5-edges."
            )
        # As if every list had one entry.
        default = 1 if args.divided else DEFAULT_MAX_DEGREE
        degree = default if args.max_degree is None else args.max_degree
        check_integer("max_degree", degree, at_least=1)
        if (args.steps is None) != (args.sampling_rate is None):
            raise InputError("--steps and --sampling-rate belong together: give both or neither.")
        if args.steps is not None:
            check_integer("steps", args.steps, at_least=1)
            check_number("sampling_rate", args.sampling_rate, above=0, at_most=1)
        if args.train_nodes is not None:
            check_integer("train_nodes", args.train_nodes, at_least=1)
        steps, rate = args.steps or 0, args.sampling_rate or 0.0
        known = (method, level, relation, hops, steps, rate, degree, args.train_nodes)
        return cls(*known, args.both_ways)

    def original(self, multiplier: float, delta: float) -> float:
        """The price of the same noise by SAGE-NDP's original theorem."""
        return dpsgd.original_epsilon(
            multiplier,
            delta,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            max_degree=self.max_degree,
            num_examples=self.train_nodes,
            aggregation=accounting.Gaussian(multiplier),
        )

    def by_rdp(self, multiplier: float, delta: float) -> float:
        """The price of this noise by Renyi divergences."""
        return accounting.ACCOUNTANTS["rdp"].epsilon(
            self.events(multiplier), delta, relation=self.relation
        )

    def by_paper(self, multiplier: float, delta: float) -> float:
        """The price of this noise as it was published."""
        if self.method == "sage":
            return self.original(multiplier, delta)
        if self.level == "edge":
            return accounting.paper_edge_epsilon(multiplier, self.hops, delta)
        return accounting.plain_rdp_epsilon(self.events(multiplier), delta, relation=self.relation)

    @property
    def sensitivity(self) -> float:
        """The L2 sensitivity of one hop."""
        return self._sensitivity(self.relation)

    def _sensitivity(self, relation: str) -> float:
        neighbours = parse_relation(relation, self.level)
        if self.level == "node":
            return privacy.DegreeBounded.bound(neighbours, self.max_degree)
        return (privacy.Symmetrized if self.both_ways else privacy.Neighbors).bound(neighbours)

    def sigma(self, multiplier: float) -> float:
        """The standard deviation of the noise of one hop."""
        return multiplier * aggregation_ratio(self.relation) * self.sensitivity

    def events(self, multiplier: float) -> Composition:
        """What would be released at this noise."""
        hops = accounting.Gaussian(multiplier * aggregation_ratio(self.relation), count=self.hops)
        if not self.steps:
            return (hops,)
        if self.method == "sage":
            steps = dpsgd.neighbourhood_event(
                multiplier,
                sampling_rate=self.sampling_rate,
                steps=self.steps,
                max_degree=self.max_degree,
            )
            return (steps, hops)
        return (accounting.PoissonGaussian(multiplier, self.sampling_rate, self.steps), hops)

    def attack_bounds(self, multiplier: float, epsilon: float, delta: float) -> AttackBounds:
        """What the best attacker reaches at this noise, at most."""
        bounds = accounting.attack_bounds(self.events(multiplier), relation=self.relation)
        return bounds.within(epsilon, delta)

    @property
    def _other_relation(self) -> str:
        if self.level == "node":
            return "replace" if self.relation == "add-remove" else "add-remove"
        links = links_of(self.relation)
        # One link of the same sort, or where it is one already the other sort.
        return Links.of(1, are_arcs=links.are_arcs == (links.count > 1)).name

    def under_other_relation(self, multiplier: float) -> tuple[str, Composition]:
        """Another relation of the level, and the same noise as it appears there."""
        other = self._other_relation
        hops = accounting.Gaussian(
            self.sigma(multiplier) / self._sensitivity(other), count=self.hops
        )
        return other, (*self.events(multiplier)[:-1], hops)


def _check_sage(args: argparse.Namespace, level: str, relation: str) -> None:
    if level != "node" or relation != "add-remove":
        raise InputError(
            "--method sage needs --level node and relation add-remove: at edge level its edges "
            "are randomised for a pure epsilon, without a noise multiplier."
        )
    if args.hops not in (None, 1):
        raise InputError(f"`hops` must be 1 for --method sage. Got {args.hops}.")
    if args.steps is None or args.sampling_rate is None:
        raise InputError("--method sage needs --steps and --sampling-rate.")


def _print_table(
    args: argparse.Namespace,
    question: _Question,
    multiplier: float,
    epsilon: float,
    accountant: str,
) -> None:
    """Print what each accountant says: the noise it needs for the budget, and what this costs."""
    from rich import box
    from rich.table import Column, Table

    delta, target = args.delta, args.epsilon
    what = f"epsilon {target:g}" if target is not None else f"noise multiplier {multiplier:g}"
    out = console(to_stderr=False)
    out.print(
        f"{question.level} level, relation {question.relation}: {what}, delta {delta:g}, "
        f"{question.hops} hop{'s' * (question.hops != 1)}"
        + (f", {question.steps} DP-SGD step{'s' * (question.steps != 1)}" if question.steps else "")
    )
    numbers = ["multiplier needed", "std per hop"] if target is not None else []
    numbers.append(f"epsilon at {multiplier:.4g}")
    columns = (Column(head, justify="right") for head in numbers)
    table = Table("accountant", *columns, box=box.SIMPLE)

    own = multiplier if target is not None else None
    rows: list[tuple[str, float | None, float]] = [(accountant, own, epsilon)]
    known = "original theorem" if question.method == "sage" else "paper's formula"
    for name, priced in (("rdp", question.by_rdp), (known, question.by_paper)):
        cost = partial(priced, delta=delta)
        needed = None
        if target is not None:
            needed = accounting.search_multiplier(cost, target, stop=0.9999, aim=0.99995)
        rows.append((name, needed, cost(multiplier)))
    for name, needed, price in rows:
        shown = [price] if needed is None else [needed, question.sigma(needed), price]
        table.add_row(name, *(f"{number:.4g}" for number in shown))
    out.print(table)
    out.print(describe_relation(question.level, question.relation, is_directed=False).sentence)
    _print_noise(out, question, multiplier, delta)


def _print_noise(out: Console, question: _Question, multiplier: float, delta: float) -> None:
    """Print how large the noise is, and what it costs under another relation."""
    if question.method == "sage":
        clips = multiplier * dpsgd.neighbourhood_sensitivity(question.max_degree)
        out.print(
            f"Standard deviation of the noise on a sum of clipped gradients: {clips:.4g} clips; on "
            "the aggregation: "
            f"{question.sigma(multiplier):.4g}. Batches are Poisson, which the mixture prices; the "
            "original theorem is for batches of fixed size."
        )
        return
    other, events = question.under_other_relation(multiplier)
    spend = accounting.account(events, delta, relation=other)
    out.print(
        f"Sensitivity of one hop: {question.sensitivity:.4g}; standard deviation of its noise: "
        f"{question.sigma(multiplier):.4g}."
    )
    out.print(f"The same noise under `{other}`: epsilon {spend.epsilon:.4g}.")


def _print_attacker(bounds: AttackBounds) -> None:
    """Print what the best attacker reaches at this noise."""
    from rich import box
    from rich.table import Column, Table

    from gapgnn.privacy.card import attacker_facts

    table = Table("the best attacker", Column("bound", justify="right"), box=box.SIMPLE)
    for what, value in attacker_facts(bounds):
        table.add_row(what, value)
    console(to_stderr=False).print(table)
