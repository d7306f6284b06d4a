"""A table as Markdown, as LaTeX and as CSV; whatever a name contains, it stays one cell."""

from __future__ import annotations

import csv
import io
import re

from gapgnn.evaluation.report.tables import Cell, Row, Table

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "ε": r"$\varepsilon$",
        "∞": r"$\infty$",
    }
)
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|&])")


def to_markdown(table: Table) -> str:
    """Write a table for people and web pages.

    >>> table = Table("t", "Title", "Caption.", ("method",), ("a|b",),
    ...               (Row("edge", ("GAP",), (Cell(0.5, is_best=True),)),), ())
    >>> print(to_markdown(table))
    **Title.** Caption.
    <BLANKLINE>
    | | method | a\\|b |
    |---|---|---|
    | edge | GAP | **50.0** |
    <BLANKLINE>
    """
    lines = [
        f"**{_mark(table.title)}.** {_mark(table.caption)}",
        "",
        _line(["", *map(_mark, (*table.keys, *table.columns))]),
        "|" + "---|" * (1 + len(table.keys) + len(table.columns)),
    ]
    for row, is_first in with_firsts(table):
        block = row.block if is_first else ""
        cells = [_markdown_cell(cell) for cell in row.cells]
        lines.append(_line([*map(_mark, (block, *row.keys)), *cells]))
    lines += [line for note in table.notes for line in ("", _mark(note))]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """Write a table for papers; it needs the package ``booktabs`` and nothing else.

    >>> table = Table("t", "Title", "In %.", ("method",), ("my_data",),
    ...               (Row("edge", ("GAP-∞",), (Cell(0.5),)),), ())
    >>> r"my\\_data" in to_latex(table), r"GAP-$\\infty$" in to_latex(table)
    (True, True)
    """
    width = 1 + len(table.keys) + len(table.columns)
    heads = ["", *map(_tex, (*table.keys, *table.columns))]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.title)}. {_tex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{'l' * (1 + len(table.keys))}{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
    ]
    for row, is_first in with_firsts(table):
        if is_first:
            lines.append(r"\midrule")
        block = row.block if is_first else ""
        cells = [_latex_cell(cell) for cell in row.cells]
        lines.append(" & ".join([*map(_tex, (block, *row.keys)), *cells]) + r" \\")
    lines.append(r"\bottomrule")
    lines += [rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {_tex(n)}}} \\" for n in table.notes]
    return "\n".join([*lines, r"\end{tabular}", r"\end{table}"]) + "\n"


def to_csv(table: Table) -> str:
    """Write a table for programs: one line per figure, fractions between 0 and 1.

    >>> table = Table("t", "Title", "", ("method",), ("social",),
    ...               (Row("edge", ("GAP",), (Cell(0.5, 0.4, 0.6, 3),)),), ())
    >>> print(to_csv(table).splitlines()[1])
    edge,GAP,social,0.5,0.4,0.6,3,0,0
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ["mean", "ci95_low", "ci95_high", "repeats", "best", "significant"]
    writer.writerow(["block", *map(_safe, table.keys), "column", *heads])
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is None:
                continue
            words = [_safe(word) for word in (row.block, *row.keys, column)]
            figures = [x if x is None else round(x, 6) for x in (cell.mean, cell.low, cell.high)]
            numbers = [*figures, cell.repeats]
            writer.writerow([*words, *numbers, int(cell.is_best), int(cell.is_significant)])
    return out.getvalue()


FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}


def with_firsts(table: Table) -> list[tuple[Row, bool]]:
    """Return the rows, each with whether it is the first of its block."""
    blocks = [None, *(row.block for row in table.rows)]
    return [(row, row.block != before) for row, before in zip(table.rows, blocks, strict=False)]


def _line(cells: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _mark(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _tex(text: str) -> str:
    return " ".join(text.split()).translate(_LATEX)


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = f"**{cell.text}**" if cell.is_best else cell.text
    return text + (r"\*" if cell.is_significant else "")


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = rf"\textbf{{{cell.text}}}" if cell.is_best else cell.text
    return text + ("$^{*}$" if cell.is_significant else "")


def _safe(text: str) -> str:
    """Write symbols as words, and keep spreadsheets from running a name that looks like a formula.

    >>> _safe("GAP-∞"), _safe("=1+1")
    ('GAP-inf', "'=1+1")
    """
    plain = " ".join(text.split()).replace("∞", "inf").replace("ε", "epsilon")
    return f"'{plain}" if plain.startswith(("=", "+", "-", "@")) else plain
