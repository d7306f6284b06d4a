"""Every door to private data, and its price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.privacy.budget import LEAST_DELTA as LEAST_DELTA
    from gapgnn.privacy.budget import LEAST_EPSILON as LEAST_EPSILON
    from gapgnn.privacy.budget import MOST_DELTA as MOST_DELTA
    from gapgnn.privacy.budget import MOST_EPSILON as MOST_EPSILON
    from gapgnn.privacy.budget import check_delta as check_delta
    from gapgnn.privacy.budget import check_epsilon as check_epsilon
    from gapgnn.privacy.budget import check_part as check_part
    from gapgnn.privacy.budget import check_price as check_price
    from gapgnn.privacy.budget import stated_epsilon as stated_epsilon
    from gapgnn.privacy.checkpoint import Checkpoint as Checkpoint
    from gapgnn.privacy.checkpoint import NoCheckpoint as NoCheckpoint
    from gapgnn.privacy.guarantee import EntityCounts as EntityCounts
    from gapgnn.privacy.guarantee import Guarantee as Guarantee
    from gapgnn.privacy.guarantee import check_finite_budget as check_finite_budget
    from gapgnn.privacy.guarantee import count_entities as count_entities
    from gapgnn.privacy.operators import Arcs as Arcs
    from gapgnn.privacy.operators import DegreeBounded as DegreeBounded
    from gapgnn.privacy.operators import Messages as Messages
    from gapgnn.privacy.operators import Neighbors as Neighbors
    from gapgnn.privacy.operators import Operator as Operator
    from gapgnn.privacy.operators import OutDegreeNormalized as OutDegreeNormalized
    from gapgnn.privacy.operators import Symmetrized as Symmetrized
    from gapgnn.privacy.operators import UnionOfTypes as UnionOfTypes
    from gapgnn.privacy.operators import kinds_growth as kinds_growth
    from gapgnn.privacy.operators import squared_growth as squared_growth
    from gapgnn.privacy.plan import Plan as Plan
    from gapgnn.privacy.plan import PlannedHops as PlannedHops
    from gapgnn.privacy.plan import PlannedTraining as PlannedTraining
    from gapgnn.privacy.plan import PublicFacts as PublicFacts
    from gapgnn.privacy.relations import LEVELS as LEVELS
    from gapgnn.privacy.relations import RELATIONS as RELATIONS
    from gapgnn.privacy.relations import RELATIONS_OF_LEVEL as RELATIONS_OF_LEVEL
    from gapgnn.privacy.relations import AddRemove as AddRemove
    from gapgnn.privacy.relations import Directed as Directed
    from gapgnn.privacy.relations import KArcs as KArcs
    from gapgnn.privacy.relations import KEdges as KEdges
    from gapgnn.privacy.relations import Links as Links
    from gapgnn.privacy.relations import Records as Records
    from gapgnn.privacy.relations import Relation as Relation
    from gapgnn.privacy.relations import RelationLike as RelationLike
    from gapgnn.privacy.relations import Replace as Replace
    from gapgnn.privacy.relations import Undirected as Undirected
    from gapgnn.privacy.relations import Unprotected as Unprotected
    from gapgnn.privacy.relations import aggregation_ratio as aggregation_ratio
    from gapgnn.privacy.relations import auto_delta as auto_delta
    from gapgnn.privacy.relations import check_relation as check_relation
    from gapgnn.privacy.relations import describe_relation as describe_relation
    from gapgnn.privacy.relations import links_of as links_of
    from gapgnn.privacy.relations import parse_relation as parse_relation
    from gapgnn.privacy.relations import protected_entities as protected_entities
    from gapgnn.privacy.relations import public_count as public_count
    from gapgnn.privacy.relations import resolve_kinds as resolve_kinds
    from gapgnn.privacy.relations import resolve_relation as resolve_relation
    from gapgnn.privacy.relations import strictest as strictest
    from gapgnn.privacy.session import PrivateSession as PrivateSession
    from gapgnn.privacy.session import SessionOptions as SessionOptions
    from gapgnn.privacy.session import charged_release as charged_release
    from gapgnn.privacy.witness import Release as Release
    from gapgnn.privacy.witness import active_witness as active_witness
    from gapgnn.privacy.witness import shown as shown
    from gapgnn.privacy.witness import watched_by as watched_by

__getattr__, __dir__, __all__ = front(__name__)
