"""`gapgnn tune`: choose hyperparameters inside the budget, at a price that covers the choice."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import (
    DEFAULT_DATASET,
    add_data_options,
    add_word_options,
    check_options,
    load_graph,
    mention_left_out,
    shown_tables,
)
from gapgnn.cli.main import Parser
from gapgnn.cli.options import add_method_options, level_of, method_options, value_of
from gapgnn.cli.output import begin, console, note, phase_bars, say
from gapgnn.cli.prices import afterwards
from gapgnn.cli.receipts import emit_result, receipt
from gapgnn.cli.scale import check_space, checkpoint_beside, how_to_go_on
from gapgnn.errors import InputError, check_all
from gapgnn.methods import method_class, method_config, methods, recommended_method

if TYPE_CHECKING:
    from gapgnn import PrivateSearchCV
    from gapgnn.graph import Graph

EXAMPLES = """\
examples:
  gapgnn tune --try hops=2,4 --epsilon 1 --plan
  gapgnn tune gap --dataset facebook100/Cornell5 --try hops=1,2,4 --try combine=concat,sum
  gapgnn tune --edges friends.csv --nodes people.csv --label year --try hops=2,4 --out model
  gapgnn tune node-label-gap --try hidden=8,16,32 --mean 6 --epsilon 8 --out model
"""


def configure(parser: Parser) -> None:
    """Add one subcommand per method, with the fields of its configuration as options."""
    parser.default_choice = lambda words: recommended_method(level_of(words))
    commands = parser.add_subparsers(dest="method", metavar="METHOD", required=True)
    parser.epilog = EXAMPLES
    for name, text in methods().items():
        child = commands.add_parser(name, help=text, description=text, epilog=EXAMPLES)
        child.later = partial(_declare, name)


def _declare(name: str, child: Parser) -> None:
    """Add the options of one method."""
    add_data_options(child)
    add_word_options(child)
    add_method_options(child, method_config(name))
    search = child.add_argument_group("search")
    search.add_argument(
        "--try",
        dest="tried",
        action="append",
        metavar="NAME=VALUE,...",
        help="values of one parameter to choose from, such as hops=1,2,4; method=gap,label-gap "
        "compares methods. Repeat for further parameters: all combinations are compared",
    )
    search.add_argument(
        "--strategy",
        choices=("auto", "pilots", "selection"),
        default="auto",
        help="pilots fits every setting at a small part of the budget and the best one with the "
        "rest; selection runs a random, secret number of candidates and releases the best. auto is "
        "pilots, and at node level selection",
    )
    search.add_argument(
        "--pilot-share",
        type=float,
        default=0.04,
        help="of the budget, as 1 / noise squared, for all pilots together (default 0.04)",
    )
    search.add_argument(
        "--scoring",
        default="auto",
        help="metric on validation nodes; at node level accuracy alone (default: that of --metric)",
    )
    search.add_argument(
        "--number",
        choices=("geometric", "logarithmic", "negative-binomial", "poisson", "binomial"),
        default="geometric",
        help="distribution of a selection's number of candidates (default geometric)",
    )
    search.add_argument(
        "--mean",
        default="auto",
        type=_mean,
        help="mean number of candidates; auto is twice the number of settings that ask the graph "
        "again, from 4 to 32",
    )
    search.add_argument(
        "--shape",
        type=float,
        help="of a negative-binomial number, or the trials of a binomial one",
    )
    search.add_argument(
        "--score-share",
        type=float,
        default=0.1,
        help="of a candidate's epsilon, for its noisy score at node level (default 0.1)",
    )
    output = child.add_argument_group("run and output")
    output.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    output.add_argument("--out", type=Path, metavar="FOLDER", help="save the winner here")
    output.add_argument(
        "--resume",
        action="store_true",
        help="with --out: go on with the interrupted search of the same command; what it finished "
        "is kept in OUT.unfinished, and nothing is charged or drawn again",
    )
    output.add_argument(
        "--plan",
        action="store_true",
        help="print what would be compared, what of it is free, and the price, and stop: nothing "
        "is charged, trained or written",
    )
    output.add_argument("--json", action="store_true", help="print one JSON object")


def _mean(text: str) -> float | str:
    """Read the mean number of candidates."""
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be auto or a number. Got {text!r}.") from None


def execute(args: argparse.Namespace) -> int:
    """Load, search, save, report."""
    data = args.dataset or args.store or shown_tables(args) or DEFAULT_DATASET
    begin(f"Tuning {args.method}: loading {data} and the libraries")
    from gapgnn.methods import check_new_folder
    from gapgnn.privacy.ledger import Ledger, People

    search = _search(args)
    # Everything that can fail without reading private data fails here, before the charge.
    check_all(
        search.check,
        lambda: None if args.out is None else check_new_folder(args.out),
        lambda: _check_out(args),
        lambda: check_options(args, needs_label=True),
        lambda: checkpoint_beside(args),
        Ledger(args.ledger).check,
    )
    receipt().ledger, receipt().folder = Ledger(args.ledger), args.out
    loaded = load_graph(args, seed=args.seed, quiet=args.json)
    receipt().people = People.of(loaded.graph)
    if args.plan:
        return _show_plan(search, loaded.graph, args)
    check_space(args.out, search.estimator.space_needed(loaded.graph))
    checkpoint = checkpoint_beside(args)
    bars = phase_bars(says_total=False)
    try:
        with bars:
            search.fit(loaded.graph, callback=bars, checkpoint=checkpoint)
        if args.out is not None:
            search.best_estimator_.save(args.out)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_go_on(checkpoint)) from None
    finally:
        if checkpoint is not None:
            checkpoint.close()
    if checkpoint is not None:
        checkpoint.remove()
    if args.json:
        emit_result(_result(search, loaded.graph))
    else:
        _print(search, loaded.graph, args.out)
        mention_left_out(loaded)
    return 0


def _search(args: argparse.Namespace) -> PrivateSearchCV:
    """Return the search that the options ask for."""
    from gapgnn import PrivateSearchCV

    estimator = method_class(args.method)(**method_options(args, method_config(args.method)))
    return PrivateSearchCV(
        estimator,
        grid_of(args.tried or (), args.method),
        strategy=args.strategy,
        pilot_share=args.pilot_share,
        scoring=args.scoring,
        number=args.number,
        mean=args.mean,
        shape=args.shape,
        score_share=args.score_share,
    )


def grid_of(words: Sequence[str], method: str) -> list[dict[str, list[Any]]]:
    """Return the grid of `--try` options, whose values are read as those of `train` are.

    A parameter that some of the methods to compare do not have is left out for these.

    >>> grid_of(["hops=1,2", "combine=sum"], "gap")
    [{'hops': [1, 2], 'combine': ['sum']}]
    """
    given: dict[str, list[str]] = {}
    for word in words:
        name, equals, listed = word.partition("=")
        if not equals or not listed or name in given:
            raise InputError(
                f"`--try` must name a parameter once, with its values: hops=1,2,4. Got {word!r}."
            )
        given[name] = listed.split(",")
    if not given:
        raise InputError("`--try` must name what to choose from: --try hops=1,2,4. Got none.")
    names = given.pop("method", [method])
    grids = []
    for one in names:
        config = method_config(one)
        known = typing.get_type_hints(config)
        own: dict[str, list[Any]] = {} if names == [method] else {"method": [one]}
        for name, values in given.items():
            if name in known:
                own[name] = [value_of(config, name, value) for value in values]
            elif len(names) == 1:
                raise InputError(f"`--try` must name a parameter of {one}. Got {name!r}.")
        grids.append(own)
    return grids


def _check_out(args: argparse.Namespace) -> None:
    """Refuse to lose a model of the user's data."""
    is_own = args.edges is not None or args.store is not None
    if is_own and args.out is None and not args.plan:
        raise InputError(
            "`--out` must say where the model goes: tuning on your own data is charged to its "
            "budget. Got none."
        )


