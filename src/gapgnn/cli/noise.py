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
from gapgnn.cli.options import number_or_auto
from gapgnn.cli.output import console, emit_json, say
from gapgnn.cli.simulate import (
    SIZES,
    add_size_options,
    declared_of,
    print_rows,
    simulated,
    to_dict,
    what_was_simulated,
)
from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy import (
    MOST_EPSILON,
    AddRemove,
    Links,
    Relation,
    Replace,
    aggregation_ratio,
    check_delta,
    check_epsilon,
    resolve_relation,
)

if TYPE_CHECKING:
    from rich.console import Console

    from gapgnn.evaluation import Simulation
    from gapgnn.graph.datasets import DeclaredGraph
    from gapgnn.privacy.accounting import AttackBounds, Composition

DEFAULT_MAX_DEGREE = 100

EXAMPLES = """\
examples:
  gapgnn noise --level edge --epsilon 1 --delta 1e-7 --hops 2
  gapgnn noise --epsilon 1 2 4 8
  gapgnn noise --epsilon 1 2 4 8 --like schema.toml --num-nodes 12500 --mean-degree 24
  gapgnn noise --level edge --relation directed --noise-multiplier 2 --delta 1e-6
  gapgnn noise --relation 5-edges --epsilon 1 --delta 1e-7 --hops 4
  gapgnn noise --level node --epsilon 8 --delta 1e-5 --hops 2 --steps 1546 --sampling-rate 0.0129
  gapgnn noise --level node --relation replace --max-degree 50 --epsilon 8 --delta 1e-5 --json
  gapgnn noise --level node --normalised --epsilon 8 --delta 1e-5 --hops 1
  gapgnn noise --method sage --level node --epsilon 8 --delta 1e-5 --steps 450 \\
      --sampling-rate 0.0222 --train-nodes 11530

The noise multiplier is the standard deviation of the noise over the largest contribution of one
edge or record. The contribution to a hop is 1 (directed, or degree-normalised), sqrt(2)
(undirected), sqrt(k^2 + k) (k edges of one person), sqrt(k) (k arcs out of one person) or sqrt(max
degree). The contribution to a DP-SGD step is the clipping norm; for sage it is (2 max degree + 1)
times that, because a record is part of its neighbours' examples too. Under `replace` the
sensitivity, and the charge, is that of twice the contribution, because two records can be opposite.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--method",
        default="gap",
        help="gap (default), or sage: one layer at node level, where a training example is a node "
        "and its in-neighbours",
    )
    parser.add_argument("--level", default="edge", help="what is protected: edge (default) or node")
    parser.add_argument(
        "--relation",
        default="auto",
        help="edge: directed, undirected, or k edges of one person (such as 5-edges, 5-arcs); "
        "node: add-remove or replace. auto (default) is add-remove at node level and undirected "
        "at edge level",
    )
    parser.add_argument(
        "--epsilon",
        type=float,
        nargs="+",
        help="the budget to calibrate the noise to; several are rows of one table",
    )
    parser.add_argument(
        "--noise-multiplier", type=float, help="instead of --epsilon: report what this noise costs"
    )
    parser.add_argument(
        "--delta",
        type=number_or_auto,
        default="auto",
        metavar="auto|D",
        help="between 0 and 1, or auto: by --num-nodes and --mean-degree (default)",
    )
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
        help=f"node: the bound D on the out-degree (default {DEFAULT_MAX_DEGREE})",
    )
    parser.add_argument(
        "--normalised",
        action="store_true",
        help="node: degree-normalised messages (divided by the square root of the sender's "
        "out-degree) instead of --max-degree",
    )
    parser.add_argument(
        "--symmetrised",
        action="store_true",
        help="edge: the adjacency of a directed graph is symmetrised, as by default in label-gap: "
        "messages are sent along arcs and against them",
    )
    parser.add_argument(
        "--train-nodes",
        type=int,
        help="sage: number of training nodes, for the original theorem (default: very many)",
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="also train the recommended method on a simulated graph of the declared size; "
        "--like does, too",
    )
    add_size_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Compute and print the answer for each budget; several are one table, and one JSON object."""
    from gapgnn.evaluation import declared_delta

    declared = _declared(args)
    is_auto = args.delta == "auto"
    if is_auto:
        level = check_choice("level", args.level, ("edge", "node"))
        args.delta = declared_delta(declared, level, args.relation)
    answers = [_answer(args, epsilon) for epsilon in args.epsilon or [None]]
    if is_auto:
        say(
            f"Delta {args.delta:g} is that of {declared.num_nodes:,} people with "
            f"{declared.mean_degree:g} neighbours each; --num-nodes and --mean-degree declare "
            "yours.",
            to_stderr=True,
        )
    found = None
    if args.simulate or args.like is not None:
        if args.epsilon is None or args.method != "gap":
            raise InputError("--simulate needs --epsilon, and no --method sage.")
        found = simulated(args, declared, compare=not args.json)
    if args.json:
        emit_json(_for_programs(answers, found))
    elif len(answers) == 1:
        answers[0].show(args)
    else:
        _print_answers(args, answers, found)
    if found is not None and not args.json:
        if len(answers) == 1:
            print_rows(found)
        else:
            _print_references(found)
    return 0


