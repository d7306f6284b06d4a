"""The privacy card: what a release promises, for programs (JSON) and for people (Markdown).

Every fitted model carries one and saves it beside its weights (privacy page, section 7). A card may
be handed out with the model, so it holds nothing that was read from private data without a price.
In particular it does not hold the data set's fingerprint: that is an exact function of the data,
and whoever knows all of it but one edge could try both values. The curator finds the data set in
the ledger, by the id of the charge.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from gapgnn import __version__
from gapgnn.errors import (
    DataError,
    InputError,
    PrivacyError,
    check_choice,
    check_integer,
    check_number,
)
from gapgnn.graph import Wording
from gapgnn.privacy import LEVELS, Relation, parse_relation
from gapgnn.privacy.accounting import AttackBounds
from gapgnn.privacy.card import texts as texts
from gapgnn.privacy.card.composition import ChargedRelease, composed
from gapgnn.privacy.card.format import FORMAT, check_keys, markdown, read_values
from gapgnn.privacy.card.run import ReleasedRun

if TYPE_CHECKING:
    from gapgnn.privacy.ledger import Charge

NOTIONS = ("own record", "strict")


@dataclass(frozen=True)
class LedgerNote:
    """What the ledger said right after the charge; without a grant the amounts are None.

    ``head`` is the head of the ledger's chain after the charge: a keyed hash of it and everything
    before. Its key stays in the ledger, so it says nothing about the data, and `gapgnn ledger
    verify --against` tells whether the ledger still has it. Earlier cards have none.
    """

    charge_id: str
    granted_epsilon: float | None = None
    granted_delta: float | None = None
    left_epsilon: float | None = None
    left_delta: float | None = None
    head: str | None = None

    @classmethod
    def of(cls, charge: Charge) -> LedgerNote:
        """Return what a charge's answer said."""
        budget, head = charge.budget, charge.link or None
        if budget is None:
            return cls(charge_id=charge.id, head=head)
        return cls(
            charge_id=charge.id,
            granted_epsilon=budget.granted_epsilon,
            granted_delta=budget.granted_delta,
            left_epsilon=budget.left_epsilon,
            left_delta=budget.left_delta,
            head=head,
        )

    def __str__(self) -> str:
        if self.granted_epsilon is None:
            return f"charge {self.charge_id}"
        return (
            f"charge {self.charge_id}; granted epsilon {self.granted_epsilon:g}, delta "
            f"{self.granted_delta:g}; left epsilon {self.left_epsilon:g}, delta {self.left_delta:g}"
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class PrivacyCard:
    """What one release promises. Build it with :func:`make_card`.

    Attributes:
        method: what was trained.
        relation: which graphs are neighbours, and so what is protected.
        epsilon: None at level none, where nothing is promised.
        delta: likewise.
        delta_is_auto: whether delta was chosen from the number of protected entities.
        accountant: what turned the events into epsilon.
        rdp_epsilon: the same events under Renyi accounting, for comparison.
        noise_multiplier: the calibrated multiplier, where the method has a single one.
        events: everything that was released on private data, with its parameters.
        noise_source: one of ``gapgnn.privacy.card.texts.NOISE_SOURCES``.
        max_degree: the bound on the out-degree, where adjacency lists were cut.
        node_notion: at node level with a degree bound, ``own record``, or ``strict`` where no list
            had to be cut (privacy page, section 1).
        messages: what travelled along the edges.
        covered: who is covered.
        not_covered: who and what is not.
        not_charged: (what, why) of every step without a price.
        warnings: what a reader must not miss.
        ledger: the ledger's answer, or None where nothing was charged.
        dataset: what people call the data set.
        version: of the library.
        public: (what, where from) of every fact of the data that is taken to be public.
        audits: results of audits of this configuration.
        edge_types: the names of several edge types; empty where there is one.
        protects: with several edge types, ``each`` (an edge of every type at once) or ``any`` (an
            edge of one of them).
        own: at node level, what a prediction reads of its own person: ``nothing``, ``features`` or
            ``record``; at edge level ``record`` where it reads the node's own neighbours; empty
            elsewhere.
        edges_unread: why the predictions of a method for graphs depend on no edge, a name in
            ``gapgnn.privacy.card.texts.EDGES_UNREAD``; empty where they do, and for methods that
            never read edges.
        attacker: what an attacker can reach at most, over all groups and all options of adaptive
            choices; None at level none.
        releases: everything that was charged for this model, the training first, then every graph
            that was predicted on. What is above speaks of the training.
        composed_epsilon: of all releases together, at ``delta``, for an edge or a person in all of
            them; None at level none.
        wording: what the user calls people and edges; sentences of the card are in these words.
        templates: those sentences before they were, for :meth:`in_words`.
        product: what is handed out: ``model``; ``rows`` that were released without one; or the
            ``weights`` of a module, without predictions.
    """

    method: str
    relation: Relation
    epsilon: float | None
    delta: float | None
    delta_is_auto: bool
    accountant: str
    rdp_epsilon: float | None
    noise_multiplier: float | None
    events: tuple[Mapping[str, Any], ...]
    noise_source: str
    max_degree: int | None
    node_notion: str | None
    messages: str
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    not_charged: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    ledger: LedgerNote | None
    dataset: str
    version: str
    public: tuple[tuple[str, str], ...] = ()
    audits: tuple[Mapping[str, Any], ...] = ()
    edge_types: tuple[str, ...] = ()
    protects: str = ""
    own: str = ""
    edges_unread: str = ""
    attacker: AttackBounds | None = None
    releases: tuple[ChargedRelease, ...] = ()
    composed_epsilon: float | None = None
    wording: Wording = field(default_factory=Wording)
    templates: tuple[str, ...] = ()
    product: str = "model"

    def __post_init__(self) -> None:
        check_choice("product", self.product, texts.PRODUCTS)
        check_choice("noise_source", self.noise_source, texts.NOISE_SOURCES)
        check_choice("protects", self.protects, texts.PROTECTS if self.edge_types else ("",))
        choices = {"none": (), "edge": ("record",), "node": texts.OWN}[self.level]
        check_choice("own", self.own, ("", *choices))
        check_choice("edges_unread", self.edges_unread, ("", *texts.EDGES_UNREAD))
        if self.node_notion is not None:
            check_choice("node_notion", self.node_notion, NOTIONS)
        if self.max_degree is not None:
            check_integer("max_degree", self.max_degree, at_least=1)
        for name in ("rdp_epsilon", "noise_multiplier"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)
        self._check_price()
        self._check_releases()

    @property
    def level(self) -> str:
        """What is protected: ``none``, ``edge`` or ``node``."""
        return self.relation.level

    def _check_price(self) -> None:
        """Refuse a card that contradicts itself: readers rely on it."""
        if self.level == "none":
            if self.epsilon is not None or self.delta is not None:
                raise InputError(f"`epsilon` must be None at level none. Got {self.epsilon!r}.")
            if self.attacker is not None:
                raise InputError("`attacker` must be None at level none, where nothing is bounded.")
            expected = texts.UNPROTECTED
            fits = self.noise_source == expected
        else:
            epsilon = check_number("epsilon", self.epsilon, at_least=0)
            check_number("delta", self.delta, at_least=0, below=1)
            if (epsilon > 0) != bool(self.events):
                raise InputError(
                    "`events` must list what epsilon pays for, and be empty if it is 0. "
                    f"Got {len(self.events)} for epsilon {epsilon:g}."
                )
            if self.attacker is None:
                raise InputError("`attacker` must bound what can be learned. Got None.")
            expected = "a source of noise" if epsilon else texts.NO_NOISE
            fits = (
                (self.noise_source in texts.REAL_NOISE)
                if epsilon
                else (self.noise_source == texts.NO_NOISE)
            )
        if not fits:
            raise InputError(f"`noise_source` must be {expected}. Got {self.noise_source!r}.")

    def _check_releases(self) -> None:
        """Refuse a card that does not list what its epsilon pays for."""
        if bool(self.releases) != bool(self.epsilon):
            raise InputError(
                "`releases` must list what was charged, and be empty if nothing was. "
                f"Got {len(self.releases)} for epsilon {self.epsilon}."
            )
        if not self.releases:
            if self.composed_epsilon != self.epsilon:
                raise InputError(
                    f"`composed_epsilon` must be {self.epsilon}. Got {self.composed_epsilon!r}."
                )
            return
        first, others = self.releases[0], self.releases[1:]
        name = texts.PRODUCTS[self.product]
        if first.purpose != name or any(one.purpose == name for one in others):
            raise InputError(f"`releases` must have one {name}, the first. Got otherwise.")
        pairs = [("epsilon", self.epsilon), ("delta", self.delta), ("relation", self.relation)]
        for name, value in pairs:
            if getattr(first, name) != value:
                raise InputError(
                    f"`{name}` must be that of the first of `releases`, {getattr(first, name)}. "
                    f"Got {value}."
                )
        if len({one.charge_id for one in self.releases}) < len(self.releases):
            raise InputError("`releases` must have different ids. Got one twice.")
        check_number("composed_epsilon", self.composed_epsilon, above=0)

    def with_release(self, release: ChargedRelease) -> PrivacyCard:
        """Return a copy that also lists another release of the model; one it lists is there once.

        Raises:
            PrivacyError: if no finite epsilon of the composition is known.
        """
        if any(one.charge_id == release.charge_id for one in self.releases):
            return self
        assert self.delta is not None
        releases = (*self.releases, release)
        epsilon, attacker = composed(releases, self.delta)
        return replace(self, releases=releases, composed_epsilon=epsilon, attacker=attacker)

    def in_words(self, wording: Wording) -> PrivacyCard:
        """Return a copy in other words."""
        other = {self.wording.fill(one): wording.fill(one) for one in self.templates}

        def said(text: str) -> str:
            return other.get(text, text)

        return replace(
            self,
            wording=wording,
            messages=said(self.messages),
            covered=tuple(map(said, self.covered)),
            not_covered=tuple(map(said, self.not_covered)),
            not_charged=tuple((said(what), said(why)) for what, why in self.not_charged),
            warnings=tuple(map(said, self.warnings)),
            public=tuple((said(what), said(origin)) for what, origin in self.public),
        )

    def _check_composed(self) -> None:
        """Refuse a card that understates what several releases come to."""
        if len(self.releases) < 2:
            return
        assert self.delta is not None
        assert self.composed_epsilon is not None
        needed, attacker = composed(self.releases, self.delta)
        assert self.attacker is not None
        stated, known = asdict(self.attacker), asdict(attacker)
        pairs = [("composed_epsilon", self.composed_epsilon, needed)]
        pairs += [(name, stated[name], known[name]) for name in known if name != "mu"]
        for name, value, least in pairs:
            # A later version may state a larger epsilon for the same events. A smaller one than
            # the releases come to is refused.
            if value < least * (1 - 1e-6):
                raise InputError(
                    f"`{name}` must be {least:.6g}, which the releases come to. Got {value:.6g}."
                )

    @property
    def is_private_release(self) -> bool:
        """Whether the guarantee holds: secret, float-safe noise, or nothing private was read."""
        return self.noise_source in (texts.SAFE_NOISE, texts.NO_NOISE)

    def with_audit(self, audit: Mapping[str, Any]) -> PrivacyCard:
        """Return a copy that also reports an audit."""
        return replace(self, audits=(*self.audits, dict(audit)))

    def to_json(self) -> str:
        """Write the card as one JSON object; infinity does not exist, level none has nulls."""
        values = {"format": FORMAT, "is_private_release": self.is_private_release, **asdict(self)}
        values |= {"level": self.level, "relation": self.relation.name}
        values["releases"] = [release.to_dict() for release in self.releases]
        return json.dumps(values, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> PrivacyCard:
        """Read a card back; anything missing, unknown or contradictory is an error."""
        names = {part.name for part in fields(cls)}
        values = read_values(text, {"is_private_release", "level", *names})
        stated, level = values.pop("is_private_release"), values.pop("level")
        note, attacker = values.pop("ledger"), values.pop("attacker")
        if note is not None:
            note = {"head": None, **note}
            check_keys("`ledger`", note, {part.name for part in fields(LedgerNote)})
            note = LedgerNote(**note)
        if attacker is not None:
            check_keys("`attacker`", attacker, {part.name for part in fields(AttackBounds)})
        listed, wording = values.pop("releases"), values.pop("wording")
        check_keys("`wording`", wording, {part.name for part in fields(Wording)})
        try:
            if check_choice("level", level, LEVELS) == "none":
                check_choice("relation", values["relation"], ("none",))
            values["relation"] = parse_relation(values["relation"], level)
            values["wording"] = Wording(**wording)
            values["attacker"] = None if attacker is None else AttackBounds(**attacker)
            values["releases"] = tuple(_release_of(one) for one in listed)
            card = cls(**values, ledger=note)
            card._check_composed()
        except (InputError, PrivacyError) as error:
            raise DataError(f"A privacy card cannot be read: {error}") from None
        if stated is not card.is_private_release:
            raise DataError(
                f"`is_private_release` must be {json.dumps(card.is_private_release)} for the noise "
                f"source {card.noise_source!r}. Got {json.dumps(stated)}."
            )
        return card

    def to_markdown(self) -> str:
        """Write the card for people."""
        return markdown(self)

    def __str__(self) -> str:
        lines = [
            f"{self.method} on {self.dataset}: level {self.level}, relation {self.relation}",
            guarantee_sentence(self),
            *(f"{what}: {value}" for what, value in attacker_facts(self.attacker)),
            f"noise: {self.noise_source}; accountant: {self.accountant}",
            f"ledger: {self.ledger or 'nothing was charged'}",
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    __repr__ = __str__


def attacker_facts(bounds: AttackBounds | None) -> list[tuple[str, str]]:
    """Return name and value of what an attacker can reach, rounded up; nothing for None."""
    if bounds is None:
        return []
    return [
        ("Gaussian DP", "-" if bounds.mu is None else f"mu {texts.rounded_up(bounds.mu)}"),
        ("a 50:50 guess is right in at most", texts.percent(bounds.guess)),
        (
            "true positives at 1 % false positives, at most",
            texts.percent(bounds.tpr_at_fpr_1_percent),
        ),
        (
            "true positives at 0.1 % false positives, at most",
            texts.percent(bounds.tpr_at_fpr_0_1_percent),
        ),
    ]


def _release_of(values: Mapping[str, Any]) -> ChargedRelease:
    check_keys("a release", values, {part.name for part in fields(ChargedRelease)})
    if not isinstance(values["events"], list):
        raise InputError(f"`events` of a release must be a list. Got {values['events']!r}.")
    for name in ("purpose", "charge_id", "when", "relation"):
        if not isinstance(values[name], str):
            raise InputError(f"`{name}` of a release must be a text. Got {values[name]!r}.")
    relation, events = parse_relation(values["relation"]), tuple(map(dict, values["events"]))
    return ChargedRelease(**{**values, "relation": relation, "events": events})


def guarantee_sentence(card: PrivacyCard) -> str:
    """Return the card's promise as one plain sentence, that of all releases together.

    Of several releases a second sentence says what the first one promises alone.
    """
    sentence = _guarantee_of_all(card)
    if len(card.releases) < 2:
        return sentence
    return f"{sentence} {texts.first_alone(card.epsilon, card.delta, product=card.product)}"


def _guarantee_of_all(card: PrivacyCard) -> str:
    template = texts.promise(
        card.relation,
        card.composed_epsilon,
        card.delta,
        edge_types=card.edge_types,
        protects=card.protects,
        own=card.own,
        product=card.product,
        releases=len(card.releases),
    )
    promise = card.wording.fill(template)
    if card.level == "none" or card.is_private_release:
        return promise
    reason = (
        "the noise was seeded and can be subtracted"
        if card.noise_source == texts.SEEDED_NOISE
        else "fast float32 noise can leak through its gaps"
    )
    return (
        f"Not a private release, because {reason}; with safe noise it would be: "
        f"{promise[0].lower()}{promise[1:]}"
    )


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """What a method says of its release beside what its session recorded.

    Attributes:
        method: what was trained.
        messages: a name in ``gapgnn.privacy.card.texts.MESSAGES``; or, for anything
            else, a sentence that says what travelled along the edges.
        steps: what the method did, of ``gapgnn.privacy.card.texts.STEPS``.
        public: what :func:`gapgnn.privacy.card.public_facts` returned.
        warnings: further ones.
        own: what a prediction reads of its own person; at edge level only ``record`` is stated.
        edges_unread: why predictions depend on no edge; empty where they do.
        product: ``model``; ``rows`` or ``weights`` where they are all that is handed out.
    """

    method: str
    messages: str = "features"
    steps: Sequence[str] = tuple(texts.STEPS)
    public: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    own: str = ""
    edges_unread: str = ""
    product: str = "model"

    @property
    def reads_edges(self) -> bool:
        """Whether the method reads edges at all."""
        return self.messages != "none"


def make_card(run: ReleasedRun, facts: ReleaseFacts) -> PrivacyCard:
    """Assemble the card of one release, so that no method words a promise itself.

    The number of protected entities is compared with delta and never written down.

    >>> from gapgnn.privacy import Guarantee, Undirected
    >>> from gapgnn.privacy.accounting import Gaussian
    >>> promise = Guarantee(relation=Undirected(), epsilon=1.0, delta=1e-6, delta_is_auto=False,
    ...                     entities=10_000, noise_multiplier=6.6, accountant="exact",
    ...                     events=(Gaussian(6.6, count=2),))
    >>> run = ReleasedRun(promise=promise, dataset="social")
    >>> card = make_card(run, ReleaseFacts(method="GAP"))
    >>> card.is_private_release, card.warnings
    (True, ('This release is not recorded in a ledger.',))
    """
    promise, charge = run.promise, run.charge
    level, relation = promise.level, promise.relation
    is_promised = level != "none"
    epsilon = promise.epsilon if is_promised else None
    notion = run.notion(reads_edges=facts.reads_edges)
    own = facts.own if level == "node" or (level == "edge" and facts.own == "record") else ""
    edge_types = tuple(run.edge_types) if facts.reads_edges else ()
    protects = run.protects if edge_types else ""
    of_types = (relation, edge_types, protects)
    every_type = None
    if protects == "any":
        every_type = promise.every_type_epsilon(len(edge_types), has_total=run.with_union)
    templates: dict[str, None] = {}

    def said(text: str) -> str:
        filled = run.wording.fill(text)
        if filled != text:
            templates[text] = None
        return filled

    def said_pairs(rows: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        return tuple((said(left), said(right)) for left, right in rows)

    is_weighted = run.is_weighted and facts.reads_edges
    # Nothing travelled along the edges where no hop was released, whatever was planned.
    is_silent = is_promised and facts.messages in texts.IN_HOPS and not run.hops
    messages = "none released" if is_silent else facts.messages
    card = PrivacyCard(
        method=facts.method,
        relation=relation,
        epsilon=epsilon,
        delta=promise.delta if is_promised else None,
        delta_is_auto=is_promised and promise.delta_is_auto,
        accountant=promise.accountant,
        rdp_epsilon=promise.rdp_epsilon() if is_promised else None,
        noise_multiplier=promise.noise_multiplier if is_promised else None,
        events=tuple(event.to_dict() for event in promise.events),
        noise_source=texts.noise_source(level, epsilon, run.noise, is_insecure=run.is_seeded),
        max_degree=run.max_degree,
        node_notion=notion,
        messages=said(texts.travelled(messages, is_symmetrised=run.is_symmetrised)),
        covered=(
            *map(said, texts.covered(relation, notion=notion)),
            *map(said, texts.covered_own(level, own)),
            *map(said, texts.covered_edges(*of_types, is_weighted)),
        ),
        not_covered=(
            *map(
                said,
                texts.not_covered(relation, notion=notion, own=own, product=facts.product),
            ),
            *map(said, texts.not_covered_edges(*of_types, every_type_epsilon=every_type)),
        ),
        not_charged=said_pairs(texts.not_charged(level, facts.steps)),
        warnings=tuple(map(said, _warnings(run, facts))),
        ledger=None if charge is None else LedgerNote.of(charge),
        dataset=run.dataset,
        version=__version__,
        public=said_pairs(facts.public),
        edge_types=edge_types,
        protects=protects,
        own=own,
        edges_unread=facts.edges_unread,
        attacker=promise.attack_bounds(),
        # What was charged, with options that were not taken.
        releases=(ChargedRelease.of(promise, charge, texts.PRODUCTS[facts.product]),)
        if epsilon
        else (),
        composed_epsilon=epsilon,
        wording=run.wording,
        product=facts.product,
    )
    return replace(card, templates=tuple(templates))


def _warnings(run: ReleasedRun, facts: ReleaseFacts) -> tuple[str, ...]:
    """Return what a reader must not miss."""
    promise, charge = run.promise, run.charge
    is_promised = promise.level != "none"
    return (
        *([texts.EDGES_UNREAD[facts.edges_unread]] if facts.edges_unread else []),
        *texts.delta_warnings(promise.delta if is_promised else None, promise.entities),
        *texts.relation_warnings(
            promise.relation,
            is_symmetric=run.is_symmetric,
            undirected_epsilon=promise.undirected_epsilon(),
        ),
        *texts.ledger_warnings(
            promise.epsilon if is_promised else None,
            is_recorded=charge is not None,
            is_limited=charge is not None
            and charge.budget is not None
            and charge.budget.granted_epsilon is not None,
            repeats=charge.count if charge else 1,
        ),
        *facts.warnings,
    )
