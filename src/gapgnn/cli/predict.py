"""`gapgnn predict`: labels from a saved model, for its own graph or for another one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import add_data_options, load_graph
from gapgnn.cli.output import emit_json, say
from gapgnn.cli.scale import add_ray_option, at_scale, check_ray
from gapgnn.errors import InputError, UnavailableError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gapgnn.graph import Graph
    from gapgnn.methods import NodeClassifier

EXAMPLES = """\
examples:
  gapgnn predict --model model --out labels.csv
  gapgnn predict --model model --edges friends.csv --nodes people.csv --out labels.parquet
  gapgnn predict --config predict.toml --out labels.csv

For the training graph the released hops in the model's folder answer, free of charge; the data may
be left out except at node level. Another graph is charged once, and its hops stay in the folder.
Which of the two a graph is, only the ledger of the training knows: without it tables are refused.
The column `graph` of the output says which graph the answers are for.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn predict`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--model", type=Path, required=True, metavar="FOLDER", help="what `train --out` saved"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="table with id, label and probability: .csv, .tsv, .parquet or .feather",
    )
    parser.add_argument(
        "--device", default="auto", metavar="auto|cpu|cuda", help="where to compute"
    )
    parser.add_argument("--ledger", metavar="FILE", help="file of the privacy ledger")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for the ledger")
    parser.add_argument(
        "--cached",
        action="store_true",
        help="answer for the graph of training and read nothing of the tables but the ids of "
        "--nodes; needs no ledger",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    add_ray_option(parser)
    add_data_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Load the model and the graph, predict, write the table."""
    from gapgnn.methods import load_model

    _check_target(args.out)
    check_ray(args)
    model = load_model(args.model, device=args.device, ledger=args.ledger, reason=args.reason)
    if args.cached:
        return _from_cache(args, model)
    graph = None
    if any(getattr(args, option) is not None for option in DATA_OPTIONS):
        graph = load_graph(
            args,
            seed=0,
            quiet=args.json,
            needs_label=False,
            schema=model.schema_,
            # A model of version 0.1 knows the columns of its table by name and has no schema. It
            # answers for the graph it was trained on; reading another one is refused further down.
            level="none" if model.schema_ is None and model.feature_names_ else model.level,
        ).graph
        _check_model_folder(args.model, model, graph)
        _mention_columns(model, graph)
    before = set(model.releases_.hops)
    with at_scale(args, graph) as placed:
        probabilities = model.predict_proba(placed)
    model.save_releases(args.model)
    ids = model.releases_.training().ids if graph is None else graph.ids
    is_training = graph is None or model.releases_.is_training(graph)
    _write_table(args.out, ids, probabilities, model.label_names_, is_training)
    paid = len(set(model.releases_.hops) - before)
    if args.json:
        emit_json({"out": str(args.out), "nodes": len(ids), "new_releases": paid})
    else:
        free = not paid or model.level == "none"
        charged = "no budget was spent" if free else "one new graph was charged"
        line = f"{len(ids):,} labels written to {args.out}; {charged}"
        say(line)
    return 0


def _from_cache(args: argparse.Namespace, model: NodeClassifier) -> int:
    """Answer from the model's folder alone."""
    from gapgnn.graph.tables import read_ids
    from gapgnn.methods import EdgeReader

    if not isinstance(model, EdgeReader):
        raise InputError(f"`--cached` must be left out: {model.method} answers from features.")
    ids = None if args.nodes is None else read_ids(args.nodes)
    probabilities = model.predict_cached(ids)
    ids = model.releases_.training().ids if ids is None else ids
    _write_table(args.out, ids, probabilities, model.label_names_, is_training=True)
    if args.json:
        emit_json({"out": str(args.out), "nodes": len(ids), "new_releases": 0})
    else:
        say(f"{len(ids):,} labels for the graph of training written to {args.out}")
    return 0


DATA_OPTIONS = (
    *("dataset", "store", "edges", "nodes"),
    *("label", "schema", "features", "drop", "directed", "dangling"),
)
WRITERS = {".csv": ",", ".tsv": "\t", ".parquet": "", ".feather": ""}


def _check_target(path: Path) -> None:
    """Refuse a file that could not be written, before anything is charged."""
    if path.suffix not in WRITERS:
        raise InputError(f"`out` must end in {', '.join(WRITERS)}. Got {str(path)!r}.")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise InputError(f"`out` must be a file in an existing folder. Got {str(path)!r}.")
    if not os.access(path.resolve().parent, os.W_OK):
        raise InputError(f"`out` must be writable. Got {str(path)!r}.")


def _check_model_folder(folder: Path, model: NodeClassifier, graph: Graph) -> None:
    """Refuse a model folder that could not keep what another graph will have paid for."""
    from gapgnn.privacy.ledger import Ledger

    releases = model.releases_
    if not releases.hops or model.level == "none" or os.access(folder, os.W_OK):
        return
    if releases.find(graph, Ledger(model.ledger)) is None:
        raise InputError(
            f"`model` must be writable to keep the hops of another graph. Got {str(folder)!r}."
        )


def _mention_columns(model: NodeClassifier, graph: Graph) -> None:
    """Say on stderr which columns of the tables the model does not use, and which it misses."""
    if model.feature_names_ is None or graph.feature_names is None:
        return
    known, given = set(model.feature_names_), set(graph.feature_names)
    for text, names in (("left out", given - known), ("missing, taken as 0", known - given)):
        if names:
            line = f"{len(names)} feature columns {text}, such as {min(names)!r}"
            say(line, to_stderr=True)


def _write_table(
    path: Path,
    ids: NDArray[Any],
    probabilities: NDArray[np.float32],
    label_names: tuple[str, ...] | None,
    is_training: bool,
) -> None:
    """Write id, label, its probability and for which graph; whole or not at all."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    chosen = probabilities.argmax(axis=1)
    labels = chosen.tolist() if label_names is None else [label_names[k] for k in chosen]
    table = pa.table(
        {
            "id": ids.tolist(),
            "label": labels,
            "probability": probabilities.max(axis=1),
            "graph": ["training" if is_training else "given"] * len(ids),
        }
    )
    scratch = path.with_name(f".{path.name}.part")
    try:
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, scratch)
        elif path.suffix == ".feather":
            pyarrow.feather.write_feather(table, scratch)
        else:
            options = pyarrow.csv.WriteOptions(delimiter=WRITERS[path.suffix])
            pyarrow.csv.write_csv(table, scratch, options)
        os.replace(scratch, path)
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be written: {error}") from None
    finally:
        scratch.unlink(missing_ok=True)
