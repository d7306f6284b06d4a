"""``gapgnn ledger``: budgets of people, their charges, and forecasts."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Named, and not what they offer: that loads NumPy and SciPy, and a misspelt option needs neither.
import gapgnn.privacy as privacy
import gapgnn.privacy.ledger as ledgers
from gapgnn.cli.data import DIALECT_OPTIONS, add_dialect_options, dialect_of, table_word
from gapgnn.cli.options import number_or_auto
from gapgnn.cli.output import complain, emit_json, plain_cell, say
from gapgnn.errors import InputError, IntegrityError, check_number, did_you_mean
from gapgnn.privacy.ledger import COMPOSITIONS

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.privacy.ledger import Budget, Charge, Forecast, Ledger, People

EPILOG = """\
A budget belongs to people, not to a file and not to a run: next month's table, one column fewer or
ids written as text are the same people. A charge that does not fit is refused before anything is
computed. Without a budget, runs are recorded and not limited.

examples:
  gapgnn ledger                                      all budgets
  gapgnn ledger grant customers --nodes customers.csv --epsilon 4 --delta 1e-7
  gapgnn ledger grant social --epsilon 4             a data set of `gapgnn datasets`
  gapgnn ledger show customers                       who charged what, when and why
  gapgnn ledger forecast customers --epsilon 1 --hops 4
  gapgnn ledger settings require-grant on            nothing without a budget
  gapgnn ledger export --out ledger.csv
  gapgnn ledger verify                               was a row changed or removed?
  gapgnn ledger verify --against ledger-2027.json    since this export, or this model, was written?
  gapgnn ledger watch --warn-at 0.8                  exit code 1 once a budget is used up to 80%
  gapgnn ledger init team.sqlite                     a ledger at a path of your own
