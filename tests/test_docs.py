"""The pages tell the truth: their code runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from gapgnn.privacy.accounting import events

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "examples/README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*.md")
        if path.parent.name != "generated"
    ),
]
GENERATED = sorted(f"docs/generated/{path.name}" for path in (ROOT / "docs/generated").glob("*"))
# Made from the package when the site is built (docs/site/hooks.py).
MADE = {
    ROOT / "docs" / page
    for page in (
        "how-to/examples.md",
        *(f"reference/{one}.md" for one in ("gapgnn", "accounting", "attacks", "audits")),
        *("reference/commands.md", "tutorials/notebook.md"),
    )
}
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
    if page == "docs/how-to/scale.md":
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
    monkeypatch.setattr(events, "_EVENT_CLASSES", dict(events._EVENT_CLASSES))
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


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=says if page == "README.md" else [*says, pytest.mark.gate])
        for page in with_blocks("python")
    ],
)
def test_the_python_of_a_page_runs(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gapgnn

    # Two epochs instead of hundreds: here the code has to run, not the model to be good.
    for name in ("GAP", "LabelGAP", "NodeLabelGAP"):
        quick = functools.partial(getattr(gapgnn, name), epochs=2)
        monkeypatch.setitem(vars(gapgnn), name, quick)
    monkeypatch.setitem(vars(gapgnn), "dp_sgd", functools.partial(with_few_roots, gapgnn.dp_sgd))
    run_python(page, folder, monkeypatch)


def with_few_roots(dp_sgd: Callable[..., Any], module: Any, data: Any, **options: Any) -> Any:
    """Train on every fiftieth training node: each of them takes about a millisecond."""
    import torch

    few = data.clone()
    few.train_mask = data.train_mask & (torch.arange(data.num_nodes) % 50 == 0)
    return dp_sgd(module, few, **options)


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
        if file.resolve() in MADE:
            continue
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
    assert any(f"{name})" in text_of(other) for other in PAGES), f"no page links to {page}"


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


TEST_ID = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def test_every_test_that_a_page_names_exists() -> None:
    named = [found for page in PAGES for found in TEST_ID.findall(text_of(page))]
    assert len(named) > 40, "the theorems name their tests"
    for file, name in named:
        body = ast.parse(text_of(file)).body
        for part in name.split("::"):
            (node,) = (one for one in body if getattr(one, "name", None) == part)
            body = node.body
        assert node.name.startswith("test_"), name


def test_every_theorem_has_a_statement_a_proof_and_a_test() -> None:
    _, *theorems = re.split(r"^### (?=Theorem)", text_of("docs/explanation/proofs.md"), flags=re.M)
    for number, theorem in enumerate(theorems, start=1):
        assert theorem.startswith(f"Theorem {number}: "), theorem.splitlines()[0]
        for part in ("**Statement**", "**Statement.**"), ("**Proof.**",), ("QED",), ("**Test.**",):
            assert any(one in theorem for one in part), (number, part)


def test_every_question_has_its_answer_two_clicks_from_the_front_page() -> None:
    questions = re.findall(r"^(\d+)\. .+\? \[.+\]\((.+)\)$", text_of("docs/questions.md"), re.M)
    assert [int(number) for number, _ in questions] == list(range(1, 26))
    for front in ("docs/index.md", "README.md"):
        assert "questions.md)" in text_of(front)
    assert "questions.md" in text_of("mkdocs.yml")


def test_version_and_date_are_the_same_wherever_they_are_stated() -> None:
    import gapgnn

    version, date = re.search(r"^## (\S+) - (\S+)$", text_of("CHANGELOG.md"), re.M).groups()
    assert version == gapgnn.__version__
    assert f"version = {{{version}}}" in text_of("README.md")
    citation = text_of("CITATION.cff").splitlines()
    assert f"version: {version}" in citation
    assert f"date-released: {date}" in citation


def test_the_changelog_has_the_sections_of_its_format() -> None:
    _, *versions = re.split(r"^## ", text_of("CHANGELOG.md"), flags=re.M)
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for text in versions:
        found = re.findall(r"^### (.*)$", text, re.M)
        assert found, text.splitlines()[0]
        assert len(found) == len(set(found)), text.splitlines()[0]
        assert set(found) <= set(order), text.splitlines()[0]


def script_of_docs(name: str) -> ModuleType:
    """Return a script of docs, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_published_table_is_made_from_its_records() -> None:
    tables = script_of_docs("tables")
    made = tables.made()
    differing = [path.name for path, text in made.items() if path.read_text("utf-8") != text]
    assert not differing, "run `python docs/tables.py --write`"
    assert {ROOT / page for page in GENERATED} <= set(made), "a page without records"


