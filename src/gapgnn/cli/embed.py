"""`gapgnn embed`: release noisy sums over neighbours as rows, for any other model."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import (
    DEFAULT_DATASET,
    add_curator_option,
    add_data_options,
    add_word_options,
    check_options,
    load_graph,
    mention_left_out,
    shown_tables,
)
from gapgnn.cli.main import Parser
from gapgnn.cli.options import add_method_options, method_options
from gapgnn.cli.output import begin, note, say
from gapgnn.cli.prices import afterwards
from gapgnn.cli.receipts import emit_result, receipt
from gapgnn.cli.scale import (
    add_ray_option,
    at_scale,
    check_ray,
    check_space,
    checkpoint_beside,
    how_to_go_on,
)
from gapgnn.errors import InputError, check_all
from gapgnn.methods.configs import PrivateHopsConfig

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.methods import PrivateHops

EXAMPLES = """\
examples:
  gapgnn embed --epsilon 1 --plan
  gapgnn embed --edges friends.csv --nodes people.csv --label year --epsilon 1 --out rows
  gapgnn embed --dataset facebook100/Cornell5 --hops 3 --out rows --format parquet
"""


def configure(parser: Parser) -> None:
    """Add the options that choose a graph, and those of private hops."""
    parser.epilog = EXAMPLES
    add_data_options(parser)
    add_word_options(parser)
    add_method_options(parser, PrivateHopsConfig)
    output = parser.add_argument_group("run and output")
    output.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    output.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the released rows and their card here"
    )
    output.add_argument(
        "--format",
        choices=["safetensors", "parquet"],
        default="safetensors",
        help="how rows are written; parquet adds a table with an id and all columns (default: "
        "safetensors)",
    )
    add_curator_option(output)
    add_ray_option(output)
    output.add_argument(
        "--resume",
        action="store_true",
        help="go on with the interrupted run of the same command; what it finished is kept in "
        "OUT.unfinished, and nothing is charged or drawn again",
    )
    output.add_argument(
        "--plan",
        action="store_true",
        help="print what would be released, with which noise and at which price, and stop: nothing "
        "is charged or written",
    )
    output.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Load, release, save, report."""
    tables = shown_tables(args)
    data = args.dataset or args.store or tables or DEFAULT_DATASET
    begin(f"Releasing rows: loading {data} and the libraries")
    from gapgnn.methods import PrivateHops
    from gapgnn.privacy.ledger import Ledger, People

    hops = PrivateHops(**method_options(args, PrivateHopsConfig))
    # Everything that can fail without reading private data fails here, before the charge, at once.
    check_all(
        hops.check,
        lambda: _check_out(args),
        lambda: check_ray(args),
        lambda: check_options(args, needs_label=False),
        lambda: checkpoint_beside(args),
        Ledger(args.ledger).check,
    )
    checkpoint = checkpoint_beside(args)
    receipt().ledger, receipt().folder = Ledger(args.ledger), args.out
    loaded = load_graph(args, seed=0, quiet=args.json, needs_label=False)
    receipt().people = People.of(loaded.graph)
    if args.plan:
        return _show_plan(hops, loaded.graph, as_json=args.json)
    assert checkpoint is not None
    plan = hops.plan_for(loaded.graph)
    width = sum(one.count for one in plan.hops.values()) * len(loaded.graph.edge_types) + 1
    check_space(args.out, 4 * width * loaded.graph.num_nodes * loaded.graph.num_features)
    quote = partial(say, to_stderr=True, event="price")
    try:
        with at_scale(args, loaded.graph) as graph:
            hops.fit(
                graph,
                checkpoint=checkpoint,
                announce=lambda text: quote(f"Price: {text}"),
                curator_only=args.curator_only,
            )
        hops.save(args.out, format=args.format)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_go_on(checkpoint)) from None
    finally:
        checkpoint.close()
    checkpoint.remove()
    if args.json:
        emit_result(_result(hops, loaded.graph))
    else:
        say(str(hops.card_))
        note(f"Rows and card: {args.out}", is_path=True)
        mention_left_out(loaded)
    return 0


def _check_out(args: argparse.Namespace) -> None:
    """Refuse a folder that could not be written, and rows that would be lost."""
    from gapgnn.methods import check_new_folder

    if args.out is not None:
        check_new_folder(args.out)
    elif not args.plan:
        raise InputError("`--out` must say where the rows go. Got none.")


def _show_plan(hops: PrivateHops, graph: Graph, *, as_json: bool) -> int:
    """Print what would be released and what it costs; nothing is charged."""
    from gapgnn.privacy.ledger import Ledger, People

    plan = hops.plan_for(graph)
    after = afterwards(Ledger(hops.ledger), People.of(graph), plan.promise)
    if as_json:
        found = {"plan": plan.to_dict(), "left": after.lines, "after": after.to_list()}
        emit_result({**found, "refused": after.refusal})
        return 0
    say(str(plan))
    for line in after.lines:
        say(f"left: {line}")
    if after.refusal:
        say(f"it would be refused: {after.refusal}")
    return 0


def _result(hops: PrivateHops, graph: Graph) -> dict[str, Any]:
    card, released = hops.card_, hops.releases_.training()
    return {
        "method": hops.method,
        "level": card.level,
        "relation": card.relation.name,
        "dataset": graph.name,
        "epsilon": card.epsilon,
        "delta": card.delta,
        "noise_multiplier": card.noise_multiplier,
        "release": released.release,
        "hops": [number for number, _ in released.numbered()],
        "columns": [hop.shape[1] for hop in released.hops],
        "nodes": graph.num_nodes,
        "noise": hops.noise,
        "is_private_release": card.is_private_release,
    }
