"""The relations of the package, also one that is added."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from gapgnn.privacy import Links, Relation


def classes(base: type[Relation] = Relation) -> Iterator[type[Relation]]:
    """Yield the relations of the package that can be made."""
    for relation_class in base.__subclasses__():
        if relation_class.__module__ == Relation.__module__:
            yield from classes(relation_class)
            # Links and Records are made by their subclasses.
            if not inspect.isabstract(relation_class) and relation_class is not Links:
                yield relation_class


def made(relation_class: type[Relation], count: int) -> Relation:
    """Return a relation, of so many links where it has a number."""
    return (
        relation_class(count)
        if "count" in inspect.signature(relation_class).parameters
        else relation_class()
    )
