"""`gapgnn report`: one page, from a folder of results or about one or several saved models."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import add_curator_option, add_data_options, check_curator, load_graph
from gapgnn.cli.output import console, emit_json, say
from gapgnn.errors import InputError

if TYPE_CHECKING:
    from gapgnn.evaluation.grid import Record
    from gapgnn.evaluation.report import Audit

AUDIT_TRIALS = 20_000
SECTIONS = ("short", "protected", "tradeoff", "accuracy", "tested", "ablations", "releases")
EXAMPLES = """\
examples:
  gapgnn experiment tradeoff --datasets social --out results
  gapgnn report results                        results/report.html, figures/ and tables/
  gapgnn report results --audit                audit the noisy hops of every budget first
  gapgnn audit dpsgd --epsilon 8 --json >> results/findings.jsonl
  gapgnn report results --screenshot report.png --section tradeoff

  gapgnn report model                          model.report.html, for a privacy officer
  gapgnn report model --ledger bank.sqlite     with what is left of the budget
  gapgnn report model --entity client          in other words than those of the training
  gapgnn report model --audit                  audit the model's mechanisms first
  gapgnn report model --curator-copy --edges payments.csv --nodes customers.csv --label risk
  gapgnn report model --check                  is the folder what was saved?

  gapgnn report january february               models.report.html, both side by side
  gapgnn report january february --curator-copy --dataset social --out copy.html

The page is one file that loads nothing. That of results holds figures computed from the private
data without noise: for data that is not public, it is for the curator. That of a model holds none,
unless a copy for the curator is asked for.
"""
# Options that only one of the two pages has.
_OF_RESULTS = ("section",)
_OF_MODEL = ("out", "entity", "link", "ledger", "curator_copy", "check")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn report`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "folder",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="what `gapgnn experiment --out` filled, a model that `gapgnn train --out` saved, or "
        "several such models, which are compared",
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="first run the audits that are missing, on canaries, and keep them in the folder: of "
        "the noisy hops of all results, or of all mechanisms of the model",
    )
    parser.add_argument(
        "--screenshot",
        type=Path,
        metavar="FILE.png",
        help="also take a picture of the page, with the installed Chromium",
    )
    parser.add_argument(
        "--section",
        choices=SECTIONS,
        help="the first section in the picture (default: all of the page's top)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    model = parser.add_argument_group("of a saved model")
    model.add_argument(
        "--out", type=Path, metavar="FILE.html", help="the page (default: FOLDER.report.html)"
    )
    model.add_argument(
        "--entity",
        metavar="WORD",
        help="what one of those in the data is called, such as customer, or company/companies "
        "(default: as the model's card says)",
    )
    model.add_argument(
        "--link", metavar="WORD", help="what a row of the edge table is called, such as payment"
    )
    model.add_argument(
        "--ledger", metavar="FILE", help="the ledger that was charged (default: your own)"
    )
    model.add_argument(
        "--curator-copy",
        action="store_true",
        help="also show how good the model is, computed from the data below without noise: such a "
        "page is for the curator alone",
    )
    model.add_argument(
        "--check",
        action="store_true",
        help="write no page: compare every file with its digest; exit 4 if one was changed",
    )
    add_curator_option(model)
    add_data_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Write the report, and print its path."""
    from gapgnn.evaluation.report import load_results, screenshot, write_report

    if args.screenshot is not None and args.screenshot.suffix != ".png":
        raise InputError(f"`screenshot` must end in .png. Got {str(args.screenshot)!r}.")
    folders, args.folder = args.folder, args.folder[0]
    if len(folders) > 1:
        return _about_several(args, folders)
    is_model = (args.folder / "config.json").is_file()
    for option in _OF_RESULTS if is_model else _OF_MODEL:
        if getattr(args, option):
            wanted = "a folder of results" if is_model else "a saved model"
            raise InputError(
                f"`--{option.replace('_', '-')}` must come with {wanted}. Got {str(args.folder)!r}."
            )
    if is_model:
        return _about_model(args)
    if args.audit:
        _audit(args.folder, load_results(args.folder))
    written = write_report(args.folder)
    if args.screenshot is not None:
        screenshot(written.page, args.screenshot, section=args.section or "")
    if args.json:
        emit_json(
            {
                "page": str(written.page),
                "figures": [str(path) for path in written.figures],
                "tables": [str(path) for path in written.tables],
                "screenshot": None if args.screenshot is None else str(args.screenshot),
            }
        )
    else:
        line = (
            f"{written.page}, with {len(written.figures)} figure files and "
            f"{len(written.tables)} table files beside it"
        )
        say(line)
    return 0


