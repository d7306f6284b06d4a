"""Audits: lower bounds on epsilon, exact checks, and whole commands on neighbouring files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.attacks.audits.model import audit_aggregation as audit_aggregation
    from gapgnn.attacks.audits.model import audit_messages as audit_messages
    from gapgnn.attacks.audits.model import audit_model as audit_model
    from gapgnn.attacks.audits.neighbours import Tables as Tables
    from gapgnn.attacks.audits.pipeline import Case as Case
    from gapgnn.attacks.audits.pipeline import Outcome as Outcome
    from gapgnn.attacks.audits.pipeline import audit_pipeline as audit_pipeline
    from gapgnn.attacks.audits.report import AuditReport as AuditReport

__getattr__, __dir__, __all__ = front(__name__)
