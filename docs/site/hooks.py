"""What MkDocs does not do by itself: pages made from the package, and links that leave the folder.

- the API reference, one page for each public module, from its ``__all__``;
- the command line reference, from the parsers;
- the examples, from their index and the text of the scripts;
- CHANGELOG, CONTRIBUTING and SECURITY of the repository's root, and the notebook, as pages;
- the build fails if a public name has no entry in the reference.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import posixpath
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "gapgnn": "reference/gapgnn.md",
    "gapgnn.accounting": "reference/accounting.md",
    "gapgnn.attacks": "reference/attacks.md",
    "gapgnn.audits": "reference/audits.md",
}
NOTEBOOK = "tutorials/notebook.ipynb"
# Pages of the repository's root, and where they stand on the site.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
EXAMPLES = "how-to/examples.md"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def reference_page(name: str) -> str:
    """Return the page of a public module: what it says of itself, then every public name."""
    module = importlib.import_module(name)
    public = sorted((one for one in module.__all__ if one != "__version__"), key=str.lower)
    entries = (f"\n::: {name}.{one}\n{parameters(getattr(module, one))}" for one in public)
    intro = f"# {name}\n\n::: {name}\n    options:\n      members: false\n"
    options = "      show_root_toc_entry: false\n      show_root_heading: false\n"
    return intro + options + "".join(entries)


def parameters(thing: object) -> str:
    """Return the table of a method's parameters, each with its default and its help text."""
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    rows = [
        f"| `{one.name}` | `{one.default!r}` | {one.metadata['help'].replace('|', chr(92) + '|')} |"
        for one in fields
        if "help" in one.metadata
    ]
    if not rows:
        return ""
    head = "| parameter | default | meaning |\n|---|---|---|\n"
    return "    options:\n      show_signature: false\n\n" + head + "\n".join(rows) + "\n"


def help_of(words: Sequence[str]) -> str:
    """Return what `gapgnn help WORDS` prints."""
    said = io.StringIO()
    with redirect_stdout(said):
        importlib.import_module("gapgnn.cli.main").main(["help", *words])
    return said.getvalue().rstrip()


def commands_page() -> str:
    """Return the help of every command and subcommand as the command line prints it."""
    main = importlib.import_module("gapgnn.cli.main")
    parts = ["# Command line\n\nThe text of `gapgnn help COMMAND`, for every command."]
    for name in main.COMMANDS:
        text = help_of([name])
        parts.append(f"## gapgnn {name}\n\n```text\n{text}\n```")
        inner = re.search(r"(?:positional arguments|actions):\n(.*?)\n\n", text, re.DOTALL)
        for word in re.findall(r"^    (\S+)(?=  |$)", inner[1] if inner else "", re.MULTILINE):
            parts.append(f"### gapgnn {name} {word}\n\n```text\n{help_of([name, word])}\n```")
    return "\n\n".join(parts) + "\n"


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: its texts, and its cells as code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells)
    shown = (
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
    )
    return "\n\n".join(shown) + "\n\n[Download the notebook](notebook.ipynb)\n"


def examples_page() -> str:
    """Return the index of the examples, and then the text of each script."""
    folder = ROOT / "examples"
    index = (folder / "README.md").read_text(encoding="utf-8").replace("](../docs/how-to/", "](")
    parts = [re.sub(r"\]\((\w+)\.py\)", r"](#\1)", index)]
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts.append(f"## {path.name} {{#{path.stem}}}\n\n```python\n{text}```\n")
    return "\n".join(parts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of the folder."""
    made = {page: reference_page(name) for name, page in PUBLIC.items()}
    made["reference/commands.md"] = commands_page()
    made[EXAMPLES] = examples_page()
    made[NOTEBOOK.replace(".ipynb", ".md")] = notebook_page(ROOT / "docs" / NOTEBOOK)
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        made[page] = LINK.sub(lambda m: m[0].replace("](docs/", "]("), text)
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository's root to their pages here."""
    here = posixpath.dirname(page.file.src_uri)

    def inside(match: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(here, match[2]))
        outside = name.removeprefix("../")
        if outside.startswith("examples/"):
            script = outside.removeprefix("examples/").removesuffix(".py")
            anchor = "" if script.endswith(".md") else f"#{script}"
            return f"{match[1]}{posixpath.relpath(EXAMPLES, here or '.')}{anchor}{match[4]}"
        wanted = OUTSIDE.get(outside)
        if wanted is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(wanted, here or '.')}{match[3] or ''}{match[4]}"

    return LINK.sub(inside, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the dialog of the search, which the theme leaves without a name."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">', 1)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if a public name is missing from the reference."""
    missing = []
    for name, page in PUBLIC.items():
        html = Path(config.site_dir, page.replace(".md", "/index.html")).read_text("utf-8")
        public = importlib.import_module(name).__all__
        missing += [
            f"{name}.{one}"
            for one in public
            if one != "__version__" and f'id="{name}.{one}"' not in html
        ]
    if missing:
        raise PluginError(f"not in the API reference: {', '.join(missing)}")
