"""Models whose cards are held to golden ones, in which numbers and ids are left out.

`PYTHONPATH=src:tests/methods python tests/methods/cardcases.py` writes the golden cards anew. The
difference is read line by line: a sentence of a card is a promise.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from suited import suited

from gapgnn import (
    GAP,
    MLP,
    Graph,
    GraphSAGE,
    LabelGAP,
    Ledger,
    NeighborVote,
    NodeLabelGAP,
    ProGAP,
)
from gapgnn.graph.datasets.synthetic import social_graph

GOLDEN = Path(__file__).parent.parent / "golden" / "cards"
MODELS: dict[str, Any] = {
    "gap-edge": (GAP, {"epsilon": 1.0}),
    "gap-node": (GAP, {"epsilon": 4.0, "level": "node"}),
    "progap-edge": (ProGAP, {"epsilon": 1.0}),
    "label-gap": (LabelGAP, {"epsilon": 1.0}),
    "label-gap-no-folds": (LabelGAP, {"epsilon": 1.0, "folds": 0}),
    "node-label-gap": (NodeLabelGAP, {"epsilon": 4.0}),
    "vote-edge": (NeighborVote, {"level": "edge"}),
    "vote-node": (NeighborVote, {"level": "node", "epsilon": 2.0}),
    "mlp-edge": (MLP, {"level": "edge"}),
    "mlp-node": (MLP, {"level": "node", "epsilon": 2.0}),
    "sage-edge": (GraphSAGE, {"level": "edge", "epsilon": 2.0}),
    "gap-node-replace": (GAP, {"epsilon": 8.0, "level": "node", "relation": "replace"}),
    "node-label-gap-record": (NodeLabelGAP, {"epsilon": 8.0, "own": "record", "hop_share": 0.5}),
}
# Of these the noise decides whether edges are read, which the card says.
CHOSEN_BY_NOISE = ("label-gap", "node-label-gap")
SETTLED = [name for name in MODELS if name not in CHOSEN_BY_NOISE]
# Ids, days, versions and numbers: they are checked against recomputed figures.
_VARIES = re.compile(r"\b[0-9a-f]{24,32}\b|\d{4}-\d\d-\d\d|(?<![\w#])\d[\d,]*(\.\w+)*(e[-+]?\d+)?")


def card_graph() -> Graph:
    return social_graph(num_nodes=300, mean_degree=10)


def save_models(graph: Graph, folder: Path) -> None:
    """Save one model of every method and level, each with its own ledger."""
    for name, (method, options) in MODELS.items():
        ledger = Ledger.init(folder / f"{name}.sqlite").path
        model = suited(method, {"epochs": 1}, **options, ledger=ledger)
        model.fit(graph).save(folder / name)


def masked(card: str) -> str:
    """Return the words of a card.

    >>> masked("epsilon 1.00, delta 1e-06 of charge 9b594017b3b12d6f91ce5a04")
    'epsilon #, delta # of charge #'
    """
    return _VARIES.sub("#", card)


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        save_models(card_graph(), Path(scratch))
        for name in SETTLED:
            card = Path(scratch, name, "card.md").read_text(encoding="utf-8")
            (GOLDEN / f"{name}.md").write_text(masked(card), encoding="utf-8")


if __name__ == "__main__":
    main()