def _show_plan(search: PrivateSearchCV, graph: Graph, args: argparse.Namespace) -> int:
    """Print what a search would compare and cost; nothing is charged or read beyond that."""
    from gapgnn.privacy.ledger import Ledger, People

    found = search.plan_for(graph)
    after = afterwards(Ledger(args.ledger), People.of(graph), found.plan.promise)
    if args.json:
        releases = [found.differing(group) for group in found.releases]
        emit_result(
            {
                "plan": found.plan.to_dict(),
                "settings": [dict(one.params) for one in found.settings],
                "releases": [list(group) for group in found.releases],
                "free": sorted(set().union(*releases)),
                "left": after.lines,
                "after": after.to_list(),
                "refused": after.refusal,
            }
        )
        return 0
    say(str(found))
    for line in after.lines:
        say(f"left: {line}")
    if after.refusal:
        say(f"it would be refused: {after.refusal}")
    return 0


def _result(search: PrivateSearchCV, graph: Graph) -> dict[str, Any]:
    """Return what is printed as JSON: of a selection's other candidates, nothing."""
    card, model = search.card_, search.best_estimator_
    return {
        "method": model.method,
        "level": card.level,
        "relation": card.relation.name,
        "dataset": graph.name,
        "epsilon": card.epsilon,
        "delta": card.delta,
        "best_params": search.best_params_,
        "best_score": search.best_score_,
        "scoring": search.search_.metric,
        "results": search.cv_results_,
        "test_accuracy": model.repeat_scores_[0],
        "curator_only": ["test_accuracy"] if card.level == "node" else [],
        "is_private_release": card.is_private_release,
        # How long it took would tell how many candidates ran.
        "seconds": {},
    }


def _print(search: PrivateSearchCV, graph: Graph, saved: Path | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    from gapgnn.privacy.card import guarantee_sentence

    out, results = console(to_stderr=False), search.cv_results_
    is_node = search.card_.level == "node"
    what = "right answers, noisy" if is_node else search.search_.metric
    table = Table("setting", f"validation: {what}", title=escape(graph.name))
    for index, (params, score) in enumerate(zip(results["params"], results["score"], strict=True)):
        text = ", ".join(f"{name}={value}" for name, value in params.items())
        mark = " (chosen)" if index == search.best_index_ else ""
        shown = "secret" if score is None else f"{score:.1f}" if is_node else f"{score:.3f}"
        table.add_row(escape(text + mark), shown)
    out.print(table)
    accuracy = search.best_estimator_.repeat_scores_[0]
    out.print(f"Test accuracy of the model: {accuracy:.1%}", markup=False)
    out.print(guarantee_sentence(search.card_), markup=False)
    for warning in search.card_.warnings:
        note(f"Note: {warning}")
    if is_node:
        note("Note: the test accuracy is computed from private labels, for the curator only.")
    if saved is not None:
        out.print(f"Saved to {saved}", markup=False, soft_wrap=True)
