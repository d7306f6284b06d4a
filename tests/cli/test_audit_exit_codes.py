"""`gapgnn audit` exits with 1 where a guarantee is broken or an event was left out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gapgnn import NeighborVote, load_model
from gapgnn.audits import AuditReport
from gapgnn.audits import model as model_audit
from gapgnn.cli.main import main
from gapgnn.errors import CalibrationError, PrivacyError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy.mechanisms import labels

LABELS = ["audit", "labels", "--epsilon", "1", "--trials", "2000"]
BROKEN = AuditReport("fit", 1.0, 3.0, 1e-6, 0.95, 40, details={"bounds": {}})


@pytest.fixture
def half_the_noise(monkeypatch):
    """Labels are exchanged half as often as is accounted."""
    each = labels.Coins.each

    def half(self, count, share, *path):
        return each(self, count, share / 2 if path == ("at random",) else share, *path)

    monkeypatch.setattr(labels.Coins, "each", half)


@pytest.mark.parametrize("printed_as", [["--json"], []], ids=["json", "text"])
def test_a_mechanism_that_holds_is_exit_0(capsys, printed_as):
    assert main([*LABELS, *printed_as]) == 0
    printed = capsys.readouterr()
    assert "broken" not in printed.err
    assert not printed_as or json.loads(printed.out)["holds"] is True


@pytest.mark.parametrize("printed_as", [["--json"], []], ids=["json", "text"])
@pytest.mark.usefixtures("half_the_noise")
def test_a_broken_mechanism_is_exit_1_and_one_sentence(capsys, printed_as):
    assert main([*LABELS, *printed_as]) == 1
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "The guarantee of the labels mechanism is broken" in printed.err
    assert "no violation" not in printed.out
    assert not printed_as or json.loads(printed.out)["holds"] is False


def test_a_guard_that_stops_the_canaries_is_exit_1(capsys, monkeypatch):
    """They are the audit's own, so nothing about them may be refused."""

    def refuse(*given, **options):
        raise PrivacyError("a row is too long.")

    monkeypatch.setattr(labels.Coins, "each", refuse)
    assert main([*LABELS, "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "labels mechanism is broken: a row is too long." in printed.err


def test_a_budget_that_no_noise_keeps_is_no_finding(monkeypatch):
    def refuse(*given, **options):
        raise CalibrationError("no noise keeps this.")

    monkeypatch.setattr(labels.Coins, "each", refuse)
    with pytest.raises(CalibrationError, match="no noise keeps this"):
        main(LABELS)


@pytest.mark.parametrize("is_broken", [True, False])
def test_the_audit_of_a_fit_exits_as_its_report_says(capsys, monkeypatch, is_broken):
    report = BROKEN if is_broken else replace(BROKEN, epsilon_lower_bound=0.5)
    monkeypatch.setattr("gapgnn.audits.audit_fit", lambda *given, **options: report)
    assert main(["audit", "fit", "label-gap", "--json"]) == int(is_broken)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["holds"] is not is_broken
    assert ("an attacker reaches epsilon 3" in printed.err) is is_broken


@pytest.mark.parametrize("is_broken", [True, False])
def test_the_audit_of_a_claim_exits_as_its_report_says(capsys, monkeypatch, is_broken):
    report = BROKEN if is_broken else replace(BROKEN, epsilon_lower_bound=0.5)
    monkeypatch.setattr("gapgnn.audits.audit_claim", lambda *given, **options: report)
    assert main(["audit", "claim", "--json", "program"]) == int(is_broken)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["holds"] is not is_broken
    assert ("an attacker reaches epsilon 3" in printed.err) is is_broken


def test_a_model_with_an_event_that_no_audit_covers_is_exit_1(
    capsys, monkeypatch, ledger, tmp_path
):
    graph = social_graph(num_nodes=60, mean_degree=4)
    folder = tmp_path / "vote"
    NeighborVote(level="node", epsilon=2.0, ledger=ledger.path).fit(graph).save(folder)
    whole = load_model(folder)
    events = whole.card_.events
    whole.card_ = replace(whole.card_, events=(*events, {**events[0], "label": "asked"}))
    monkeypatch.setattr("gapgnn.methods.load_model", lambda given: whole)
    audited = model_audit._is_audited
    monkeypatch.setattr(
        model_audit,
        "_is_audited",
        lambda model, event: event.label != "asked" and audited(model, event),
    )
    assert main(["audit", "--model", str(folder), "--trials", "400", "--json"]) == 1
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["holds"] is False
    assert len(answer["without_audit"]) == 1
    assert all(audit["holds"] for audit in answer["audits"])
