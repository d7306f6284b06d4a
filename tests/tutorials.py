"""A tutorial as it stands: the commands of its page, run one after the other in one folder."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parents[1] / "docs"
# Said behind the page's own words where a promise is looked at and not a figure of the page.
QUICK = {"train": ("--epochs", "40"), "audit --model": ("--trials", "4000")}


class Step(NamedTuple):
    """One command of the page, its exit code, and what it said, on one line."""

    words: tuple[str, ...]
    code: int
    said: str


class Story(NamedTuple):
    """Where the page ended, and everything that was done."""

    folder: Path
    steps: list[Step]

    def step(self, *words: str) -> Step:
        """Return the one command that has all of these words."""
        (found,) = (step for step in self.steps if set(words) <= set(step.words))
        return found


def commands(page: str) -> list[list[str]]:
    """Return the lines of the page's shell blocks, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@contextmanager
def played(page: str, folder: Path, more: Mapping[str, Sequence[str]]) -> Iterator[Story]:
    """Run every command of a page.

    Args:
        page: of the docs.
        folder: an empty one, where the page begins.
        more: words to put behind a command that starts so.
    """
    steps: list[Step] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in commands(page):
            if words[0] == "cd":
                patch.chdir(Path.cwd() / words[1])
            elif words[0] == "export":
                name, _, value = words[1].partition("=")
                patch.setenv(name, value.replace("$PWD", os.getcwd()))
            else:
                assert words[0] == "gapgnn"
                extra = [w for start, w in more.items() if shlex.join(words[1:]).startswith(start)]
                steps.append(_run([*words, *(word for group in extra for word in group)]))
        yield Story(Path.cwd(), steps)


def _run(words: list[str]) -> Step:
    run = importlib.import_module("gapgnn.cli.main").run
    # To a file, not to pytest, so that the output of one command is separate from that of another.
    with (
        open("said.txt", "w+", encoding="utf-8") as said,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, said)
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as done:
            run()
        said.seek(0)
        text = " ".join(said.read().split())
    os.unlink("said.txt")
    return Step(tuple(words[1:]), int(done.value.code or 0), text)
