"""The transcript of a release: what was released, in order, at which price, and in which file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gapgnn.evaluation.release.files import MODEL
from gapgnn.methods import Saved

FORMAT = 1


def transcript_of(saved: Saved) -> dict[str, Any]:
    """Return what a model released: every charge of its card, with the files it became.

    What is computed from released values alone, such as weights below node level, is
    post-processing: it is listed, and has no price.

    Args:
        saved: the model of the release folder.
    """
    card, digests = saved.card, saved.digests
    releases = []
    for number, release in enumerate(card.releases, start=1):
        rows = saved.hops.get(release.charge_id)
        releases.append(
            {
                "number": number,
                **release.to_dict(),
                "rows": None
                if rows is None
                else {
                    **_file_of(saved, release.charge_id),
                    "shapes": [list(hop.shape) for hop in rows.hops],
                },
            }
        )
    listed = {release.charge_id for release in card.releases}
    return {
        "format": FORMAT,
        "product": card.product,
        "relation": card.relation.name,
        "releases": releases,
        # Of a method that charges nothing.
        "rows_without_charge": sorted(set(saved.hops) - listed),
        "together": {
            "epsilon": card.composed_epsilon,
            "delta": card.delta,
            "attacker": None if card.attacker is None else asdict(card.attacker),
        },
        "weights": {
            "file": f"{MODEL}/weights.safetensors",
            "sha256": digests["weights.safetensors"],
            "shapes": {name: list(one.shape) for name, one in sorted(saved.weights.items())},
        },
    }


def _file_of(saved: Saved, release: str) -> dict[str, str]:
    """Return which file has the rows of a release; one with removed people has a number."""
    start, end = f"hops/{release}.", ".safetensors"
    (name,) = (one for one in saved.digests if one.startswith(start) and one.endswith(end))
    return {"file": f"{MODEL}/{name}", "sha256": saved.digests[name]}