"""
# Where a release, and a saved model, say which charge they are.
_EXCERPTS = ("ledger.json", "card.json")
# Below this share of the budget an amount is rounding.
NOTHING = 1e-6
# So many fits of a plan are shown to people; JSON has all that are planned.
MOST_SHOWN = 24


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parser.epilog = EPILOG
    _add_common(parser, json=False, ledger=None)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    init = actions.add_parser("init", help="make a ledger at a path of your own")
    init.add_argument(
        "path", metavar="PATH", help="a new file, or postgresql://HOST/DATABASE for many machines"
    )
    init.add_argument(
        "--from",
        dest="source",
        metavar="LEDGER",
        help="move this ledger there: everything is copied, and the old one is closed",
    )
    grant = actions.add_parser("grant", help="set the budget of people, or replace it")
    _configure_grant(grant)
    show = actions.add_parser("show", help="the charges of one population, and what is left")
    show.add_argument("population", metavar="NAME", help="as `gapgnn ledger` lists it")
    forecast = actions.add_parser("forecast", help="how many more fits a budget allows")
    _configure_forecast(forecast)
    settings = actions.add_parser("settings", help="show or change a setting of the ledger")
    settings.add_argument("name", metavar="NAME", nargs="?", help="require-grant, ...")
    settings.add_argument("value", metavar="VALUE", nargs="?", help="on or off")
    export = actions.add_parser("export", help="write all grants, charges and notes to a file")
    export.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a new .csv or .json file"
    )
    verify = actions.add_parser("verify", help="check that no row was changed or removed")
    verify.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="also that nothing was since: an export in JSON, a release, a saved model or its "
        "card.json",
    )
    watch = actions.add_parser("watch", help="tell a monitor which budgets are nearly used up")
    watch.add_argument(
        "--warn-at", type=float, default=0.8, metavar="X", help="share of a budget (0.8)"
    )
    key = actions.add_parser("key", help="make a private key with which entries are signed")
    key.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file")
    signer = actions.add_parser("signer", help="register who signs with a key")
    signer.add_argument("name", metavar="NAME", help="of the signer")
    signer.add_argument("public_key", metavar="KEY", help="the public key, as `key` printed it")
    approve = actions.add_parser("approve", help="approve what another signer proposed")
    approve.add_argument("number", metavar="N", type=int, nargs="?", help="of the proposal")
    every = (init, grant, show, forecast, settings, export, verify, watch, key, signer, approve)
    for action in every:
        # Suppressed, or the action's default would overwrite what stood before its name.
        _add_common(action, json=argparse.SUPPRESS, ledger=argparse.SUPPRESS)


def _configure_grant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "population",
        metavar="NAME",
        help="what to call these people; a known population, or a data set of `gapgnn datasets`",
    )
    parser.add_argument(
        "--nodes",
        type=table_word,
        metavar="FILE",
        help="the table of its people; only ids are read",
    )
    parser.add_argument(
        "--id", metavar="COLUMN", help="the column with the ids (`id`, or else the first one)"
    )
    add_dialect_options(parser)
    parser.add_argument(
        "--population",
        dest="namespace",
        metavar="NAMESPACE",
        help="what the ids belong to, if another table uses the same ids for others (default)",
    )
    parser.add_argument(
        "--level", choices=("edge", "node"), default="edge", help="what is protected (edge)"
    )
    parser.add_argument("--epsilon", type=float, required=True, metavar="E", help="for all charges")
    parser.add_argument(
        "--delta",
        type=number_or_auto,
        metavar="auto|D",
        help="for all charges (as before; for a new budget auto, as a run has it: by the number of "
        "people at node level, and at edge level by the number of edges, which is known of a data "
        "set, or else the delta of the last charge)",
    )
    parser.add_argument(
        "--relation",
        default="auto",
        help="the neighbouring relation: undirected, directed, so many links of one person "
        "(5-edges, 5-arcs), add-remove or replace; charges must use the same (auto: as before, as "
        "the data set is, else undirected at edge and add-remove at node level)",
    )
    parser.add_argument(
        "--composition",
        choices=("auto", *COMPOSITIONS),
        default="auto",
        help="how charges come together (auto: as before; else gaussian at edge and renyi at node "
        "level)",
    )
    parser.add_argument(
        "--until",
        metavar="DAY",
        help="last day on which it can be spent, such as 2027-11-15, or never (as before)",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the ledger")


def _configure_forecast(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("population", metavar="NAME", help="as `gapgnn ledger` lists it")
    parser.add_argument("--epsilon", type=float, required=True, metavar="E", help="of one fit")
    parser.add_argument(
        "--delta", type=float, metavar="D", help="of one fit (of the last charge, or the budget's)"
    )
    parser.add_argument("--hops", type=int, metavar="K", help="of one fit at edge level (2)")
    parser.add_argument(
        "--level", choices=("edge", "node"), default="edge", help="of the budget (edge)"
    )
    parser.add_argument(
        "--every", type=int, default=30, metavar="N", help="days from one fit to the next (30)"
    )


def _add_common(parser: argparse.ArgumentParser, *, json: Any, ledger: Any) -> None:
    parser.add_argument("--json", action="store_true", default=json, help="print one JSON object")
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        default=ledger,
        help="another ledger than GAPGNN_LEDGER or the user's own: a file, or an address such as "
        "postgresql://HOST/DATABASE",
    )


def execute(args: argparse.Namespace) -> int:
    """Run an action; without one, list the budgets."""
    ledger = ledgers.Ledger(args.ledger)
    if args.action == "init":
        return _init(args)
    if args.action in ("verify", "watch"):
        return {"verify": _verify, "watch": _watch}[args.action](ledger, args)
    actions = {
        None: _list,
        "grant": _grant,
        "show": _show,
        "forecast": _forecast,
        "settings": _settings,
        "export": _export,
        "key": _key,
        "signer": _signer,
        "approve": _approve,
    }
    actions[args.action](ledger, args)
    return 0


def _list(ledger: Ledger, args: argparse.Namespace) -> None:
    budgets = ledger.summary()
    if args.json:
        emit_json({"ledger": ledger.name, "budgets": _plain(budgets, ledger.entries())})
    elif budgets:
        _print_budgets(budgets, ledger.entries())
    else:
        say(f"Nothing was granted or charged yet in {ledger.name}.", to_stderr=True)


def _init(args: argparse.Namespace) -> int:
    if args.ledger is not None:
        raise InputError("`--ledger` must be left out: `init` makes the ledger at PATH.")
    ledger = ledgers.Ledger(args.path)
    was_there = not ledger.create()
    ledger.summary()  # refuses whatever else may lie there
    if args.source is not None:
        ledgers.Ledger(args.source).move_to(ledger)
    if args.json:
        emit_json({"ledger": ledger.name, "made": not was_there})
    elif args.source is not None:
        say(f"Moved the ledger to {ledger.name}; the old one is closed.")
    elif was_there:
        say(f"The ledger {ledger.name} was there already; nothing was changed.")
    else:
        say(f"Made the ledger {ledger.name}.")
        place = ledger.path.absolute() if isinstance(ledger.path, Path) else ledger.name
        say(
            f"Use it with `--ledger {ledger.name}`, or set GAPGNN_LEDGER to {place}.",
            to_stderr=True,
        )
    return 0


def _grant(ledger: Ledger, args: argparse.Namespace) -> None:
    # Before a large table is read: are the numbers and the relation possible at all?
    privacy.check_epsilon(args.epsilon, "--epsilon")
    if isinstance(args.delta, float):
        privacy.check_delta(args.delta, "--delta")
    privacy.resolve_relation(args.level, args.relation, is_directed=False)
    # What is no day at all is refused by the ledger.
    if (
        args.until is not None
        and ledgers.is_day(args.until)
        and args.until < date.today().isoformat()
    ):
        raise InputError(f"`--until` must not be over. Got {args.until!r}.")
    about_table = {"id": args.id, "population": args.namespace}
    about_table |= {key: getattr(args, key) for key in DIALECT_OPTIONS}
    for option, value in about_table.items():
        if value is not None and args.nodes is None:
            raise InputError(f"`--{option}` must come with `--nodes`. Got no table of people.")
    dialect_of(args)
    known = ledger.summary()
    people, graph = _people(args)
    name = args.population if people is None or args.nodes is not None else people.name
    before = [row for row in known if row.population == name]
    same_level = next((row for row in before if row.level == args.level), None)
    charges = [row for row in ledger.entries(name) if row.level == args.level and row.delta > 0]
    replaced = same_level if same_level and same_level.granted_epsilon is not None else None
    relation, why = _relation(args, same_level, None if graph is None else graph.is_directed)
    delta, origin = _delta(
        args, before, replaced, _entities(args, relation, people, graph), charges
    )
    until = args.until
    if until is None and replaced is not None:
        until = replaced.until
    budget = ledger.grant(
        name,
        people,
        level=args.level,
        relation=relation,
        epsilon=args.epsilon,
        delta=delta,
        composition=args.composition,
        until=None if until == "never" else until,
        reason=args.reason,
    )
    if args.json:
        (plain,) = _plain([budget], ledger.entries(name))
        proposed = {"proposals": ledger.proposals()} if _takes_two(ledger) else {}
        emit_json({"ledger": ledger.name, "budget": plain, **proposed})
        return
    if _takes_two(ledger):
        _say_done(ledger, args, {}, "")
        return
    say(
        f"{budget.population}: {budget.people:,} {'person' if budget.people == 1 else 'people'} in "
        f"the namespace {budget.namespace}. The "
        f"relation is {budget.relation}, {why}; charges come together by {budget.composition}; "
        f"delta is {budget.granted_delta:g}, {origin}.",
        to_stderr=True,
    )
    _print_budgets([budget], ledger.entries(name))


def _people(args: argparse.Namespace) -> tuple[People | None, Graph | None]:
    """Return the people of a budget and, for a data set, its graph.

    The graph of a data set is read, because its name may have been given to other people; the
    ledger refuses the name then.
    """
    from gapgnn.cli.data import reading_bars

    if args.nodes is not None:
        from gapgnn.graph.tables import read_ids

        ledgers.check_population(args.population)
        namespace = (
            "default" if args.namespace is None else ledgers.check_population(args.namespace)
        )
        with reading_bars(args.json) as progress:
            ids = read_ids(args.nodes, args.id, dialect=dialect_of(args), progress=progress)
        return ledgers.People.listed(ids, namespace=namespace, name=args.population), None
    from gapgnn.graph.datasets import dataset_names, load_dataset

    if args.population not in dataset_names():
        return None, None
    with reading_bars(args.json) as progress:
        graph = load_dataset(args.population, split_seed=None, progress=progress)
    return ledgers.People.of(graph), graph


def _relation(
    args: argparse.Namespace, before: Budget | None, is_directed: bool | None
) -> tuple[str, str]:
    """Return the relation of a budget, and where it comes from."""
    if args.relation != "auto":
        return args.relation, "as given"
    if before is not None:
        return before.relation, "as before"
    relation = privacy.resolve_relation(args.level, is_directed=bool(is_directed)).name
    by_graph = args.level == "edge" and is_directed is not None
    return relation, "as the data set is" if by_graph else f"the default at {args.level} level"


def _entities(
    args: argparse.Namespace, relation: str, people: People | None, graph: Graph | None
) -> int:
    """Return how many entities the level protects; 0 if they were not read."""
    if graph is not None:
        promised = privacy.parse_relation(relation, args.level)
        return privacy.EntityCounts.of(graph).protected(promised)
    return len(people.ids) if people is not None and args.level == "node" else 0


def _delta(
    args: argparse.Namespace,
    before: Sequence[Budget],
    replaced: Budget | None,
    entities: int,
    charges: Sequence[Charge],
) -> tuple[float, str]:
    """Return the delta of a budget and where it comes from.

    ``auto`` follows what the level protects, as in a run.
    """
    if isinstance(args.delta, float):
        return args.delta, "as given"
    if args.delta is None and replaced is not None and replaced.granted_delta is not None:
        return replaced.granted_delta, "as before"
    if args.level == "node":
        entities = max([row.people for row in before] + [entities])
    if entities:
        followed = "people" if args.level == "node" else "edges"
        return privacy.auto_delta(entities), f"by the number of {followed}"
    if charges:
        return charges[-1].delta, "that of the last charge"
    if not before and args.nodes is None:
        return privacy.auto_delta(0), "of nobody"  # a name without people is refused by the ledger
    if args.level == "node":
        raise InputError(
            f"`--delta` must be a number: the size of {args.population!r} is not known before "
            "its tables are read again. Got auto."
        )
    raise InputError(
        "`--delta` must be a number at edge level: auto follows the number of edges, as in a run, "
        "and a table of people does not have it. Give the delta of your runs, a power of ten that "
        "is at most 1 / (10 edges), such as `--delta 1e-7` for 600,000 edges."
    )


def _show(ledger: Ledger, args: argparse.Namespace) -> None:
    known = ledger.summary()
    budgets = [row for row in known if row.population == args.population]
    if not budgets:
        names = sorted({row.population for row in known})
        raise InputError(
            f"`NAME` must be a population of {ledger.name}. Got {args.population!r}."
            f"{did_you_mean(args.population, names)} `gapgnn ledger` lists all."
        )
    charges = ledger.entries(args.population)
    if args.json:
        plain = [{k: v for k, v in asdict(row).items() if k != "budget"} for row in charges]
        about = {"ledger": ledger.name, "population": args.population}
        emit_json({**about, "budgets": _plain(budgets, charges), "charges": plain})
        return
    _print_budgets(budgets, charges)
    if charges:
        say("")
        _print_charges(charges, budgets)
    else:
        say(f"Nothing was charged to {args.population} yet.", to_stderr=True)


def _forecast(ledger: Ledger, args: argparse.Namespace) -> None:
    found = ledgers.forecast_fits(
        ledger,
        args.population,
        epsilon=args.epsilon,
        delta=args.delta,
        hops=args.hops,
        level=args.level,
        every=args.every,
    )
    if args.json:
        emit_json({"ledger": ledger.name, "forecast": asdict(found)})
    else:
        _print_forecast(found, args.every)


def _settings(ledger: Ledger, args: argparse.Namespace) -> None:
    if args.value is not None:
        ledger.set(args.name, args.value)
    names = ledgers.SETTINGS if args.name is None else [args.name]
    values = {name: ledger.setting(name) for name in names}
    changes = [row for row in ledger.notes() if row.kind == "setting"]
    if args.json:
        about = {"ledger": ledger.name, "settings": values}
        emit_json({**about, "changes": [asdict(row) for row in changes]})
        return
    for name, value in values.items():
        say(f"{name} {value}")
    for row in changes:
        say(
            f"{_local(row.noted_at)}  {row.who}@{row.host} changed {row.about}.",
            to_stderr=True,
        )


def _export(ledger: Ledger, args: argparse.Namespace) -> None:
    if args.out.suffix.lower() not in (".csv", ".json"):
        raise InputError(f"`--out` must end in .csv or .json. Got {str(args.out)!r}.")
    grants = [asdict(row) for row in ledger.grants()]
    charges = [{k: v for k, v in asdict(row).items() if k != "budget"} for row in ledger.entries()]
    notes = [asdict(row) for row in ledger.notes()]
    try:
        # Exclusive: an earlier export is a record of its own.
        with args.out.open("x", encoding="utf-8", newline="") as file:
            if args.out.suffix.lower() == ".json":
                about: dict[str, Any] = {"ledger": ledger.name, "grants": grants}
                about |= {"charges": charges, "notes": notes, "signers": ledger.signers()}
                about["entries"] = [asdict(row) for row in ledger.chain()]
                file.write(json.dumps(about, indent=1, allow_nan=False) + "\n")
            else:
                _write_csv(file, grants, charges, notes)
    except OSError as error:
        raise InputError(
            f"`--out` must be a new file in a folder that exists. Got {str(args.out)!r}: "
            f"{error.strerror}."
        ) from None
    if args.json:
        counts = {"grants": len(grants), "charges": len(charges)}
        emit_json({"ledger": ledger.name, "out": str(args.out), **counts})
    else:
        say(f"{_counted(len(grants), len(charges))} written to {args.out}.")


def _write_csv(
    file: Any,
    grants: Sequence[dict[str, Any]],
    charges: Sequence[dict[str, Any]],
    notes: Sequence[dict[str, Any]],
) -> None:
    """Write one row for each grant, charge and note, in the order in which they were made."""
    rows = [{"row": "grant", "at": row.pop("granted_at"), **row} for row in grants]
    for row in charges:
        written = {name: json.dumps(row[name]) for name in ("events", "others")}
        rows.append({"row": "charge", "at": row.pop("charged_at"), **row, **written})
    rows += [{"row": "note", "at": row.pop("noted_at"), **row} for row in notes]
    rows.sort(key=lambda row: str(row["at"]))
    columns = dict.fromkeys(name for row in rows for name in row)
    table = csv.DictWriter(file, list(columns) or ["row", "at"])
    table.writeheader()
    for row in rows:
        table.writerow({k: plain_cell(v) if isinstance(v, str) else v for k, v in row.items()})


def _key(ledger: Ledger, args: argparse.Namespace) -> None:
    public_key = ledgers.make_key(args.out)
    if args.json:
        emit_json({"out": str(args.out), "public_key": public_key})
        return
    say(public_key)
    say(
        f"Made the private key {args.out}, which is its owner's alone. Register the public key "
        f"with `gapgnn ledger signer NAME {public_key}`, and sign with "
        f"GAPGNN_SIGNING_KEY={args.out}.",
        to_stderr=True,
    )


def _signer(ledger: Ledger, args: argparse.Namespace) -> None:
    ledger.add_signer(args.name, args.public_key)
    _say_done(ledger, args, {"signers": ledger.signers()}, f"{args.name} is a signer.")


def _approve(ledger: Ledger, args: argparse.Namespace) -> None:
    if args.number is not None:
        ledger.approve(args.number)
    proposals = ledger.proposals()
    if args.json:
        emit_json({"ledger": ledger.name, "approved": args.number, "proposals": proposals})
        return
    if args.number is not None:
        say(f"Approved proposal {args.number}.")
    for number, terms in proposals.items():
        listed = ", ".join(f"{name} {value}" for name, value in terms.items() if value)
        say(f"{number}  {listed}")
    if not proposals and args.number is None:
        say("Nothing is proposed.", to_stderr=True)


def _takes_two(ledger: Ledger) -> bool:
    return ledger.setting("two-person-grants") == "on"


def _say_done(ledger: Ledger, args: argparse.Namespace, state: dict[str, Any], done: str) -> None:
    """Say that something was changed, or that it is a proposal which somebody else approves."""
    proposals = ledger.proposals()
    if args.json:
        emit_json({"ledger": ledger.name, **state, "proposals": proposals})
    elif _takes_two(ledger):
        say(
            f"Proposed: another signer approves it with `gapgnn ledger approve {max(proposals)}`."
            if proposals
            else done
        )
    else:
        say(done)


def _watch(ledger: Ledger, args: argparse.Namespace) -> int:
    """Print the budgets that are used up to a share or have ended; exit with 1 if there are any."""
    warn_at = check_number("--warn-at", args.warn_at, above=0)
    today = date.today().isoformat()
    rows: list[dict[str, Any]] = []
    for row in ledger.summary():
        if row.granted_epsilon is None:
            continue
        parts = [row.spent_epsilon / row.granted_epsilon if row.granted_epsilon else 1.0]
        # By the other rules the delta of all charges together is the budget's from the first one.
        if row.composition == "sum" and row.granted_delta:
            parts.append(row.spent_delta / row.granted_delta)
        has_ended = row.until is not None and row.until < today
        found = {"population": row.population, "level": row.level, "share": max(parts)}
        ends = {"until": row.until, "has_ended": has_ended}
        warns = has_ended or max(parts) >= warn_at
        rows.append({**found, "left_epsilon": row.left_epsilon, **ends, "warns": warns})
    warned = [about for about in rows if about["warns"]]
    if args.json:
        emit_json({"ledger": ledger.name, "warn_at": warn_at, "budgets": rows})
    for about in () if args.json else warned:
        why = f"ended on {about['until']}" if about["has_ended"] else f"{about['share']:.0%} used"
        say(f"{about['population']} at {about['level']} level: {why}.")
    return 1 if warned else 0


def _against(ledger: Ledger, place: Path) -> list[str]:
    """Return what an export, a release or the card of a model has, and the ledger has not."""
    path = place
    if place.is_dir():
        path = next((place / one for one in _EXCERPTS if (place / one).is_file()), place)
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        if written.get("excerpt"):
            links = [one["link"] for one in (*written["charges"], written["head"])]
            return _missing_links(ledger, links, "link of the release")
        entries = written.get("entries")
        note = written.get("ledger")
        head = note.get("head") if isinstance(note, dict) else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        entries = head = None
    if entries is not None:
        return ledger.missing(entries)
    if head is None:
        raise InputError(
            "`--against` must be an export in JSON, a release, a saved model or its card.json, of "
            f"gapgnn 0.3 or later. Got {str(place)!r}."
        )
    missing = _missing_links(ledger, [head], "head of the card")
    return missing or _removals_missing(ledger, place)


def _missing_links(ledger: Ledger, links: Sequence[str], what: str) -> list[str]:
    """Return which links are not in the chain; each covers its entry and everything before it."""
    known = {entry.link for entry in ledger.chain()}
    return [
        f"the {what}, {link}, is not in the chain: an entry was changed or removed"
        for link in dict.fromkeys(links)
        if link not in known
    ]


def _removals_missing(ledger: Ledger, place: Path) -> list[str]:
    """Return which removals of people the ledger has and a folder has not, or the other way."""
    if not place.is_dir():
        return []
    from gapgnn.methods import unfinished

    return unfinished(place, ledger)


def _verify(ledger: Ledger, args: argparse.Namespace) -> int:
    problems = ledger.problems()
    if args.against is not None and not problems:
        problems = _against(ledger, args.against)
    for problem in problems:
        complain(f"{ledger.name}: {problem}.")
    if args.json:
        emit_json({"ledger": ledger.name, "problems": problems})
    elif not problems:
        counted = _counted(len(ledger.grants()), len(ledger.entries()))
        say(f"{ledger.name}: {counted}, none changed or removed.")
    return IntegrityError.exit_code if problems else 0


def _counted(grants: int, charges: int) -> str:
    """Return two counts in words.

    >>> _counted(1, 12)
    '1 grant and 12 charges'
    """
    counts = {"grant": grants, "charge": charges}
    return " and ".join(f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items())


def _plain(budgets: Sequence[Budget], charges: Sequence[Charge]) -> list[dict[str, Any]]:
    """Return budgets for programs, with what their charges cost by the tightest proof."""
    return [
        {**asdict(row), "composed_epsilon": ledgers.composed_epsilon(charges, row)}
        for row in budgets
    ]


def spent_sentence(row: Budget, charges: Sequence[Charge]) -> str:
    """Return what all charges of a budget cost: by its composition, and by the tightest proof.

    Args:
        row: the budget.
        charges: those of its ledger.
    """
    composed = ledgers.composed_epsilon(charges, row)
    counts = "their sum" if row.granted_epsilon is None else f"counted by {row.composition}"
    return (
        f"All charges to {row.population} at {row.level} level: epsilon "
        f"{_rounded(row.spent_epsilon, up=True)} {counts}, which holds however each was chosen "
        f"after the ones before; epsilon {_rounded(composed, up=True)} composed, which is proved "
        "if none was chosen by what another one showed."
    )


def _print_budgets(budgets: Sequence[Budget], charges: Sequence[Charge]) -> None:
    has_end = any(row.until for row in budgets)
    heads = ["population", "level", "relation", "composition", "granted", "spent", "composed"]
    heads.append("left")
    heads += ["until", "charges"] if has_end else ["charges"]
    rows = []
    for row in budgets:
        granted = "-"
        if row.granted_epsilon is not None:
            granted = f"{row.granted_epsilon:g} / {row.granted_delta:g}"
        spent = _amount(row, row.spent_epsilon, row.spent_delta, up=True)
        composed = ledgers.composed_epsilon(charges, row)
        shown = _rounded(composed, of=row.granted_epsilon or 0.0, up=True)
        left = _amount(row, row.left_epsilon, row.left_delta, up=False)
        rule = row.composition if row.granted_epsilon is not None else "-"
        cells = [row.population, row.level, row.relation, rule, granted, spent, shown, left]
        rows.append([*cells, *([row.until or "-"] if has_end else []), str(row.charges)])
    _print_table(heads, rows, left=4)
    say(
        "Amounts are epsilon / delta; by gaussian and renyi, delta is the budget's.", to_stderr=True
    )
    if any(row.charges for row in budgets):
        say(
            "Spent is what the budget counts and what limits it: it holds however each release was "
            "chosen after the ones before. Composed is the smallest epsilon that is proved for the "
            "same releases at the same delta, if none was chosen by what another one showed.",
            to_stderr=True,
        )
    if any(row.granted_epsilon is None for row in budgets):
        say(
            "No budget: recorded, not limited. `gapgnn ledger grant NAME` sets one.",
            to_stderr=True,
        )


def _print_charges(charges: Sequence[Charge], budgets: Sequence[Budget]) -> None:
    granted = {row.level: row.granted_epsilon or 0.0 for row in budgets}
    heads = ["when", "who", "for", "level", "alone", "together"]
    rows, remarks = [], []
    for row in charges:
        alone = "-"  # for an access of the curator, which costs nothing
        if row.count:
            alone = f"{_rounded(row.epsilon, up=True)} / {_rounded(row.delta, up=True)}"
        together = "-"
        if row.together is not None:
            together = _rounded(row.together, of=granted[row.level], up=True)
        purpose = row.purpose + (f" (with {len(row.others)} more)" if row.others else "")
        cells = [_local(row.charged_at), f"{row.who}@{row.host}".strip("@") or "-", purpose]
        times = f"{row.count} x " if row.count > 1 else ""
        rows.append([*cells, row.level, times + alone, together])
        remark = [("reason", row.reason), ("command", row.command)]
        remarks.append([f"{name}: {text}" for name, text in remark if text])
        if not row.completed_at:
            remarks[-1].append("spent, and not noted as completed")
    _print_table(heads, rows, left=4, remarks=remarks)
    say(
        "Each charge alone is epsilon / delta; together is the epsilon of all up to it as the "
        "budget counts them, at its delta.",
        to_stderr=True,
    )


def _print_forecast(found: Forecast, every: int) -> None:
    hops = "" if found.hops is None else f", {found.hops} hop{'s' * (found.hops != 1)}"
    fits, fit_in = ("fit", "fits") if found.fits == 1 else ("fits", "fit")
    say(
        f"{found.fits:,} more {fits} of epsilon {_rounded(found.epsilon, up=True)} (delta "
        f"{found.delta:g}{hops}) {fit_in} the budget of {found.population} at {found.level} level "
        f"({found.granted_epsilon:g} / {found.granted_delta:g}, {found.composition}, "
        f"{found.relation})."
    )
    if found.plan:
        rows = []
        for fit in found.plan[:MOST_SHOWN]:
            of = (found.granted_epsilon, found.granted_delta)
            spent = _pair(found.composition, fit.spent_epsilon, fit.spent_delta, of, up=True)
            left = _pair(found.composition, fit.left_epsilon, fit.left_delta, of, up=False)
            rows.append([str(fit.number), fit.day, spent, left])
        _print_table(["fit", "day", "spent", "left"], rows, left=0)
    if len(found.plan) > MOST_SHOWN:
        say(f"... and so on, every {every} days.")
    if found.until is not None and len(found.plan) < min(found.fits, MOST_SHOWN):
        say(f"The budget ends on {found.until}: {len(found.plan)} of them are in time.")
    say("")
    say("More fits with the noise of each hop as it is:" if found.hops else "More fits:")
    heads = ["hops", "epsilon", *(f"by {rule}" for rule in COMPOSITIONS)]
    rows = [
        [
            "-" if row.hops is None else str(row.hops),
            _rounded(row.epsilon, up=True),
            *("-" if fits is None else f"{fits:,}" for fits in map(row.fits.get, COMPOSITIONS)),
        ]
        for row in found.alternatives
    ]
    _print_table(heads, rows, left=0)
    say("By sum the deltas of fits add up as well; a smaller `--delta` may help.", to_stderr=True)


def _print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int,
    remarks: Sequence[Sequence[str]] = (),
) -> None:
    """Print aligned columns, the first ones to the left; a line is never broken."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for number, row in enumerate((heads, *rows)):
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        say("  ".join(cells).rstrip())
        for remark in remarks[number - 1] if number and remarks else ():
            say(f"    {remark}")


