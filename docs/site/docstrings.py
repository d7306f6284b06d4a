"""Turns what the docstrings of the package have and Markdown has not into Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data):`~?([^`]+)`")
# An example and what it prints, up to the next empty line.
EXAMPLE = re.compile(r"(^[ \t]*>>> .*(?:\n(?![ \t]*$).*)*)", re.MULTILINE)


def markdown(text: str) -> str:
    """Return a docstring with roles as code, examples as code blocks and no literal colons.

    >>> markdown("See :class:`Graph`.")
    'See `Graph`.'
    """
    text = ROLE.sub(r"`\1`", text)
    text = re.sub(r"(?<=\w)::$", ":", text, flags=re.MULTILINE)
    return EXAMPLE.sub(r"```pycon\n\1\n```", text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
