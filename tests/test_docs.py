"""The pages tell the truth: their code runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from gapgnn.privacy.accounting import events

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
GENERATED = sorted(f"docs/generated/{path.name}" for path in (ROOT / "docs/generated").glob("*"))
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# What stands for something else: FOLDER, METHOD, K, and dots for what was left out.
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*|\.\.\.")


class Block(NamedTuple):
    language: str
    text: str
    line: int
    file: str | None  # the name in "`people.csv`:" right before the block


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    text = text_of(page)
    blocks = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        named = re.search(r"`(\S+)`:\s*$", before)
        name = named[1] if named else None
        blocks.append(Block(match[2], match[3], before.count("\n") + 2, name))
    return blocks


def with_blocks(*languages: str) -> list[str]:
    return [page for page in PAGES if any(b.language in languages for b in blocks_of(page))]


def gapgnn_commands(text: str) -> Iterator[list[str]]:
    """Return the words after each `gapgnn` of a shell text, without redirections and comments."""
    for line in text.replace("\\\n", " ").splitlines():
        if not re.search(r"(^|/|\s)gapgnn\s?", line):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, "&&"]:
            if word.strip("&|;<>()"):
                command.append(word)
                continue
            if command and command[0].rpartition("/")[2] == "gapgnn":
                yield command[1:]
            command = []


def problem_with(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return what the command line would complain about; nothing is executed."""
    import gapgnn

    cli = importlib.import_module("gapgnn.cli.main")
    if not words or words[0].startswith("-"):
        return None if words[:1] in ([], ["--help"], ["--version"]) else f"no option {words[0]}"
    if words[0] not in cli.COMMANDS:
        return f"no command {words[0]!r}"
    module = importlib.import_module(cli.COMMANDS[words[0]][0])
    if any(PLACEHOLDER.fullmatch(word) for word in words):
        return unknown_option(words)
    seen = []
    monkeypatch.setattr(module, "execute", lambda args: seen.append(args) or 0)
    try:
        cli.main(words)
    except gapgnn.GapgnnError as error:
        return str(error)
    if words[:2] == ["audit", "pipeline"]:
        inner = list(seen[0].command)
        # The audit names the output of a prediction itself.
        out = ["--out", "labels.csv"] if inner[:1] == ["predict"] and "--out" not in inner else []
        return problem_with(inner + out, monkeypatch)
    return None


