"""Writes every published table from the records in docs/data: ``python docs/tables.py --write``.

- ``docs/data/tables/NAME.jsonl`` becomes the page ``docs/generated/NAME.md``. Its first line has
  title, commands, machine, date, origin and columns; each further line is one row.
- ``docs/data/*.jsonl`` are records of single runs. The functions in ``BLOCKS`` make the tables
  between ``<!-- table: NAME -->`` and ``<!-- end -->`` in README and pages from them.
- ``docs/figures/tradeoff.svg`` is drawn from them too (docs/tradeoff.py).
- Figures in sentences are those of docs/stated.py.

``--check`` changes nothing and exits with 1 if a page differs from its records; the tests run it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import stated
import tradeoff

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data"
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Record = dict[str, Any]

# Graphs on which no default was chosen, in the order of the tables (benchmarks/frozen.py).
REPORTED = (
    *("facebook100/Wisconsin87", "amazon-photo", "pubmed", "citeseer", "actor", "squirrel"),
    *("github", "tolokers", "minesweeper"),
)
DEVELOPMENT = (
    *("facebook100/Cornell5", "facebook100/Rutgers89", "facebook-page-page"),
    *("amazon-computers", "cora", "chameleon", "social"),
)
EDGE = ("LabelGAP", "ProGAP", "GAP", "SAGE", "MLP")
NODE = ("NodeLabelGAP", "ProGAP", "GAP", "SAGE", "MLP-DP")
SHOWN = {"SAGE": "GraphSAGE"}
WORDS = {1: "one", 2: "two"}
# Layers, and the probability of an arc to stay.
DP_SGD = ((1, 1.0), (1, 0.5), (2, 1.0), (2, 0.5))
RARE_EDGE = {"default": "default", "balanced": "`balanced`", "noisy count": "noisy count"}
RARE_NODE = {
    **{"default": "default", "balanced": "`balanced`", "own=record": '`own="record"`'},
    **{"GAP": "GAP", "MLP-DP": "MLP-DP", "noisy count": "noisy count"},
    **{bound: bound for bound in ("count and features", "two counts and features")},
}


def read(name: str) -> list[Record]:
    """Return the records of one file, one for each line."""
    text = (DATA / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [[1, "x"]]))
    | a | b |
    |---|---|
    | 1 | x |
    """
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def generated_page(name: str) -> str:
    """Return a page of docs/generated from its records."""
    head, *rows = read(f"tables/{name}")
    lines = [f"# {head['title']}", ""]
    lines += [f"- Command: {one}" for one in head["commands"]]
    lines += [f"- {field}: {head[field.lower()]}" for field in ("Machine", "Date", "Origin")]
    body = table(head["columns"], ([row[column] for column in head["columns"]] for row in rows))
    return "\n".join([*lines, "", body, ""])