def _declared(args: argparse.Namespace) -> DeclaredGraph:
    """Return the declared size of a graph; what decides accuracy only goes with --simulate."""
    if not args.simulate and args.like is None:
        for name in SIZES:
            if name not in ("num_nodes", "mean_degree") and getattr(args, name) is not None:
                option = name.replace("_", "-")
                raise InputError(f"--{option} has a meaning with --simulate or --like only.")
    return declared_of(args)


@dataclass(frozen=True)
class _Answer:
    """The noise of one budget, or the price of one noise multiplier."""

    question: _Question
    target: float | None
    multiplier: float
    epsilon: float
    delta: float
    accountant: str
    attacker: AttackBounds

    @property
    def odds(self) -> float:
        """By how much the odds on a secret can change at most, but for delta."""
        return math.exp(min(self.epsilon, 700.0))

    def show(self, args: argparse.Namespace) -> None:
        """Print the answer in full."""
        _print_table(args, self)
        _print_attacker(self.attacker)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        question = self.question
        answer = {
            "noise_multiplier": self.multiplier,
            "sigma": question.sigma(self.multiplier),
            "sensitivity": question.sensitivity,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "odds": self.odds,
            "accountant": self.accountant,
            **asdict(self.attacker),
        }
        if question.method == "sage":
            answer["original_theorem_epsilon"] = question.original(self.multiplier, self.delta)
        return answer


def _answer(args: argparse.Namespace, target: float | None) -> _Answer:
    """Answer the question for one budget or noise multiplier."""
    question = _Question.from_args(args)
    if args.delta == 0:
        raise InputError(
            "`delta` must be above 0 for Gaussian noise: its privacy loss is unbounded in the "
            "tails, so no epsilon holds at delta 0. Got 0."
        )
    check_delta(args.delta, can_be_zero=False)
    if (target is None) == (args.noise_multiplier is None):
        raise InputError("give one of --epsilon and --noise-multiplier.")
    if target is not None:
        check_epsilon(target)
        found = accounting.calibrate(
            question.events(1.0), epsilon=target, delta=args.delta, relation=question.relation
        )
        multiplier, epsilon, accountant = found.noise_multiplier, found.epsilon, found.accountant
    else:
        multiplier = check_number("noise_multiplier", args.noise_multiplier, above=0)
        spend = accounting.account(
            question.events(multiplier), args.delta, relation=question.relation
        )
        epsilon, accountant = spend.epsilon, spend.accountant
        if not epsilon <= MOST_EPSILON:
            cost = f"it costs an epsilon above {MOST_EPSILON:g}, which protects nothing"
            if math.isinf(epsilon):
                cost = "it has no finite epsilon"
            raise InputError(f"`noise_multiplier` {multiplier:g} is too small: {cost}.")
    attacker = question.attack_bounds(multiplier, epsilon, args.delta)
    return _Answer(question, target, multiplier, epsilon, args.delta, accountant, attacker)


def _for_programs(answers: list[_Answer], found: Simulation | None) -> dict[str, Any]:
    """Return one answer, or several as a list; each with its row of the simulation."""
    plain = [one.to_dict() for one in answers]
    if found is None:
        return plain[0] if len(plain) == 1 else {"answers": plain}
    simulation = to_dict(found)
    for one, row in zip(plain, simulation.pop("rows"), strict=True):
        one["simulated"] = row
    return {"answers": plain, "simulation": simulation}