def unknown_option(words: list[str]) -> str | None:
    """Return the first option that the command of an incomplete line, or a subcommand, lacks."""
    cli = importlib.import_module("gapgnn.cli.main")
    known: list[str] = []
    for word in words if words[:2] == ["audit", "pipeline"] else words[:1]:
        if word in cli.COMMANDS:
            parser = cli.Parser()
            importlib.import_module(cli.COMMANDS[word][0]).configure(parser)
            known += parser.option_names()
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    return next((f"no option {option}" for option in options if option not in known), None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a ledger of its own."""
    from gapgnn import Ledger

    monkeypatch.setenv("GAPGNN_LEDGER", str(Ledger.init(tmp_path / "ledger.sqlite").path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_files(page: str, folder: Path) -> None:
    """Write what a page's code reads: the files it shows, and tables for the page on scale."""
    for block in blocks_of(page):
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
    if page == "docs/scale.md":
        import numpy as np
        import pyarrow as pa
        from pyarrow import parquet

        rng = np.random.default_rng(0)
        people = np.arange(600)
        ends = rng.integers(0, len(people), size=(2, 3000))
        nodes = {"id": people, "age": rng.normal(size=len(people)), "year": people % 3}
        parquet.write_table(pa.table(nodes), folder / "people.parquet")
        table = pa.table({"source": ends[0], "target": ends[1]})
        parquet.write_table(table, folder / "friends.parquet")


def run_python(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(page, folder)
    module = ModuleType("page")
    # A dataclass looks its own module up.
    monkeypatch.setitem(sys.modules, "page", module)
    # An event that a page defines is forgotten with it.
    monkeypatch.setattr(events, "_KINDS", dict(events._KINDS))
    for block in blocks_of(page):
        if block.language == "python":
            # Empty lines in front: a traceback then names the line of the page.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(ROOT / page), "exec", dont_inherit=True), vars(module))


# What a page shows the library saying.
says = (
    pytest.mark.filterwarnings("ignore:the graph has no masks"),
    pytest.mark.filterwarnings("ignore:.* folds of"),
)


@pytest.mark.parametrize("page", [pytest.param(p, marks=says) for p in with_blocks("python")])
def test_the_python_of_a_page_runs(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gapgnn

    # Two epochs instead of hundreds: here the code has to run, not the model to be good.
    for name in ("GAP", "LabelGAP", "NodeLabelGAP"):
        quick = functools.partial(getattr(gapgnn, name), epochs=2)
        monkeypatch.setitem(vars(gapgnn), name, quick)
    run_python(page, folder, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(p, marks=says) for p in with_blocks("python")])
def test_the_python_of_a_page_runs_exactly_as_written(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_python(page, folder, monkeypatch)


@pytest.mark.parametrize("page", with_blocks("toml", "json"))
def test_the_data_of_a_page_parses(page: str) -> None:
    readers = {"toml": tomllib.loads, "json": json.loads}
    for block in blocks_of(page):
        if block.language in readers:
            readers[block.language](block.text)


@pytest.mark.parametrize("page", with_blocks("", "bash"))
def test_the_commands_of_a_page_exist_with_their_options(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(page, folder)
    problems = [
        f"{page}:{block.line}: gapgnn {shlex.join(words)}: {problem}"
        for block in blocks_of(page)
        if block.language in ("", "bash")
        for words in gapgnn_commands(block.text)
        if (problem := problem_with(words, monkeypatch))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", [*PAGES, *GENERATED])
def test_the_commands_within_sentences_exist_with_their_options(page: str) -> None:
    from gapgnn.cli.main import COMMANDS

    spans = re.findall(r"`gapgnn (\w[^`]*)`", FENCE.sub("", text_of(page)))
    for words in (span.split() for span in spans):
        assert words[0] in COMMANDS, words
        assert unknown_option(words) is None, words


@pytest.mark.parametrize("page", [*PAGES, *GENERATED, "SECURITY.md", "CONTRIBUTING.md"])
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text_of(page))):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, target


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("gapgnn trian", "trian"),
        ("gapgnn train gap --epsilonn 1", "--epsilonn"),
        ("gapgnn train gap --epsilon much", "much"),
        ("gapgnn train METHOD --epsilonn 1", "--epsilonn"),
        ("pip install x && .venv/bin/gapgnn trian", "trian"),
        ("gapgnn audit pipeline train gap --levle node >> found.jsonl", "--levle"),
        ("gapgnn audit pipeline train gap --levle node ...", "--levle"),
    ],
)
def test_a_wrong_command_is_found(line: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = gapgnn_commands(line)
    assert problem in (problem_with(words, monkeypatch) or "")


FORM = re.compile(
    r"# (?P<title>.+)\n\n"
    r"(?P<commands>(?:- Command: `(?:python benchmarks/|gapgnn |pytest )[^`]+`.*\n)+)"
    r"- Machine: .+\n- Date: \d{4}-\d\d-\d\d\n- Origin: .+\n\n"
    r"(?P<table>\|.+\|\n\|(?:---\|)+\n(?:\|.*\|\n)+)"
)


def fault_of_generated(text: str) -> str | None:
    """Return how a page of docs/generated is not of its form; nothing else may stand there."""
    found = FORM.fullmatch(text)
    if found is None:
        return "not a heading, command, machine, date, origin and one table"
    if len({line.count("|") for line in found["table"].splitlines()}) != 1:
        return "rows of different lengths"
    for script, options in re.findall(r"`python ([^\s`]+)([^`]*)`", found["commands"]):
        if not (ROOT / script).is_file():
            return f"no script {script}"
        known = text_of(script) + text_of("benchmarks/generated.py")
        for option in re.findall(r"--[a-z-]+", options):
            if f'"{option}"' not in known:
                return f"{script} has no option {option}"
    return None


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_table_has_its_form_and_a_page_links_to_it(page: str) -> None:
    assert fault_of_generated(text_of(page)) is None
    name = page.removeprefix("docs/")
    assert any(f"({name})" in text_of(other) for other in PAGES), f"no page links to {page}"


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("- Command: ", ""),
        ("- Machine: ", ""),
        ("- Date: ", "- Date: yesterday"),
        ("- Origin: ", ""),
        ("|---", ""),
        ("| GAP", "| GAP | 1 | 2 | 3 | 4 | 5 | 6 |"),
        ("- Command: ", "- Command: `python benchmarks/nothing.py`"),
        ("- Command: ", "- Command: `python benchmarks/h200.py all --markdwon`"),
        ("- Date: ", "- Date: 2026-11-15\n\nA remark."),
    ],
)
def test_a_generated_table_out_of_form_is_found(line: str, replacement: str) -> None:
    good = (
        "# Seconds\n\n- Command: `python benchmarks/h200.py all --runs 3`\n- Machine: a GPU\n"
        "- Date: 2026-11-15\n- Origin: written by `--markdown`\n\n"
        "| what | seconds |\n|---|---|\n| GAP | 1.0 |\n"
    )
    assert fault_of_generated(good) is None
    bad = re.sub(rf"^{re.escape(line)}.*\n", replacement and replacement + "\n", good, flags=re.M)
    assert bad != good
    assert fault_of_generated(bad) is not None


def test_the_benchmarks_write_that_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    generated = importlib.import_module("generated")
    words = ["h200.py", "all", "--runs=3", "--markdown", str(tmp_path / "h200.md")]
    monkeypatch.setattr(sys, "argv", words)
    generated.write(tmp_path / "h200.md", "Seconds", generated.table(["a", "b"], [["1", "2"]]))
    text = (tmp_path / "h200.md").read_text(encoding="utf-8")
    assert fault_of_generated(text) is None
    command = "python benchmarks/h200.py all --runs=3 --markdown docs/generated/h200.md"
    assert f"- Command: `{command}`\n" in text
    assert str(tmp_path) not in text


@pytest.fixture
def reference() -> Iterator[dict[str, object]]:
    """What pdoc has to say about each public name after the script has loaded them."""
    pdoc = pytest.importorskip("pdoc", reason="comes with the dev extra")
    import gapgnn

    spec = importlib.util.spec_from_file_location("build_api", ROOT / "docs" / "build_api.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert gapgnn in script.public_packages()
    lazy = [name for name in gapgnn.__all__ if name not in vars(gapgnn)]
    script.load_names(gapgnn)
    yield pdoc.doc.Module(gapgnn).members
    for name in lazy:
        vars(gapgnn).pop(name)


def test_every_public_name_is_described_in_the_reference(reference) -> None:
    import gapgnn

    for name in gapgnn.__all__:
        if name != "__version__":
            assert getattr(gapgnn, name).__doc__, name
            assert reference[name].kind in ("class", "function"), name
            assert reference[name].docstring, name