def _amount(row: Budget, epsilon: float | None, delta: float | None, *, up: bool) -> str:
    if epsilon is None or delta is None:
        return "-"
    of = (row.granted_epsilon or 0.0, row.granted_delta or 0.0)
    return _pair(row.composition, epsilon, delta, of, up=up)


def _pair(
    composition: str, epsilon: float, delta: float, of: tuple[float, float], *, up: bool
) -> str:
    shown = _rounded(epsilon, of=of[0], up=up)
    return shown if composition != "sum" else f"{shown} / {_rounded(delta, of=of[1], up=up)}"


def _rounded(value: float, *, of: float = 0.0, up: bool) -> str:
    """Return a number with four digits, rounded to the safe side; 0 for a negligible one.

    >>> _rounded(3.46412, up=True), _rounded(0.53588, up=False), _rounded(1.099e-10, of=4, up=True)
    ('3.465', '0.5358', '0')
    """
    if value == 0 or abs(value) < NOTHING * of:
        return "0"
    # Nine digits first: what a float is off by is no reason to round 1.0000000000002 up.
    exact = Decimal(f"{value:.9g}")
    digits = Decimal(1).scaleb(exact.adjusted() - 3)
    return f"{float(exact.quantize(digits, ROUND_CEILING if up else ROUND_FLOOR)):.6g}"


def _local(moment: str) -> str:
    """Return a time of the ledger in the local time zone."""
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M")
