"""`gapgnn attack`: run privacy attacks against a method or a saved model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import add_curator_option, add_data_options, check_curator, load_graph
from gapgnn.cli.main import Parser
from gapgnn.cli.options import (
    add_method_options,
    add_options,
    level_of,
    method_options,
    number,
)
from gapgnn.cli.output import console, emit_json, note, phase_bars
from gapgnn.errors import InputError
from gapgnn.methods import method_class, method_config, methods, recommended_method

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.methods import NodeClassifier
    from gapgnn.training import Callback

ATTACKS = {
    "membership": "whose label was used to train? Shadow model and attack network (TSTF)",
    "lira": "whose label was used to train? Likelihood ratios over models trained together",
    "link-stealing": "who is connected? Distances and pairwise operators of posteriors",
    "linkteller": "who is connected? Predictions that change with the features of another node",
    "reconstruction": "which edges do some nodes have? The top-scored pairs, as many as edges",
    "own-neighbours": "is a pair connected, given the release and all other edges? For predictions "
    "that read the node's own neighbours",
    "label-inference": "which label was trained on? Two random candidates, from answers of a node "
    "and of its neighbours",
    "inductive-links": "who is connected in a graph that the model was not trained on? Features "
    "and answers, learned on the graph of training",
}
_EPOCH: dict[str, Any] = {
    "choices": ["last", "best"],
    "default": "last",
    "help": "where choosing is free: attack the last epoch (default), or the best on validation "
    "nodes, as train keeps",
}
_PUBLISHED: dict[str, Any] = {
    "choices": ["probabilities", "labels"],
    "default": "probabilities",
    "help": "what the attacker has of every prediction (default probabilities)",
}
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "membership": {
        "runs": number(10, "repetitions"),
        "on": {
            "choices": ["target", "shadow"],
            "default": "target",
            "help": "measure on the target model (default), or on the shadow model as published",
        },
        "setting": {
            "choices": ["tstf", "transductive"],
            "default": "tstf",
            "help": "train on the members' graph and ask about the full one (default), or on one "
            "graph",
        },
        "epoch": _EPOCH,
        "shadows": number(2, "shadow models to learn from, on --on target", metavar="N"),
        "shadow-per-class": number(1_000, "nodes of each class in the shadow graph", metavar="N"),
        "target-per-class": {
            "type": int,
            "metavar": "N",
            "help": "train the target on so many nodes of each class too (default: the whole "
            "graph)",
        },
    },
    "lira": {"epoch": _EPOCH, "models": number(16, "models trained together", metavar="R")},
    "link-stealing": {
        "pairs": number(10_000, "connected pairs", metavar="N"),
        "others": {
            "choices": ["held-out", "degree", "uniform"],
            "default": "held-out",
            "help": "unconnected pairs: edges that were removed before training (default: only "
            "the single edge differs), from the ends of edges, or uniform as in He et al.",
        },
        "published": _PUBLISHED,
    },
    "linkteller": {
        "watch": number(200, "nodes watched", metavar="N"),
        "step": number(0.01, "relative change of features"),
        "fresh": {
            "choices": ["auto", "always"],
            "default": "auto",
            "help": "at private levels: answer from cached hops (auto, the default), or as if "
            "every query were charged as a new release",
        },
        "others": {
            "choices": ["all", "held-out"],
            "default": "all",
            "help": "distinguish edges from all other pairs (default), or from edges removed "
            "before training",
        },
    },
    "label-inference": {
        "runs": number(5, "repetitions"),
        "share": number(0.1, "share of the training nodes whose labels are inferred"),
    },
    "inductive-links": {
        "runs": number(5, "repetitions"),
        "pairs": number(5_000, "connected pairs in each part", metavar="N"),
        "others": {
            "choices": ["held-out", "degree", "uniform"],
            "default": "held-out",
            "help": "unconnected pairs: edges that were removed before the model reads the graph "
            "(default), from the ends of edges, or uniform",
        },
        "published": _PUBLISHED,
    },
    "reconstruction": {
        "runs": number(5, "repetitions"),
        "watch": number(500, "nodes watched", metavar="N"),
        "published": _PUBLISHED,
    },
    "own-neighbours": {
        "pairs": number(2_000, "connected pairs, no node in two of them", metavar="N"),
        "published": _PUBLISHED,
    },
}
_OWN: dict[str, Any] = {
    "choices": ["features", "record"],
    "help": "what a prediction reads of the node's own record, for label-gap at level edge",
}
# Attacks on predictions that may read the node's own neighbours.
_READS_OWN = ("link-stealing", "own-neighbours")
# Of a saved model's own options, those that its training has decided.
_DECIDED = {"membership": ("on", "setting", "epoch", "target-per-class")}
# Attacks that train their targets in a way that no saved model was trained.
_TRAINED_FOR = {
    "lira": "random halves",
    "label-inference": "labels drawn by a coin",
    "inductive-links": "one half of the graph",
}
SAVED = "saved"

EXAMPLES = """\
examples:
  gapgnn attack {attack} --level edge --epsilon 1
  gapgnn attack {attack} sage --dataset facebook100/Cornell5 --level {level}
  gapgnn attack {attack} gap --dataset facebook100/Cornell5 --level node --epsilon 8 --json
{own}{saved}
All options follow the method's name; without a name it is the method that `gapgnn train` would use
at this level. The figures are computed from the private data without noise: they are for the
curator. The models are not released, so nothing is charged to your ledger.
"""


OVERVIEW = """\
examples:
  gapgnn attack membership --level node --epsilon 8
  gapgnn attack link-stealing gap --dataset facebook100/Cornell5 --level edge --epsilon 1
  gapgnn attack label-inference --help

