"""Audits: lower bounds on epsilon, exact checks, and whole commands on neighbouring files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.attacks.audits.aggregation import audit_aggregation as audit_aggregation
    from gapgnn.attacks.audits.aggregation import audit_sampler as audit_sampler
    from gapgnn.attacks.audits.dpsgd import audit_dpsgd as audit_dpsgd
    from gapgnn.attacks.audits.edges import audit_edges as audit_edges
    from gapgnn.attacks.audits.messages import audit_messages as audit_messages
    from gapgnn.attacks.audits.model import audit_model as audit_model
    from gapgnn.attacks.audits.model import events_without_audit as events_without_audit
    from gapgnn.attacks.audits.neighbours import Tables as Tables
    from gapgnn.attacks.audits.pipeline import Case as Case
    from gapgnn.attacks.audits.pipeline import Outcome as Outcome
    from gapgnn.attacks.audits.pipeline import audit_pipeline as audit_pipeline
    from gapgnn.attacks.audits.pure import audit_labels as audit_labels
    from gapgnn.attacks.audits.pure import audit_mean_degree as audit_mean_degree
    from gapgnn.attacks.audits.report import AuditReport as AuditReport
    from gapgnn.attacks.audits.subgraphs import audit_subgraphs as audit_subgraphs

__getattr__, __dir__, __all__ = front(__name__)
