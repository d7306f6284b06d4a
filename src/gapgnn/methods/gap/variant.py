"""Which GAP: what is sent, in how many hops, and which networks that takes."""

from __future__ import annotations

from dataclasses import dataclass

from gapgnn.errors import InputError, check_choice, check_integer


@dataclass(frozen=True)
class Variant:
    """The options of GAP that decide its shape, with ``auto`` filled in.

    Attributes:
        level: ``none``, ``edge`` or ``node``.
        messages: ``labels``, ``features`` or ``both``.
        is_progressive: whether a network is trained after every hop.
        hops: number of noisy aggregations.
        has_encoder: whether an encoder is trained on features and labels first.
    """

    level: str
    messages: str
    is_progressive: bool
    hops: int
    has_encoder: bool

    @classmethod
    def resolve(
        cls,
        *,
        level: str,
        messages: str,
        progressive: bool | str,
        hops: int | str,
        encoder_layers: int,
    ) -> Variant:
        """Fill in ``auto``, and refuse what would send a node its own label.

        >>> Variant.resolve(level="edge", messages="labels", progressive="auto", hops="auto",
        ...                 encoder_layers=2).hops
        4
        """
        check_choice("messages", messages, ("labels", "features", "both"))
        is_progressive = messages != "features" if progressive == "auto" else bool(progressive)
        if hops == "auto":
            if messages == "features":
                hops = (4 if level == "node" else 5) if is_progressive else 2
            else:
                hops = 4 if is_progressive and level != "node" else 1
        number = check_integer("hops", hops, at_least=1)
        if messages != "features" and not is_progressive and number > 1:
            raise InputError(
                "`hops` must be 1 for label messages without stages: a second hop would bring a "
                f"node's own label back to it. Got {number}. Use progressive=True."
            )
        check_integer("encoder_layers", encoder_layers, at_least=0)
        # Labels need no codes, so at node level the encoder's budget is saved for them.
        has_encoder = encoder_layers > 0 and (messages != "labels" or level != "node")
        return cls(level, messages, is_progressive, number, has_encoder)

    @property
    def is_papers(self) -> bool:
        """Whether hops are computed from hops, as in the paper: features, no stages."""
        return self.messages == "features" and not self.is_progressive

    @property
    def reads_codes(self) -> bool:
        """Whether classifiers read hop 0 through the encoder, as in the paper.

        Progressive features at edge level read the features again, where that is free: measured, it
        is worth a point there and nothing elsewhere.
        """
        if self.messages != "features" or self.level == "node":
            return self.has_encoder
        return self.is_papers

    @property
    def phases(self) -> tuple[str, ...]:
        """The trained networks in order; the last one classifies."""
        encoder = ("encoder",) if self.has_encoder else ()
        stages = range(1, self.hops) if self.is_progressive else ()
        return (*encoder, *(f"stage{stage}" for stage in stages), "classifier")

    def phase(self, hop: int) -> str:
        """Return the network that can be trained once a hop is there."""
        return "classifier" if hop == self.hops else f"stage{hop}"