def _print_answers(
    args: argparse.Namespace, answers: list[_Answer], found: Simulation | None
) -> None:
    """Print a row for each budget: noise, what an attacker can reach, and simulated accuracy."""
    from rich import box
    from rich.table import Column, Table

    from gapgnn.privacy.card import percent, rounded_up

    heads = ["epsilon", "noise", "std", "mu", "guess", "odds", "TPR 1%", "TPR 0.1%"]
    heads += [] if found is None else ["accuracy"]
    columns = (Column(head, justify="right", no_wrap=True) for head in heads)
    table = Table(*columns, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for place, one in enumerate(answers):
        bounds = one.attacker
        cells = [f"{one.target:g}", f"{one.multiplier:.4g}"]
        cells.append(f"{one.question.sigma(one.multiplier):.4g}")
        cells += ["-" if bounds.mu is None else rounded_up(bounds.mu)]
        rates = (bounds.guess, bounds.tpr_at_fpr_1_percent, bounds.tpr_at_fpr_0_1_percent)
        guess, *found_at = (percent(rate).replace(" ", "") for rate in rates)
        odds = f"{one.odds:.3g}" if one.odds < 100 or one.odds >= 1e6 else f"{one.odds:,.0f}"
        cells += [guess, f"x{odds}", *found_at]
        if found is not None:
            cells.append(f"{found.rows[place].figures['accuracy'] or 0:.1%}")
        table.add_row(*cells)
    question = answers[0].question
    out = console(to_stderr=False)
    out.print(f"{_asked(question)}, delta {args.delta:g}")
    out.print(table)
    out.print(
        "Noise is the multiplier and std the standard deviation of one hop. At most: guess is how "
        "often a 50:50 question is answered right, odds how much they can shift, TPR the true "
        "positives at 1 % and 0.1 % of false positives."
    )
    out.print(question.relation.sentence)


def _print_references(found: Simulation) -> None:
    """Print what else reaches which accuracy on the simulated graph."""
    beside = [f"{row.name} {row.figures['accuracy'] or 0:.1%}" for row in found.references]
    beside.append(f"the largest class {found.majority:.1%}")
    say(f"Accuracy is that of {found.method} with its own hops; beside it: {', '.join(beside)}.")
    say(what_was_simulated(found))


def _asked(question: _Question) -> str:
    """Say level, relation, hops and steps."""
    steps = question.steps
    return (
        f"{question.level} level, relation {question.relation}, {question.hops} "
        f"hop{'s' * (question.hops != 1)}"
        + (f", {steps} DP-SGD step{'s' * (steps != 1)}" if steps else "")
    )


@dataclass(frozen=True)
class _Question:
    """A validated composition whose noise multiplier is still free."""

    method: str
    relation: Relation
    hops: int
    steps: int
    sampling_rate: float
    max_degree: int
    train_nodes: int | None
    symmetrised: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> _Question:
        level = check_choice("level", args.level, ("edge", "node"))
        relation = resolve_relation(level, args.relation, is_directed=False)
        method = check_choice("method", args.method, ("gap", "sage"))
        if method == "sage":
            _check_sage(args, relation)
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
        if args.normalised and (level != "node" or method != "gap" or args.max_degree is not None):
            raise InputError(
                "--normalised is for gap at level node, instead of --max-degree: the messages of "
                "one person have norm 1 together."
            )
        if args.symmetrised and (level != "edge" or args.relation == "auto"):
            raise InputError(
                "--symmetrised is for level edge and a directed graph: give the relation, "
                "directed (one arc), undirected (both arcs of a pair), 5-arcs or 5-edges."
            )
        # Degree-normalised messages have the sensitivity of an out-degree of 1.
        default = 1 if args.normalised else DEFAULT_MAX_DEGREE
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
        known = (method, relation, hops, steps, rate, degree, args.train_nodes)
        return cls(*known, args.symmetrised)

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
    def level(self) -> str:
        """What is protected."""
        return self.relation.level

    @property
    def sensitivity(self) -> float:
        """The L2 sensitivity of one hop."""
        return self._sensitivity(self.relation)

    def _sensitivity(self, relation: Relation) -> float:
        if self.level == "node":
            return privacy.DegreeBounded.bound(relation, self.max_degree)
        return (privacy.Symmetrized if self.symmetrised else privacy.Neighbors).bound(relation)

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
        """Upper bounds of the best attacker at this noise."""
        bounds = accounting.attack_bounds(self.events(multiplier), relation=self.relation)
        return bounds.within(epsilon, delta)

    @property
    def _other_relation(self) -> Relation:
        links = self.relation
        if not isinstance(links, Links):
            return AddRemove() if links == Replace() else Replace()
        # One link of the same sort, or where it is one already the other sort.
        return Links.of(1, are_arcs=links.are_arcs == (links.count > 1))

    def under_other_relation(self, multiplier: float) -> tuple[Relation, Composition]:
        """Another relation of the level, and the same noise as it appears there."""
        other = self._other_relation
        hops = accounting.Gaussian(
            self.sigma(multiplier) / self._sensitivity(other), count=self.hops
        )
        return other, (*self.events(multiplier)[:-1], hops)


def _check_sage(args: argparse.Namespace, relation: Relation) -> None:
    if relation != AddRemove():
        raise InputError(
            "--method sage needs --level node and relation add-remove: at edge level its edges "
            "are randomised for a pure epsilon, without a noise multiplier."
        )
    if args.hops not in (None, 1):
        raise InputError(f"`hops` must be 1 for --method sage. Got {args.hops}.")
    if args.steps is None or args.sampling_rate is None:
        raise InputError("--method sage needs --steps and --sampling-rate.")


def _print_table(args: argparse.Namespace, answer: _Answer) -> None:
    """Print the noise that each accountant needs for the budget, and the price of this noise."""
    from rich import box
    from rich.table import Column, Table

    question, multiplier = answer.question, answer.multiplier
    epsilon, accountant = answer.epsilon, answer.accountant
    delta, target = args.delta, answer.target
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
    out.print(question.relation.sentence)
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
    """Print the bounds of the best attacker at this noise."""
    from rich import box
    from rich.table import Column, Table

    from gapgnn.privacy.card import attacker_facts

    table = Table("the best attacker", Column("bound", justify="right"), box=box.SIMPLE)
    for what, value in attacker_facts(bounds):
        table.add_row(what, value)
    console(to_stderr=False).print(table)
