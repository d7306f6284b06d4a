"""What a method's constructor looks like, read from its source without loading it.

The options of a command are those of a constructor, and loading a method loads torch and
scikit-learn, which takes seconds. A misspelt option and a page of help need neither: parameters,
types, defaults and texts are plain text in the method's file.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from gapgnn.methods import method_class, method_home

# Names that annotations of constructors use and that are not written out in this package.
KNOWN = {
    "ClassVar": ClassVar,
    "Literal": Literal,
    "Mapping": Mapping,
    "Path": Path,
    "Sequence": Sequence,
}


def method_outline(name: str) -> type:
    """Return a class with the constructor and the texts of a method's class, or that class itself.

    The class itself comes where it is loaded already, and for a method of another package.

    >>> "epsilon" in method_outline("gap").__dataclass_fields__
    True
    """
    home = method_home(name)
    if home is None or home[0] in sys.modules:
        return method_class(name)
    return _outline(*home)


@cache
def _outline(module: str, name: str) -> type:
    """Return a class with the fields, bases and docstring of one that is a dataclass.

    Bases from outside this package have no parameters and are left out.
    """
    node = next(
        part
        for part in _source(module).body
        if isinstance(part, ast.ClassDef) and part.name == name
    )
    bases = [_home(module, base.id) for base in node.bases if isinstance(base, ast.Name)]
    parents = tuple(_outline(*home) for home in bases if home[0].startswith("gapgnn."))
    content: dict[str, Any] = {"__doc__": ast.get_docstring(node), "__module__": module}
    is_dataclass = any("dataclass" in ast.unparse(word) for word in node.decorator_list)
    if is_dataclass:
        fields = {part.target.id: part for part in _fields(node)}
        hints = {name: _value(part.annotation, module) for name, part in fields.items()}
        content["__annotations__"] = hints
        content |= {name: _value(part.value, module) for name, part in fields.items()}
    made = type(name, parents, content)
    return dataclass(kw_only=True, eq=False, repr=False)(made) if is_dataclass else made


@cache
def _source(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    return ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8"))


def _fields(node: ast.ClassDef) -> Iterator[Any]:
    """Yield the parameters: annotated, with a default, not a constant of the class."""
    for part in node.body:
        if not isinstance(part, ast.AnnAssign) or part.value is None:
            continue
        if not ast.unparse(part.annotation).startswith("ClassVar"):
            yield part


@cache
def _home(module: str, name: str) -> tuple[str, str]:
    """Return where a name that a module uses is defined, behind the fronts of packages."""
    for node in _source(module).body:
        # What a front offers is imported under `if TYPE_CHECKING:`.
        for part in node.body if isinstance(node, ast.If) else [node]:
            if isinstance(part, ast.ImportFrom) and part.module:
                for alias in part.names:
                    if name == (alias.asname or alias.name):
                        is_ours = part.module.startswith("gapgnn.")
                        return _home(part.module, alias.name) if is_ours else (part.module, name)
    return module, name


def _value(node: ast.expr, module: str) -> Any:
    """Evaluate an annotation or a default; a name of this package is looked up in its source."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    ours = (name for name in names - set(KNOWN) if not hasattr(builtins, name))
    scope = KNOWN | {name: _constant(*_home(module, name)) for name in ours}
    return eval(compile(ast.Expression(node), "<outline>", "eval"), scope)


def _constant(module: str, name: str) -> Any:
    """Return what a module assigns to a name at its top, such as a type's alias."""
    for node in _source(module).body:
        if isinstance(node, ast.Assign) and name in {ast.unparse(part) for part in node.targets}:
            return _value(node.value, module)
    raise LookupError(f"{module} assigns nothing to {name}")
