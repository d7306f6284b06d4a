"""Lists words of the first release that this project no longer uses: ``python docs/words.py``.

Pages, messages, docstrings, help texts and names use the terms of the literature (CONTRIBUTING.md,
Language). Each entry of ``INSTEAD`` is a word with what to write instead; spaces in it stand for
any of space, underscore, hyphen and line break, and words joined in CamelCase are found too.
``ALLOWED`` holds the exceptions, each with its reason; one that allows nothing any more is an
error. Exit code 1: something is left.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
READ = (".py", ".pyi", ".md", ".j2", ".js", ".toml", ".ipynb")
# What is read: everything of the project that is written by hand.
PLACES = ("src", "tests", "benchmarks", "docs", "*.md", "*.toml", "conftest.py")

INSTEAD = {
    r"% found|found so": "recall",
    r"lists and entries|entries of lists?": "adjacency lists, neighbours",
    r"goes both|go both": "symmetrised",
    r"wanted shares?|shares wanted|from how much": "release threshold",
    r"looks?(?= ?\()|looks? at validation": "next batch, validate, logged access",
    r"(?:def|class) (?:meet|inherit)s?": "match, copy charges",
    r"(?:with|a|their|its|own) fronts?(?! pages?)|fronts": "public API, packages",
    r"own lists?": "own neighbours",
    r"out lists?": "adjacency list",
    r"lists? lengths?|lists? s? ?lengths?|lengths? of (?:a |the |its |their )?lists?": "out-degree",
    r"kinds?": "edge type, event type, column type ... whichever it is",
    r"all kinds|total of all kinds|kinds? of edges?": "union of edge types",
    r"both ways": "symmetrised",
    r"divided (?:messages?|rows?|hops?)|(?:is )?divided(?= ?[:=])": "degree-normalised",
    r"(?:pay|pays|paid) apart|apart(?= ?[:=])": "composed per group",
    r"voices?": "verbosity; of models: ensemble members",
    r"(?:is |are |were |was |been |not |un)?told|heard": "shown, distinguished, printed",
    r"called so": "precision",
    r"(?:features?|neighbours|edges|both) say": "feature model, ensemble",
    r"believed|trusts?": "mixing weight",
    r"lessons?": "learnability",
    r"worth(?= ?[:=,)])": "effective epsilon, weight",
    r"networks of a stage": "ensemble members",
    r"some nodes(?= ?\()|deals?": "minibatch steps, next batch",
    r"chances": "probabilities",
    r"slopes?": "gradient",
    r"is papers|the paper'?s way": "GAP",
    r"doors?|rooms|house": "dispatch, public API, packages, project",
    r"witness(?:es)?": "release observer",
    r"books?|welcomes?": "ledger transaction, enrol",
    r"journals?": "checkpoint",
    r"friendships?": "edge",
    r"no grant": "no budget is set",
    r"worst cases(?= ?\()": "composition per group",
}

# One text or more for every row of the table that the words come from; each must be found.
EXAMPLES = (
    "83.5% found",
    "the own list of a node",
    "its out-lists",
    "what features say",
    "several kinds of edges",
    "divided messages",
    "roles pay apart",
    "how far a stage is believed",
    "a network's voice",
    "members are told and heard",
    "def is_papers(self)",
    "the paper's way",
    "a lesson",
    "worth=3",
    "networks of a stage",
    "deal(batch)",
    "class Witness",
    "the books of the ledger",
    "def meet(self)",
    "def inherit(self)",
    "ledger.look(people)",
    "journal",
    "a friendship",
    "no grant: recorded",
    "the front door of its own house",
    "chances and slopes",
)


class Allowed(NamedTuple):
    """An exception: where, which words, and why."""

    path: str
    words: str
    reason: str


# A word of NumPy's and of Python's.
_PYTHON = r'kind="stable"|dtype\.kind|\w\.dtype\.kind'
ALLOWED: tuple[Allowed, ...] = (
    Allowed("*.py", _PYTHON, "how NumPy names its sorts and its classes of types"),
    Allowed("src/gapgnn/privacy/ledger/sqlite.py", "journal", "SQLite's word for its own file"),
    Allowed(
        "src/gapgnn/privacy/mechanisms/*.py",
        r'derive\("kind"|derive\("total of all kinds"|NOISE_PATH = "length of lists"',
        "part of the path of a key: another word would be other noise",
    ),
    Allowed(
        "src/gapgnn/graph/fingerprint.py",
        r'update\(f"kind',
        "part of the content that is hashed: another word would be another fingerprint",
    ),
    Allowed("src/gapgnn/graph/degree.py", "out-list order", "part of the path of a key"),
    Allowed(
        "src/gapgnn/attacks/own_neighbours.py",
        r'experiment_rng\(seed, "own list"\)',
        "part of the path of a seed: another word would be other pairs",
    ),
    Allowed("tests/graph/test_edge_types.py", r'\{"kind": manifest', "a store of earlier versions"),
    Allowed(
        "src/gapgnn/privacy/ledger/*.py",
        r'kind \{text\}|(?:"|seq, )kind, about|SELECT kind|INTO notes \(kind|WHERE kind|^kind: str'
        "|``kind`` is",
        "a column of the ledger's file, under its chain",
    ),
    Allowed("*.py", r"(?:note|row|one)\.kind\b", "the same column, as Python sees it"),
    Allowed(
        "CHANGELOG.md",
        r"`--kinds` \(|`kind = \"number\"`|`--both-ways`|`Graph\.kind`|`fit\(journal=\)`"
        r"|`gapgnn attack own-list`|`other-kind` and|`audit_pipeline\(kinds=\)`",
        "names of earlier versions beside those that replace them",
    ),
    Allowed("src/gapgnn/methods/folder.py", '"kind": audit', "a field of audits in saved folders"),
    Allowed("src/gapgnn/evaluation/*/*.py", r'(?:audit|record)\["kind"\]', "the same field"),
    Allowed("src/gapgnn/privacy/checkpoint.py", "INDEX = ", "a file of runs that are resumed"),
    Allowed("tests/methods/*.py", r'"journal\.json"', "the same file"),
    Allowed("tests/privacy/test_checkpoint.py", r'"journal\.json"', "the same file"),
    Allowed("tests/privacy/test_ledger*.py", "journal", "SQLite's word for its own file"),
    Allowed("tests/privacy/test_ledger.py", '"kind": "gaussian"', "as old ledgers have it"),
    Allowed("tests/*.py", r"\bp\.kind is inspect", "how Python names it"),
    Allowed("src/gapgnn/privacy/accounting/*.py", "slope", "the slope of a curve"),
    Allowed("tests/privacy/test_selection.py", "slope", "the same"),
    Allowed("tests/methods/test_erasure.py", "WHERE kind", "a column of the ledger's file"),
    Allowed("tests/attacks/test_fit_audit.py", '"kind"', "a field of audits in saved folders"),
    Allowed("tests/privacy/test_ledger_places.py", "/30 trust", "PostgreSQL's word"),
)


class Hit(NamedTuple):
    """A word that was found."""

    path: str
    line: int
    found: str
    instead: str
    text: str


def _compiled(pattern: str) -> re.Pattern[str]:
    spaced = pattern.replace(" ?", r"[\s_-]*").replace(" ", r"[\s_#-]+")
    return re.compile(rf"(?<![A-Za-z])(?:{spaced})(?![A-Za-z])", re.IGNORECASE)


PATTERNS = {_compiled(pattern): instead for pattern, instead in INSTEAD.items()}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def files() -> Iterator[Path]:
    """Return every file that is read."""
    for place in PLACES:
        for top in sorted(ROOT.glob(place)):
            paths = [top] if top.is_file() else sorted(top.rglob("*"))
            yield from (
                one for one in paths if one.suffix in READ and "__pycache__" not in one.parts
            )


def hits_of(path: str, text: str) -> Iterator[Hit]:
    """Return the words of one file."""
    spaced = _CAMEL.sub("_", text)
    lines = text.splitlines()
    for pattern, instead in PATTERNS.items():
        for match in pattern.finditer(spaced):
            line = spaced.count("\n", 0, match.start())
            found = " ".join(match[0].split())
            yield Hit(path, line + 1, found, instead, lines[line].strip())


def main() -> int:
    """Print what is left, and return 1 if anything is."""
    used: set[Allowed] = set()
    left = []
    for file in files():
        path = str(file.relative_to(ROOT))
        if file == Path(__file__).resolve():
            continue
        for hit in hits_of(path, file.read_text(encoding="utf-8")):
            reasons = [
                one
                for one in ALLOWED
                if fnmatch(path, one.path) and re.search(one.words, hit.text, re.IGNORECASE)
            ]
            used.update(reasons)
            if not reasons:
                left.append(hit)
    for hit in sorted(left):
        print(f"{hit.path}:{hit.line}: {hit.found!r}; write {hit.instead}: {hit.text}")
    stale = [one for one in ALLOWED if one not in used]
    for one in stale:
        print(f"docs/words.py: nothing to allow any more: {one.words!r} in {one.path}")
    return int(bool(left or stale))


if __name__ == "__main__":
    sys.exit(main())