def mean_and_half(scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval, from the standard error of the repeats.

    >>> mean, half = mean_and_half([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    # Student's t at 97.5 %, by the number of repeats; beyond the table the normal quantile.
    quantile = {2: 12.706, 3: 4.303, 5: 2.776, 10: 2.262}.get(len(scores), 1.96)
    error = statistics.stdev(scores) / math.sqrt(len(scores))
    return statistics.mean(scores), quantile * error


class Defaults:
    """The accuracies of all methods with their defaults (docs/data/defaults.jsonl)."""

    def __init__(self) -> None:
        self.cells = {
            (one["level"], one["dataset"], one["method"], one["epsilon"]): one
            for one in read("defaults")
        }

    def scores(self, level: str, dataset: str, method: str, epsilon: float) -> list[float]:
        """Return the test accuracies of the repeats, in percent."""
        # Below node level an MLP reads no edge: one run counts for every budget.
        epsilon = 1.0 if method == "MLP" else epsilon
        found: list[float] = self.cells[level, dataset, method, epsilon]["scores"]
        return found

    def row(
        self, level: str, dataset: str, methods: Sequence[str], epsilon: float, *, interval: bool
    ) -> list[str]:
        """Return a cell for each method, the largest mean in bold."""
        found = [mean_and_half(self.scores(level, dataset, one, epsilon)) for one in methods]
        best = max(round(mean, 1) for mean, _ in found)
        cells = []
        for mean, half in found:
            text = f"{mean:.1f}" + (f" ± {half:.1f}" if interval else "")
            cells.append(f"**{text}**" if round(mean, 1) == best else text)
        return cells


def short(dataset: str) -> str:
    """Return the name of a data set as tables show it."""
    return dataset.removeprefix("facebook100/")


def readme() -> str:
    """Return the table of README: both levels on the graphs that took no part in choices."""
    found = Defaults()
    edge, node = ("LabelGAP", "ProGAP", "GAP", "MLP"), ("NodeLabelGAP", "ProGAP", "GAP", "MLP-DP")
    columns = ["graph", *(f"{one}, edge" for one in edge), *(f"{one}, node" for one in node)]
    columns[1:] = [one.replace("MLP-DP", "MLP") for one in columns[1:]]
    rows = []
    for dataset in REPORTED:
        shown = found.row("edge", dataset, edge, 1.0, interval=False)
        shown += found.row("node", dataset, node, 8.0, interval=False)
        rows.append([short(dataset), *shown])
    return table(columns, rows)


def accuracy(level: str, datasets: Sequence[str], epsilons: Sequence[float]) -> str:
    """Return the accuracies of one level, with their intervals."""
    found, methods = Defaults(), EDGE if level == "edge" else NODE
    columns = ["graph", "epsilon", *(SHOWN.get(one, one) for one in methods)]
    rows = [
        [
            short(dataset),
            f"{epsilon:g}",
            *found.row(level, dataset, methods, epsilon, interval=True),
        ]
        for dataset in datasets
        for epsilon in epsilons
    ]
    return table(columns, rows)


def worst(level: str, epsilons: Sequence[float]) -> str:
    """Return how far the recommended method is from each other one, over all graphs."""
    found, (own, *others) = Defaults(), EDGE if level == "edge" else NODE
    rows = []
    for other in others:
        paired = []
        for dataset in (*REPORTED, *DEVELOPMENT):
            for epsilon in epsilons:
                pairs = zip(
                    found.scores(level, dataset, own, epsilon),
                    found.scores(level, dataset, other, epsilon),
                    strict=True,
                )
                paired.append((statistics.mean(a - b for a, b in pairs), dataset, epsilon))
        least, where, epsilon = min(paired)
        below = sum(difference < -0.5 for difference, *_ in paired)
        middle = statistics.median(difference for difference, *_ in paired)
        at = f"{short(where)}, epsilon {epsilon:g}"
        signed = (f"{round(one, 1) + 0.0:+.1f}" for one in (middle, least))
        rows.append([SHOWN.get(other, other), *signed, at, f"{below} of {len(paired)}"])
    columns = [f"{own} minus", "median", "least", "where", "below by more than 0.5"]
    return table(columns, rows)


def wisconsin(level: str) -> str:
    """Return accuracy against epsilon on the one school that took no part in choices."""
    found, methods = Defaults(), EDGE if level == "edge" else NODE
    school = REPORTED[0]
    epsilons = sorted({key[3] for key in found.cells if key[:2] == (level, school)})
    rows = [
        [f"{epsilon:g}", *found.row(level, school, methods, epsilon, interval=True)]
        for epsilon in epsilons
    ]
    return table(["epsilon", *(SHOWN.get(one, one) for one in methods)], rows)


def membership() -> str:
    """Return the membership attack against current methods, AUC in percent."""
    rows = []
    for one in read("membership"):
        mean, half = mean_and_half([100 * run for run in one["runs"]])
        budget = "no privacy" if one["epsilon"] is None else f"{one['epsilon']:g}"
        name = "MLP-DP" if one["name"] == "MLP" and one["epsilon"] else one["name"]
        rows.append(
            [
                *(short(one["dataset"]), name, budget, f"{mean:.1f} ± {half:.1f}"),
                f"{100 * one['tpr_at_1pct_fpr']:.1f}",
                *(f"{100 * one[key]:.1f}" for key in ("member_accuracy", "other_accuracy")),
            ]
        )
    graphs = [short(one) for one in (*REPORTED, *DEVELOPMENT)]
    rows.sort(key=lambda row: (graphs.index(row[0]), row[2] == "no privacy", row[1]))
    columns = ["graph", "target", "epsilon", "AUC", "true positives at 1 % false positives"]
    return table([*columns, "accuracy on members", "accuracy on others"], rows)


# The order of targets in the tables of attacks.
_TARGETS = ("LabelGAP", "NodeLabelGAP", "GAP", "MLP")


def _budget(record: Record) -> str:
    return "no privacy" if record["epsilon"] is None else f"{record['epsilon']:g}"


def _attacked(name: str) -> list[Record]:
    """Return the records of an attack, by graph, then budget, then target."""
    graphs = [short(one) for one in (*REPORTED, *DEVELOPMENT)]

    def place(one: Record) -> tuple[int, float, int]:
        return (
            graphs.index(one["dataset"]),
            one["epsilon"] or math.inf,
            _TARGETS.index(one["method"]),
        )

    return sorted(read(name), key=place)


def _over_runs(record: Record, figure: str) -> str:
    """Return the mean of a figure over the runs in percent, with half of its 95 % interval."""
    mean, half = mean_and_half([100 * run[figure] for run in record["runs"]])
    return f"{mean:.1f} ± {half:.1f}"


def label_inference() -> str:
    """Return the label inference attack, AUC in percent."""
    rows = [
        [
            one["dataset"],
            "MLP-DP" if one["method"] == "MLP" and one["epsilon"] else one["method"],
            _budget(one),
            one["targets"],
            _over_runs(one, "auc"),
        ]
        for one in _attacked("label-inference")
    ]
    return table(["graph", "target", "epsilon", "labels", "AUC"], rows)


def inductive_links() -> str:
    """Return inductive link stealing, AUC in percent beside that of features alone."""
    rows = []
    for one in _attacked("inductive-links"):
        for run in one["runs"]:
            run["features"] = run["auc"] - run["gain_auc"]
        figures = (_over_runs(one, figure) for figure in ("auc", "features", "gain_auc"))
        rows.append([one["dataset"], one["method"], _budget(one), one["pairs"], *figures])
    columns = ["graph", "target", "epsilon", "pairs", "AUC", "features only", "gain"]
    return table(columns, rows)


def _fit_audits(what: str) -> list[Record]:
    return [one for one in read("fit-audits") if one["what"] == what]


def fit_bounds() -> str:
    """Return the lower bounds of `gapgnn audit fit` beside the claim."""
    rows = []
    for one in _fit_audits("bounds"):
        found = [run["bound"] for run in one["runs"]]
        rows.append(
            [
                one["method"],
                one["level"],
                f"{one['epsilon']:g}",
                f"{one['delta']:g}",
                f"{one['canaries']:,}",
                f"{statistics.mean(found):.2f}",
                f"{min(found):.2f} to {max(found):.2f}",
                sum(bound > one["epsilon"] for bound in found),
            ]
        )
    columns = ["method", "level", "claimed epsilon", "delta", "canaries"]
    return table([*columns, "mean bound", "range", "above the claim"], rows)


def fit_coverage() -> str:
    """Return how often a bound of a single fit is above the claim."""
    rows = [
        [one["method"], one["level"], one["canaries"], one["fits"], one["above"]]
        for one in _fit_audits("coverage")
    ]
    return table(["method", "level", "canaries", "fits", "bound above the claim"], rows)


def fit_time() -> str:
    """Return the processor time of an audit beside that of a fit."""
    rows = []
    for one in _fit_audits("time"):
        fit, audit = (statistics.mean(one[f"{name}_seconds"]) for name in ("fit", "audit"))
        rows.append(
            [
                one["method"],
                f"{one['epsilon']:g}",
                f"{one['canaries']:,}",
                f"{fit:.1f}",
                f"{audit:.1f}",
                f"{audit / fit:.2f}",
            ]
        )
    columns = ["method", "epsilon", "canaries", "fit, processor seconds", "audit", "ratio"]
    return table(columns, rows)


def audited_claims() -> str:
    """Return what `gapgnn audit claim` finds of each program of examples/claims."""
    rows = [
        [
            f"`{one['program']}`",
            f"{one['epsilon']:.2g}",
            f"{one['bound']:.2f}",
            "passes" if one["holds"] else f"caught by {one['by']}",
        ]
        for one in _fit_audits("claims")
    ]
    return table(["program", "claimed epsilon", "bound", "result"], rows)


def overfitting() -> str:
    """Return the membership attack on one model against the length of its training."""
    records = sorted(
        read("overfitting"), key=lambda one: (one["epsilon"] or math.inf, one["epochs"])
    )
    rows = []
    for one in records:
        for run in one["runs"]:
            run["gap"] = run["member_accuracy"] - run["other_accuracy"]
        figures = (
            _over_runs(one, figure)
            for figure in ("member_accuracy", "other_accuracy", "gap", "auc")
        )
        rows.append([_budget(one), one["epochs"], *figures])
    columns = ["epsilon", "epochs", "accuracy on members", "accuracy on others", "gap", "AUC"]
    return table(columns, rows)


def _mean_and_error(values: Sequence[float], digits: int = 3) -> str:
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def rare(graph: str, figure: str, methods: dict[str, str], *, guessing: bool = False) -> str:
    """Return a figure of rare classes: mean and standard error over drawings of the graph.

    A guess's recall is the share of people that it flags.
    """
    found: dict[tuple[Any, str], list[float]] = defaultdict(list)
    for one in read("rare"):
        if one["graph"] == graph:
            found[one["epsilon"], one["method"]].append(one[figure])
            found[one["epsilon"], "guessing"].append(one["rate"])
    if guessing:
        methods = {**methods, "guessing": "guessing"}
    epsilons = sorted({key[0] for key in found if key[1] != "MLP"}, key=lambda e: -(e or math.inf))
    rows = []
    for epsilon in epsilons:
        cells = []
        for method in methods:
            # Below node level the MLP reads no edge: one run counts for every budget.
            values = found.get((epsilon, method)) or (method == "MLP" and found[None, method])
            cells.append(_mean_and_error(values) if values else "")
        rows.append(["no privacy" if epsilon is None else f"{epsilon:g}", *cells])
    return table(["epsilon", *methods.values()], rows)


def paired() -> str:
    """Return accuracies before and after class codes were centred, paired by repeat."""
    found = {(one["tree"], one["data"], one["eps"]): one["scores"] for one in read("rare-paired")}
    rows = []
    for tree, dataset, epsilon in found:
        if tree != "before":
            continue
        old, new = (found[one, dataset, epsilon] for one in ("before", "after"))
        change = [b - a for a, b in zip(old, new, strict=True)]
        error = statistics.stdev(change) / math.sqrt(len(change))
        means = (f"{statistics.mean(one):.2f}" for one in (old, new))
        shown = f"{statistics.mean(change):+.2f} ± {error:.2f}"
        rows.append([dataset, f"{epsilon:g}", len(old), *means, shown])
    return table(["data set", "epsilon", "repeats", "before", "after", "difference"], rows)


def dp_sgd(arcs: str) -> str:
    """Return accuracies of modules trained by DP-SGD, with all neighbours or without any."""
    cells = {(one["dataset"], one["layers"], one["keep"]): one for one in read("dp-sgd")}
    rows = []
    for dataset in dict.fromkeys(key[0] for key in cells):
        mlp = cells[dataset, 0, 1.0]
        row = [
            short(dataset),
            f"{mlp['epsilon']:g}",
            f"{statistics.mean(mlp['scores']['none']):.1f}",
        ]
        for layers, keep in DP_SGD:
            found = cells.get((dataset, layers, keep))
            row.append("" if found is None else f"{statistics.mean(found['scores'][arcs]):.1f}")
        rows.append(row)
    heads = (
        f"GCN, {WORDS[layers]} layer{'s' * (layers > 1)}, keep {keep:g}" for layers, keep in DP_SGD
    )
    return table(["graph", "epsilon", "MLP-DP", *heads], rows)


def tune_prices() -> str:
    """Return the price of a selection for each distribution of the number of candidates."""

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    names = ("profiles", "one_shift", "renyi", "papernot_steinke", "reached")
    rows = [
        [one["number"], *(shown(one[name]) for name in names), one["usual"], one["most"]]
        for one in read("tune")
        if one["what"] == "price"
    ]
    titles = ["number of mean 10", "gapgnn", "Koskela et al.", "gapgnn, Renyi"]
    titles += ["Papernot and Steinke", "reached", "half", "99 %"]
    return table(titles, [[str(cell) for cell in row] for row in rows])


def tune_accuracy() -> str:
    """Return the accuracy of searches beside that of the default, for each split."""
    found: dict[str, dict[int, Record]] = defaultdict(dict)
    for one in read("tune"):
        if one["what"] == "accuracy":
            found[one["search"]][one["seed"]] = one
    rows = []
    for name, cells in found.items():
        runs = [100 * cell["accuracy"] for cell in cells.values()]
        change = [
            100 * (cell["accuracy"] - found["default"][seed]["accuracy"])
            for seed, cell in cells.items()
            if seed in found["default"]
        ]
        chosen = ", ".join(
            " ".join(f"{key} {value}" for key, value in cell["chosen"].items())
            for cell in cells.values()
            if "chosen" in cell
        )
        difference = "-" if name == "default" else f"{statistics.mean(change):+.1f}"
        epsilon = max(cell["epsilon"] for cell in cells.values())
        shown = " / ".join(f"{run:.1f}" for run in runs)
        mean = f"{statistics.mean(runs):.1f}"
        rows.append([name, f"{epsilon:.2f}", shown, mean, difference, chosen or "-"])
    titles = ["search", "epsilon", "runs", "mean", "difference to the default", "chosen"]
    return table(titles, rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "dp-sgd-all": lambda: dp_sgd("all"),
    "dp-sgd-none": lambda: dp_sgd("none"),
    "tune-prices": tune_prices,
    "tune-accuracy": tune_accuracy,
    "readme": readme,
    "edge-reported": lambda: accuracy("edge", REPORTED, (1.0, 4.0)),
    "edge-development": lambda: accuracy("edge", DEVELOPMENT, (1.0, 4.0)),
    "node-reported": lambda: accuracy("node", REPORTED, (1.0, 4.0, 8.0)),
    "node-development": lambda: accuracy("node", DEVELOPMENT, (1.0, 4.0, 8.0)),
    "edge-differences": lambda: worst("edge", (1.0, 4.0)),
    "node-differences": lambda: worst("node", (1.0, 4.0, 8.0)),
    "edge-wisconsin": lambda: wisconsin("edge"),
    "node-wisconsin": lambda: wisconsin("node"),
    "membership": membership,
    "overfitting": overfitting,
    "label-inference": label_inference,
    "claims": audited_claims,
    "fit-bounds": fit_bounds,
    "fit-coverage": fit_coverage,
    "fit-time": fit_time,
    "inductive-links": inductive_links,
    "rare-generated": lambda: rare("generated", "auc", RARE_EDGE | {"MLP": "MLP (reads no edge)"}),
    "rare-bank": lambda: rare("bank", "auc", {"default": "default", "noisy count": "noisy count"}),
    "rare-hospital": lambda: rare("hospital", "recall_at_rate", RARE_NODE, guessing=True),
    "rare-paired": paired,
}


def filled(text: str) -> str:
    """Return a page with every marked table made from the records."""

    def made(found: re.Match[str]) -> str:
        # A figure and its interval stay on one line.
        body = BLOCKS[found[2]]().replace(" ± ", "\u00a0±\u00a0")
        return f"{found[1]}\n{body}\n\n{found[3]}"

    return BLOCK.sub(made, text)


def made() -> dict[Path, str]:
    """Return every file that is made from records, with its text."""
    files = {
        ROOT / "docs" / "generated" / f"{one.stem}.md": generated_page(one.stem)
        for one in sorted((DATA / "tables").glob("*.jsonl"))
    }
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        name = str(page.relative_to(ROOT))
        if page.parent.name != "generated":
            made = stated.filled(name, filled(text))
            if made != text or BLOCK.search(text) or name in stated.PAGES:
                files[page] = made
    files[ROOT / "docs" / "figures" / "tradeoff.svg"] = tradeoff.drawing(Defaults().cells)
    return files


def main() -> int:
    """Write or check all files; return 1 if one differs under ``--check``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--write", action="store_true", help="write what differs")
    chosen.add_argument("--check", action="store_true", help="exit with 1 if anything differs")
    arguments = parser.parse_args()
    differs = [
        (path, text)
        for path, text in made().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in differs:
        print(f"{path.relative_to(ROOT)} differs from its records")
        if arguments.write:
            path.write_text(text, encoding="utf-8")
    return int(arguments.check and bool(differs))


if __name__ == "__main__":
    sys.exit(main())
