"""Tables, figures and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.evaluation.report.content import HOPS as HOPS
    from gapgnn.evaluation.report.findings import FILE as FILE
    from gapgnn.evaluation.report.findings import Audit as Audit
    from gapgnn.evaluation.report.findings import load_findings as load_findings
    from gapgnn.evaluation.report.model import curator_figures as curator_figures
    from gapgnn.evaluation.report.model import write_model_page as write_model_page
    from gapgnn.evaluation.report.page import load_results as load_results
    from gapgnn.evaluation.report.page import screenshot as screenshot
    from gapgnn.evaluation.report.page import write_report as write_report

__getattr__, __dir__, __all__ = front(__name__)