The figures are computed from the private data without noise: they are for the curator.
"""


class TargetParser(Parser):
    """Accepts `--model FOLDER` instead of a method: the folder names the method."""

    def complete(self, words: Sequence[str]) -> list[str]:
        """Return the words with the target's name first where it is a saved model."""
        has_model = any(word.split("=")[0] == "--model" for word in words)
        if has_model and words and not words[0].startswith("-") and words[0] != SAVED:
            raise InputError(
                f"`--model` must come without a method: the folder names it. Got {words[0]!r}."
            )
        if has_model and words and words[0].startswith("-"):
            return [SAVED, *words]
        return super().complete(words)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per attack and, below it, one per method."""
    parser.epilog = OVERVIEW
    attacks = parser.add_subparsers(
        dest="attack", metavar="ATTACK", required=True, parser_class=TargetParser
    )
    for name, text in ATTACKS.items():
        saved = f"  gapgnn attack {name} --model model --edges friends.csv --nodes people.csv ...\n"
        own = f"  gapgnn attack {name} label-gap --own record --published labels\n"
        examples = EXAMPLES.format(
            attack=name,
            level="edge" if name == "own-neighbours" else "none",
            own=own if name in _READS_OWN else "",
            saved="" if name in _TRAINED_FOR else saved,
        )
        child = attacks.add_parser(name, help=text, description=text, epilog=examples)
        child.default_choice = lambda words: recommended_method(level_of(words))
        child.later = partial(_declare_targets, name)


def _declare_targets(attack: str, child: Parser) -> None:
    """Add a subcommand per method, and a hidden one for a saved model."""
    targets = child.add_subparsers(
        dest="method", metavar="METHOD", required=True, parser_class=Parser
    )
    shared: dict[str, Any] = {"description": child.description, "epilog": child.epilog}
    for method, text in methods().items():
        target = targets.add_parser(method, help=text, **shared)
        target.later = partial(_declare_options, attack, method)
    targets.add_parser(SAVED, **shared).later = partial(_configure_saved, attack)


def _declare_options(attack: str, method: str, target: Parser) -> None:
    """Add the options of an attack on a method."""
    options, config = dict(OPTIONS[attack]), method_config(method)
    if _asks_own(attack, config):
        options["own"] = _OWN
    add_options(target.add_argument_group("attack"), options)
    add_data_options(target)
    add_method_options(target, config)
    output = target.add_argument_group("run and output")
    output.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    add_curator_option(output)


def _configure_saved(attack: str, target: Parser) -> None:
    """Add the options of an attack on a saved model itself."""
    target.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="attack this saved model itself; the data must be that of its training",
    )
    decided = _DECIDED.get(attack, ())
    options = {name: dict(kept) for name, kept in OPTIONS[attack].items() if name not in decided}
    if attack == "link-stealing":
        options["others"] |= {
            "default": "degree",
            "help": "unconnected pairs: from the ends of edges (default), or uniform",
        }
    if attack in _READS_OWN:
        options["own"] = _OWN
    add_options(target.add_argument_group("attack"), options)
    add_data_options(target)
    output = target.add_argument_group("run and output")
    output.add_argument("--seed", type=int, default=0, help="of all choices; never of noise")
    output.add_argument("--ledger", metavar="FILE", help="the ledger that the training charged")
    output.add_argument("--device", default="auto", metavar="auto|cpu|cuda")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    add_curator_option(output)


def execute(args: argparse.Namespace) -> int:
    """Train the target, attack it, report."""
    if args.method == SAVED:
        estimator, graph = _saved(args)
    else:
        options = method_options(args, method_config(args.method))
        estimator = method_class(args.method)(**options)
        estimator.check()
        graph = load_graph(args, seed=args.seed, quiet=args.json).graph
    check_curator(args, graph, purpose=f"attack {args.attack}")
    with phase_bars() as bars:
        result = _attack(args, estimator, graph, bars)
    if "runs" in result:
        result = _with_intervals(result)
    if args.json:
        emit_json(result)
    else:
        _print(result)
    return 0


def _asks_own(attack: str, config: type) -> bool:
    """Whether the attack has the option ``own``: what a prediction reads of the node's own record.

    It has where this is chosen at prediction, and not where it is a parameter of training.
    """
    is_trained = "own" in (part.name for part in fields(config))
    return attack in _READS_OWN and not is_trained


def _saved(args: argparse.Namespace) -> tuple[NodeClassifier, Graph]:
    """Load a saved model and the graph of its training, with the same split."""
    from gapgnn.methods import load_model

    if args.attack in _TRAINED_FOR:
        raise InputError(
            f"`--model` must be left out for {args.attack}: it judges models that were trained on "
            f"{_TRAINED_FOR[args.attack]}, and a saved one was not. Leave the model out."
        )
    if getattr(args, "others", None) == "held-out":
        raise InputError(
            "`--others` must not be held-out for a saved model: edges are held out before "
            "training, and its training is over. Leave `--model` out to attack a copy."
        )
    model = load_model(args.model, device=args.device, ledger=args.ledger)
    if args.edges is args.store is args.dataset is None:
        args.dataset = model.card_.dataset
    graph = load_graph(
        args, seed=model.seed, quiet=args.json, schema=model.schema_, level=model.level
    ).graph
    return model, graph


def _attack(
    args: argparse.Namespace, estimator: NodeClassifier, graph: Graph, callback: Callback
) -> dict[str, Any]:
    """Run the attack that is asked for, with its own options."""
    from gapgnn.attacks import (
        inductive_link_attack,
        label_inference_attack,
        links,
        lira_attack,
        membership_attack,
        own_neighbours_attack,
        reconstruction_attack,
    )

    attacks: dict[str, Callable[..., Any]] = {
        "membership": membership_attack,
        "lira": lira_attack,
        "label-inference": label_inference_attack,
        "inductive-links": inductive_link_attack,
        "link-stealing": links.link_stealing_attack,
        "linkteller": links.linkteller_attack,
        "reconstruction": reconstruction_attack,
        "own-neighbours": own_neighbours_attack,
    }
    names = [name.replace("-", "_") for name in OPTIONS[args.attack]]
    # The data's own option has the name of the parameter.
    options = {
        "nodes" if name == "watch" else name: getattr(args, name)
        for name in names
        if hasattr(args, name)
    }
    if args.method == SAVED:
        options["itself"] = True
    if args.attack in _READS_OWN and (
        args.method == SAVED or _asks_own(args.attack, method_config(args.method))
    ):
        options["own"] = args.own
    result = attacks[args.attack](estimator, graph, **options, seed=args.seed, callback=callback)
    found: dict[str, Any] = result.to_dict()
    return found


def _with_intervals(result: dict[str, Any]) -> dict[str, Any]:
    """Add the 95 % interval of every mean over runs."""
    from gapgnn.evaluation import shown_interval

    intervals = {
        key: shown_interval([run[key] for run in result["runs"]]) for key in result["runs"][0]
    }
    return {**result, "ci95": intervals}


def _print(result: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    level = f"level {result['level']}"
    if result["level"] != "none":
        level += f", epsilon {result['epsilon']:g}"
    target = f"the saved {result['method']}" if result.get("itself") else result["method"]
    if "published" in result:
        target = f"published {result['published']} of {target}"
        level += f", own {result['own']}" if result["own"] else ""
    title = f"{result['attack']} on {target}, {level}, {result['dataset']}"
    control = result.get("control")
    if result["attack"] == "own-neighbours":
        # The control of this attack is guessing.
        control = None
    heads = ("attack", "features only", "guessing") if control else ("attack", "guessing")
    table = Table("", *heads, title=escape(title))
    for key, text in (
        ("auc", "AUC"),
        ("average_precision", "average precision"),
        ("tpr_at_1pct_fpr", "hits at 1% false alarms"),
        ("precision", "true edges among as many reconstructed"),
    ):
        if key not in result:
            continue
        value = f"{result[key]:.1%}"
        if len(result.get("runs", ())) > 1:
            ends = result["ci95"][key]
            interval = f"{ends[0]:.1%} to {ends[1]:.1%}, " if ends else ""
            value += f" ({interval}{len(result['runs'])} runs)"
        known = [f"{control[key]:.1%}"] if control else []
        table.add_row(text, value, *known, f"{result['guessing'][key]:.1%}")
    out = console(to_stderr=False)
    out.print(table)
    if "member_accuracy" in result:
        out.print(
            f"Accuracy of the attacked models ({result['epoch']} epoch): "
            f"{result['member_accuracy']:.1%} on members, {result['other_accuracy']:.1%} on others."
        )
    if "moved" in result:
        out.print(f"Links that change an answer, given the release: {result['moved']:.1%}.")
    elif "gain_auc" in result:
        gain = f"{100 * result['gain_auc']:.1f}"
        if ends := result.get("ci95", {}).get("gain_auc"):
            gain += f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
        out.print(f"Gained because of the edges: {gain} points of AUC.")
    note("Note: computed from private data without noise, for the curator only.")
