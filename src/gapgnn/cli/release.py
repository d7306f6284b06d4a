"""``gapgnn release``: a model with the evidence for what it promises, for outsiders."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from gapgnn.cli.output import begin, complain, emit_json, note, say

if TYPE_CHECKING:
    from gapgnn.evaluation.release import Signer, Written

EPILOG = """\
Nothing is charged, and the model's folder stays as it is. A model whose promise does not hold is
refused; what no promise covers is left out, and the command says why.

examples:
  gapgnn release model --out release
  gapgnn release model --out release --about about.toml     with an entry for the OpenDP registry
  gapgnn release model --out release --key key.pem           signed
  gapgnn release model --out release --ids-are-public        node level, with released rows
  gapgnn verify release --public-key key.pub

  openssl ecparam -genkey -name prime256v1 -noout -out key.pem
  openssl ec -in key.pem -pubout -out key.pub

about.toml states what no model knows:
  name = "Risk of default, 2027"
  curator = "A bank"
  curator_type = "Industry"          # or Government, Nonprofit
  intended_use = "Research on contagion between customers"
  region = "Europe"
  authors = ["A. Curator"]
  # and, if you like: description, sector, slug, justification, people, url
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument("model", type=Path, metavar="FOLDER", help="a saved model")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="a new folder for the release"
    )
    parser.add_argument(
        "--ledger", metavar="FILE", help="the ledger that was charged (default: your own)"
    )
    parser.add_argument(
        "--about",
        type=Path,
        metavar="FILE",
        help="TOML: who publishes it, and what for; without it no registry entry is written",
    )
    parser.add_argument(
        "--ids-are-public",
        action="store_true",
        help="state that who is in the data is public: at node level, released rows say how many "
        "people there are, and by their ids who, unless those are keyed hashes",
    )
    parser.add_argument(
        "--date", metavar="DAY", help="the day of the release, as 2027-01-31 (default: today)"
    )
    signature = parser.add_argument_group("signature (OpenSSF model signing, offline)")
    signature.add_argument(
        "--key", type=Path, metavar="FILE", help="your private key: P-256, P-384 or P-521, PEM"
    )
    signature.add_argument(
        "--certificate", type=Path, metavar="FILE", help="the certificate of that key, PEM"
    )
    signature.add_argument(
        "--chain",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="certificates between that one and the root",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Write the release, and say what it holds and what it does not."""
    begin("Writing the release: loading the libraries")
    from gapgnn.evaluation.release import read_about, write_release

    written = write_release(
        args.model,
        args.out,
        ledger=args.ledger,
        about=None if args.about is None else read_about(args.about),
        signer=_signer(args),
        ids_are_public=args.ids_are_public,
        made=args.date,
    )
    for one in written.left_out:
        if not one.is_public:
            # For the curator alone: the name of the file is in no file of the release.
            complain(f"left out: {one.what}. {one.why}")
    if args.json:
        emit_json(_values(written))
        return 0
    say(f"{args.out}: {written.decision.answer}")
    for recipient in written.decision.recipients:
        say(f"  {recipient.what} -> {recipient.who}: {recipient.why}")
    for condition in written.decision.conditions:
        note(f"Before that: {condition}")
    for one in written.left_out:
        if one.is_public:
            note(f"Left out: {one.what}. {one.why}")
    note(f"Check it anywhere: gapgnn verify {shlex.quote(str(args.out))}", is_path=True)
    return 0


def _signer(args: argparse.Namespace) -> Signer | None:
    from gapgnn.errors import InputError
    from gapgnn.evaluation.release import Signer

    if args.key is None:
        if args.certificate is not None or args.chain:
            raise InputError("`--certificate` must come with `--key`. Got no key.")
        return None
    return Signer(args.key, args.certificate, tuple(args.chain))


def _values(written: Written) -> dict[str, object]:
    from dataclasses import asdict

    decision = written.decision
    return {
        "release": str(written.folder),
        "answer": decision.answer,
        "recipients": [asdict(one) for one in decision.recipients],
        "conditions": list(decision.conditions),
        "left_out": [{"what": one.what, "why": one.why} for one in written.left_out],
        "signer": written.verification.signer,
        "checks": [asdict(one) for one in written.verification.checks],
    }