def _about_several(args: argparse.Namespace, folders: Sequence[Path]) -> int:
    """Write the page that compares saved models."""
    from gapgnn.evaluation.report import write_comparison
    from gapgnn.graph import Wording
    from gapgnn.methods import load_folder

    for option in (*_OF_RESULTS, "audit"):
        if getattr(args, option):
            raise InputError(f"`--{option}` must come with one folder. Got {len(folders)}.")
    words = Wording.of(args.entity, args.link, known=load_folder(folders[0]).card.wording)
    if args.check:
        digests = {str(folder): dict(load_folder(folder).digests) for folder in folders}
        if args.json:
            emit_json({"models": digests})
        else:
            for name, files in digests.items():
                say(f"{name}: {len(files)} files, none changed or missing.")
        return 0
    figures = None
    if args.curator_copy:
        figures = [_figures(args, folder) for folder in folders]
    page = write_comparison(folders, out=args.out, ledger=args.ledger, words=words, figures=figures)
    _announce(args, page)
    return 0


def _about_model(args: argparse.Namespace) -> int:
    """Write the page of one saved model."""
    from gapgnn.evaluation.report import write_model_page
    from gapgnn.graph import Wording
    from gapgnn.methods import load_folder

    Wording.of(args.entity, args.link)
    saved = load_folder(args.folder)
    words = Wording.of(args.entity, args.link, known=saved.card.wording)
    if args.check:
        if args.json:
            emit_json({"model": str(args.folder), "files": dict(saved.digests)})
        else:
            say(f"{args.folder}: {len(saved.digests)} files, none changed or missing.")
        return 0
    holds = True
    if args.audit:
        from gapgnn.cli.audit import audit_saved

        done = audit_saved(args.folder)
        holds = all(found["holds"] for found in done.audits) and not done.left_out
    figures = _figures(args, args.folder) if args.curator_copy else None
    page = write_model_page(
        args.folder, out=args.out, ledger=args.ledger, words=words, figures=figures
    )
    _announce(args, page)
    return 0 if holds else 1


def _announce(args: argparse.Namespace, page: Path) -> None:
    """Take the picture that is asked for, and print where a page of models is."""
    from gapgnn.evaluation.report import screenshot

    if args.screenshot is not None:
        screenshot(page, args.screenshot)
    if args.json:
        picture = None if args.screenshot is None else str(args.screenshot)
        emit_json({"page": str(page), "curator_copy": args.curator_copy, "screenshot": picture})
    else:
        say(f"{page}{', for the curator alone' if args.curator_copy else ''}")


def _figures(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compute the model's metrics on the data and the split of its training."""
    from gapgnn.evaluation.report import curator_figures
    from gapgnn.graph.datasets import dataset_names
    from gapgnn.methods import check_trained_on, load_model

    model = load_model(folder, ledger=args.ledger)
    if args.edges is args.store is args.dataset is None:
        if model.card_.dataset not in dataset_names():
            raise InputError(
                "`--curator-copy` must come with the data of the training (`--edges`, `--nodes` "
                f"and `--label`, or `--store`). Got none for {model.card_.dataset!r}."
            )
        # Of this model alone: another one may be of other data.
        args = argparse.Namespace(**{**vars(args), "dataset": model.card_.dataset})
    graph = load_graph(
        args, seed=model.seed, quiet=args.json, schema=model.schema_, level=model.level
    ).graph
    check_curator(args, graph, purpose="report --curator-copy")
    check_trained_on(model, graph)
    return curator_figures(model, graph)


def _audit(folder: Path, records: list[Record]) -> None:
    """Audit the noisy hops of every row without an audit yet, and keep the results.

    The shipped mechanism runs at the very noise of the results, on canaries and never on the data
    (privacy page, section 8). Each part is held to what it alone is accounted at.
    """
    from gapgnn.audits import audit_aggregation
    from gapgnn.evaluation.report import FILE, load_findings

    wanted = _missing(records, load_findings(folder)[0])
    err = console(to_stderr=True)
    for number, options in enumerate(wanted, start=1):
        if err.is_terminal:
            err.print(f"audit {number} of {len(wanted)}")
        report = audit_aggregation(**options, trials=AUDIT_TRIALS)
        line = {**report.to_dict(), "command": _command(options)}
        _append(folder / FILE, json.dumps(line, allow_nan=False))


def _missing(records: list[Record], done: list[Audit]) -> list[dict[str, Any]]:
    """Return the options of every audit that is still missing."""
    from gapgnn.evaluation.report import HOPS

    have = {(one.relation, one.noise_multiplier) for one in done if one.mechanism == "aggregation"}
    wanted: dict[tuple[str, float], dict[str, Any]] = {}
    for record in records:
        levels = HOPS.get(record.estimator, ())
        if record.experiment not in ("accuracy", "tradeoff") or record.level not in levels:
            continue
        for event in record.events:
            if not isinstance(event, Mapping) or event.get("event") != "Gaussian":
                continue
            key = (record.relation, event["noise_multiplier"])
            if key not in have:
                wanted[key] = {
                    "level": record.level,
                    "relation": record.relation,
                    "delta": record.delta,
                    "noise_multiplier": event["noise_multiplier"],
                    "hops": event.get("count", 1),
                }
    return list(wanted.values())


def _command(options: dict[str, Any]) -> str:
    words = ["gapgnn", "audit", "aggregation", "--trials", str(AUDIT_TRIALS)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--json"])


def _append(path: Path, line: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise InputError(f"`{path}` must be writable. Got {error.strerror}.") from None