def test_a_record_that_changes_changes_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = script_of_docs("tables")
    before = tables.readme()
    cells = tables.read("defaults")
    for cell in cells:
        if (cell["dataset"], cell["method"]) == ("pubmed", "LabelGAP"):
            cell["scores"] = [score - 1 for score in cell["scores"]]
    monkeypatch.setattr(tables, "read", lambda name: cells)
    assert tables.readme() != before


def test_a_stated_figure_that_differs_from_its_records_is_put_right() -> None:
    tables = script_of_docs("tables")
    page, text = "docs/how-to/scale.md", text_of("docs/how-to/scale.md")
    wrong = text.replace("| a whole fit | 2.7 GiB |", "| a whole fit | 2.6 GiB |")
    assert wrong != text
    assert tables.stated.filled(page, wrong) == text
    with pytest.raises(ValueError, match=r"must have .* once"):
        tables.stated.filled(page, text.replace("| a whole fit |", "| all of a fit |"))


@pytest.mark.gate
def test_no_word_of_the_first_release_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert script_of_docs("words").main() == 0, capsys.readouterr().out


@pytest.mark.parametrize("text", script_of_docs("words").EXAMPLES)
def test_a_word_of_the_first_release_is_found(text: str) -> None:
    assert list(script_of_docs("words").hits_of("docs/page.md", text))


# What is no measurement: versions, levels of confidence, and settings that a page explains.
NO_MEASUREMENT = {
    "docs/explanation/audits.md": ("epsilon 0.5",),
    "docs/explanation/performance.md": ("1.25 times",),
}


@pytest.mark.parametrize("page", NO_MEASUREMENT)
def test_every_figure_of_a_sentence_has_its_record(page: str) -> None:
    tables = script_of_docs("tables")
    text = tables.BLOCK.sub("", text_of(page))
    for one in tables.stated.STATED:
        if one.page == page:
            text = one.pattern().sub("", text)
    for known in NO_MEASUREMENT[page]:
        text = text.replace(known, "")
    rest = re.sub(r"`[^`]*`|\]\([^)]*\)", "", FENCE.sub("", text))
    assert not re.findall(r"\d+\.\d+", rest)


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/results.md"])
def test_measured_figures_stand_in_tables_that_are_made_from_records(page: str) -> None:
    rest = script_of_docs("tables").BLOCK.sub("", FENCE.sub("", text_of(page)))
    # Versions of programs are no measurements.
    rest = re.sub(r"Python 3\.\d+|versions? [\d. and]+|Apache-2\.0", "", rest)
    figures = re.findall(r"\d+\.\d+", rest)
    assert not figures, figures


def test_the_records_of_a_benchmark_make_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    generated, tables = importlib.import_module("generated"), script_of_docs("tables")
    monkeypatch.setattr(sys, "argv", ["h200.py", "all"])
    page = tmp_path / "generated" / "h200.md"
    body = generated.table(["a", "b"], [["1.50", "2"], ["", "3.5 ± 1"]])
    generated.write(page, "Seconds", body)
    monkeypatch.setattr(tables, "DATA", tmp_path / "data")
    assert tables.generated_page("h200") == page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """The part of the site that is made from the package."""
    pytest.importorskip("mkdocs", reason="comes with the dev extra")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "site" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_an_entry_in_the_reference(hooks) -> None:
    for name in hooks.PUBLIC:
        page = hooks.reference_page(name)
        for one in importlib.import_module(name).__all__:
            assert one == "__version__" or f"\n::: {name}.{one}\n" in page, one


def test_every_command_has_its_help_on_the_site(hooks) -> None:
    from gapgnn.cli.main import COMMANDS

    page = hooks.commands_page()
    for name in COMMANDS:
        assert f"\n## gapgnn {name}\n\n```text\nusage: gapgnn {name}" in page


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", text_of("mkdocs.yml").partition("\nnav:")[2]))
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    assert pages <= listed
