"""The report: complete, honest, safe to open, and usable without a mouse or without eyes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapgnn.cli.main import run
from gapgnn.cli.report import SECTIONS
from gapgnn.errors import DataError, UnavailableError
from gapgnn.evaluation.grid.records import FILE, Record
from gapgnn.evaluation.report import content, figures
from gapgnn.evaluation.report import page as report_module
from gapgnn.evaluation.report.content import event_words, right_guesses
from gapgnn.evaluation.report.findings import load_findings
from gapgnn.evaluation.report.page import render, write_report
from gapgnn.evaluation.report.plots import STYLES, plots
from gapgnn.evaluation.report.tables import tables

TEMPLATES = Path(report_module.__file__).parent / "templates"
AUDIT = {
    "mechanism": "aggregation",
    "relation": "undirected",
    "epsilon_claimed": 0.999,
    "epsilon_lower_bound": 0.93,
    "confidence": 0.95,
    "trials": 20_000,
    "delta": 1e-6,
    "noise_multiplier": 5.9,
}
VOID = {"meta", "link", "br", "img", "input", "hr", "path", "circle"}


class Page(HTMLParser):
    """Reads a page strictly: every tag that is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not set(self.open) & {"style", "script"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing of files, which the figures' own tests cover and which takes long."""
    monkeypatch.setattr(report_module, "save_figures", lambda plots, folder: [])


def gapgnn(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["gapgnn", *words])
    with pytest.raises(SystemExit) as stop:
        run()
    return int(stop.value.code or 0)


def test_the_command_writes_page_figures_and_tables(
    make_record: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [make_record(experiment="tradeoff", epsilon=epsilon) for epsilon in (1.0, 2.0)]
    (tmp_path / FILE).write_text("".join(row.to_json() + "\n" for row in rows))
    assert gapgnn("report", str(tmp_path), "--json", monkeypatch=monkeypatch) == 0
    said = json.loads(capsys.readouterr().out)
    assert Path(said["page"]).read_text().startswith("<!doctype html>")
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    assert found == sorted(
        [FILE, "report.html"]
        + [f"figures/tradeoff-edge.{suffix}" for suffix in ("pdf", "svg", "png")]
        + [f"tables/tradeoff-edge.{suffix}" for suffix in ("md", "tex", "csv")]
    )


@pytest.mark.gate
def test_every_promised_section_is_there(made_up: list[Record], rendered: str) -> None:
    page = Page(rendered)
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert ids >= {
        "protected",
        "tradeoff",
        "accuracy",
        "tested",
        "ablations",
        "releases",
        "commands",
    }
    hidden = "all edges between any two people together (one undirected edge) are in the data"
    assert f"whether or not {hidden}" in page.text
    assert "hops: 2 x Gaussian, noise multiplier 1.475" in page.text
    for record in made_up:
        assert record.command in page.text


def test_links_within_the_page_lead_somewhere(rendered: str) -> None:
    page = Page(rendered)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(SECTIONS) <= set(ids)
    for attributes in page.all("a"):
        assert (attributes["href"] or "").removeprefix("#") in ids
    for _, attributes in page.tags:
        for name in ("aria-labelledby", "aria-describedby"):
            if name in attributes:
                assert attributes[name] in ids


def test_the_page_names_nothing_outside_itself(rendered: str) -> None:
    page = Page(rendered)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base"), tag
        assert not {"src", "srcset", "action", "style"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag
    style = (TEMPLATES / "report.css").read_text()
    script = (TEMPLATES / "report.js").read_text()
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"fetch|XMLHttpRequest|import\(|https?:", script)


def test_the_policy_allows_this_style_and_script_and_no_other(rendered: str) -> None:
    text = rendered
    (policy,) = [
        m["content"] or "" for m in Page(text).all("meta") if "content" in m and "http-equiv" in m
    ]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


HOSTILE = "<script>hit=1</script>\"'><img src=x onerror=hit=1>{{ 7*7 }}"


def test_whatever_a_result_says_is_text_and_never_markup(make_record: Any) -> None:
    rows = [
        make_record(
            experiment=experiment,
            dataset=HOSTILE,
            method=HOSTILE,
            command=HOSTILE,
            machine=HOSTILE,
            version=HOSTILE,
            created=HOSTILE,
            events=(HOSTILE, {"event": HOSTILE, "noise_multiplier": 5.9, HOSTILE: HOSTILE}),
            epsilon=epsilon,
        )
        for experiment in ("accuracy", "tradeoff")
        for epsilon in (1.0, 2.0)
    ]
    page = Page(render(rows, folder=HOSTILE))
    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert HOSTILE in page.text
    assert "49" not in page.text


def test_nothing_computed_from_the_data_s_bytes_is_shown(
    made_up: list[Record], rendered: str
) -> None:
    text = rendered
    for record in made_up:
        assert record.fingerprint not in text
        assert record.key not in text


def test_tables_have_captions_and_scopes(rendered: str) -> None:
    page = Page(rendered)
    assert len(page.all("table")) == len(page.all("caption")) >= 10
    assert {attributes.get("scope") for attributes in page.all("th")} == {
        "col",
        "row",
        "rowgroup",
    }


def test_drawings_have_a_text_and_one_stop_for_the_tab_key(rendered: str) -> None:
    page = Page(rendered)
    drawings = [svg for svg in page.all("svg") if svg.get("role") == "group"]
    assert len(drawings) >= 10
    assert all(svg.get("aria-labelledby") and svg.get("aria-describedby") for svg in drawings)
    assert all(
        svg.get("role") == "group" or svg.get("aria-hidden") == "true" for svg in page.all("svg")
    )
    points = [g for g in page.all("g") if g.get("class") == "point"]
    assert all(point.get("aria-label") and point.get("role") == "img" for point in points)
    assert sum(point.get("tabindex") == "0" for point in points) == len(drawings)


def test_the_page_has_one_title_and_its_landmarks(rendered: str) -> None:
    page = Page(rendered)
    for tag in ("h1", "main", "nav", "header", "footer", "title"):
        assert len(page.all(tag)) == 1, tag
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("a")[0] == {"class": "skip", "href": "#main"}


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_words_and_lines_stand_out_from_the_ground(theme: int) -> None:
    style = (TEMPLATES / "report.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)
    colours = {name: pair[theme] for name, *pair in found}
    styles = [f"s{number}" for number in range(len(STYLES))]
    for name in ("text", "muted", "accent", *styles):
        for ground in ("ground", "panel"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["text"], colours["caution"]) >= 4.5


def test_fast_noise_is_called_an_experiment_and_safe_noise_is_not(make_record: Any) -> None:
    fast = Page(render([make_record(extra={"noise": "fast"})])).text
    safe = Page(render([make_record(extra={"noise": "safe"})])).text
    assert "trained with fast noise" in fast
    assert "trained with fast noise" not in safe
    assert "This page is not a private release" in safe


def test_results_without_any_budget_promise_nothing(make_record: Any) -> None:
    unprotected = make_record(
        method="gap", level="none", relation="none", epsilon=None, delta=None, events=()
    )
    text = Page(render([unprotected])).text
    assert "no result in this folder was computed under a privacy budget" in text
    assert "must not be released" in text


def test_an_audit_stands_beside_the_rows_of_its_noise(make_record: Any, tmp_path: Path) -> None:
    (tmp_path / "findings.jsonl").write_text(json.dumps(AUDIT) + "\n")
    audits, _ = load_findings(tmp_path)
    text = Page(render([make_record()], audits=audits)).text
    assert "aggregation: 0.999, at least 0.930" in text
    assert "1 audits, 1 without a violation" in text
    other = [make_record(relation="directed"), make_record(method="sage")]
    assert "aggregation: 0.999" not in Page(render(other, audits=audits)).text


def test_a_broken_promise_is_called_broken(make_record: Any, tmp_path: Path) -> None:
    (tmp_path / "findings.jsonl").write_text(
        json.dumps({**AUDIT, "epsilon_lower_bound": 1.4}) + "\n"
    )
    audits, _ = load_findings(tmp_path)
    text = Page(render([make_record()], audits=audits)).text
    assert "at least 1.400: BROKEN" in text
    assert "1 audits, 0 without a violation" in text


def test_a_damaged_findings_file_is_named_by_line(tmp_path: Path) -> None:
    bad = {**AUDIT, "epsilon_lower_bound": "high"}
    (tmp_path / "findings.jsonl").write_text(f"{json.dumps(AUDIT)}\n{json.dumps(bad)}\n")
    with pytest.raises(DataError, match=r"findings.jsonl`, line 2, .*epsilon_lower_bound"):
        load_findings(tmp_path)


def test_the_audit_option_audits_each_noise_once(
    make_record: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_figures: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("gapgnn.cli.report.AUDIT_TRIALS", 400)
    rows = [make_record(), make_record(dataset="other"), make_record(method="sage")]
    (tmp_path / FILE).write_text("".join(row.to_json() + "\n" for row in rows))
    for _ in range(2):
        assert gapgnn("report", str(tmp_path), "--audit", monkeypatch=monkeypatch) == 0
    (audit,), _ = load_findings(tmp_path)
    assert (audit.mechanism, audit.noise_multiplier, audit.trials) == ("aggregation", 5.9, 400)
    assert audit.command.startswith("gapgnn audit aggregation")
    assert audit.command in Page((tmp_path / "report.html").read_text()).text


@given(st.floats(0.0, 30.0), st.floats(0.0, 0.1))
def test_right_guesses_are_rounded_up_and_never_below_a_coin(epsilon: float, delta: float) -> None:
    exact = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    said = right_guesses(epsilon, delta)
    if said == "nearly always":
        assert exact > 0.9999
    else:
        assert 100 * exact <= float(said.removesuffix(" %")) + 1e-9
        assert float(said.removesuffix(" %")) >= 50


def test_randomised_response_cannot_beat_the_bound_on_guesses() -> None:
    # The mechanism that meets (epsilon, 0) with equality: the truth with odds e^epsilon.
    right = math.exp(2.0) / (1 + math.exp(2.0))
    assert right_guesses(2.0, 0.0) == f"{math.ceil(1000 * right) / 10:.1f} %"


def test_events_of_every_type_are_described() -> None:
    from gapgnn.privacy.accounting import events

    every = [
        events.Gaussian(2.0, count=2),
        events.PoissonGaussian(1.0, sampling_rate=0.1, steps=10),
        events.MixtureOfGaussians(4.0, (0, 1), (0.5, 0.5), steps=5),
        events.Laplace(2.0),
        events.RandomisedResponse(0.1, 0.2),
    ]
    for event in every:
        words = event_words(event.to_dict())
        assert not words.startswith("event ")
        assert "None" not in words


Spoil = dict[str, Any]
BAD: dict[str, tuple[str, Spoil]] = {
    "no such folder": ("must hold results.jsonl", {"folder": "missing"}),
    "no results": ("must hold at least one result", {"text": ""}),
    "a newer store": ("use a newer gapgnn", {"text": '{"format": 99}\n'}),
    "not JSON": ("line 1", {"text": "hello\n"}),
    "a file for a folder": ("must be", {"folder": FILE}),
    "a wrong picture": ("must end in .png", {"more": ["--screenshot", "a.gif"]}),
    "damaged findings": ("findings.jsonl`, line 1", {"findings": "{}\n"}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_writes_nothing(
    name: str,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    complaint, spoil = BAD[name]
    if "text" in spoil:
        (results / FILE).write_text(spoil["text"])
    if "findings" in spoil:
        (results / "findings.jsonl").write_text(spoil["findings"])
    before = sorted(results.rglob("*"))
    folder = results / spoil.get("folder", "")
    words = ["report", str(folder), *spoil.get("more", [])]
    assert gapgnn(*words, monkeypatch=monkeypatch) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert complaint in said.err
    assert sorted(results.rglob("*")) == before


def test_without_a_browser_a_screenshot_is_one_line_and_the_page_is_still_written(
    few_results: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_figures: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("gapgnn.evaluation.report.page.find_browser", lambda: None)
    words = ["report", str(few_results), "--screenshot", str(few_results / "shot.png")]
    assert gapgnn(*words, monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert "needs Chromium or Chrome" in said
    assert said.count("\n") == 1
    assert (few_results / "report.html").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_one_line(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results.chmod(0o500)
    try:
        assert gapgnn("report", str(results), monkeypatch=monkeypatch) == 2
    finally:
        results.chmod(0o700)
    assert "must be writable" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_one_line_and_keeps_the_old_page(
    few_results: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_figures: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (few_results / "report.html").write_text("old")
    (few_results / "tables").write_text("a file where a folder should be")
    assert gapgnn("report", str(few_results), monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert "must be writable" in said
    assert said.count("\n") == 1
    assert (few_results / "report.html").read_text() == "old"


def test_a_kill_while_writing_leaves_the_old_page(
    few_results: Path, monkeypatch: pytest.MonkeyPatch, no_figures: None
) -> None:
    write_report(few_results)
    old = (few_results / "report.html").read_text()

    def stop(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gapgnn.evaluation.report.figures.os.fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_report(few_results)
    assert (few_results / "report.html").read_text() == old
    assert sorted(few_results.rglob(".*.part")) == []


def test_without_matplotlib_nothing_is_written_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"gapgnn\[report\]"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def tiles_of(*rows: Record) -> dict[str, dict[str, Any]]:
    return {tile["what"]: tile for tile in content.tiles(rows, "social")}


def test_rows_that_read_own_neighbours_have_their_own_tiles(make_record: Any) -> None:
    node = {"level": "node", "relation": "add-remove", "epsilon": 8.0}
    rows = [
        make_record(method="gap", runs=(0.7,) * 3),
        make_record(method="mlp", epsilon=0.0, runs=(0.6,) * 3),
        make_record(
            method="vote", epsilon=0.0, delta=0.0, runs=(0.9,) * 3, extra={"own": "record"}
        ),
        make_record(method="node-label-gap", runs=(0.65,) * 3, **node),
        make_record(method="vote", runs=(0.8,) * 3, **node, extra={"own": "record"}),
    ]
    tiles = tiles_of(*rows)
    assert tiles["Without the graph"]["how"].startswith("MLP")
    assert tiles["Best private, edge level"]["how"].startswith("GAP,")
    edge_tile = tiles["To each their own, edge level"]["how"]
    assert edge_tile == "NeighborVote, ε\u00a0=\u00a00, δ\u00a0=\u00a00, reads own neighbours"
    node_tile = tiles["Best private, node level"]["how"]
    words = [
        "NodeLabelGAP",
        "ε\u00a0=\u00a08",
        "δ\u00a0=\u00a01e-6",
        "own features",
        "notion own record",
    ]
    assert node_tile == ", ".join(words)
    assert "own record, notion own record" in tiles["To each their own, node level"]["how"]
    senses = {one["title"]: one for one in content.protections(rows)}
    joint = senses["One person's record, own neighbours read"]
    assert joint["methods"] == "NeighborVote"
    assert "joint differential privacy" in " ".join(joint["covered"])
    assert "joint" not in " ".join(senses["One person's record"]["covered"])
    assert [
        b["epsilon"] for b in senses["One undirected edge, own neighbours read"]["budgets"]
    ] == ["0"]


def test_tiles_show_the_best_private_row_and_the_budget_it_used(make_record: Any) -> None:
    tiles = tiles_of(
        make_record(epsilon=1.0, runs=(0.7,) * 6),
        make_record(epsilon=4.0, runs=(0.8,) * 6),
        make_record(method="mlp", epsilon=0.0, runs=(0.6,) * 6),
    )
    best = tiles["Best private, edge level"]
    assert (best["cell"].short, best["how"]) == ("80.0", "GAP, ε\u00a0=\u00a04, δ\u00a0=\u00a01e-6")
    assert best["note"] == ""
    assert tiles["Without the graph"]["cell"].short == "60.0"


def test_every_tile_and_caption_of_private_rows_states_delta(made_up: list[Record]) -> None:
    private = [one for one in made_up if one.epsilon]
    assert private
    for name in {one.dataset for one in made_up}:
        for tile in content.tiles(made_up, name):
            assert ("δ" in tile["how"]) == ("∞" not in tile["how"]), tile
    for plot in plots(made_up):
        assert " δ = " in plot.caption, plot.name
    for table in tables(made_up):
        assert " δ = " in table.caption, table.name


@pytest.mark.parametrize("repeats", [4, 5])
def test_intervals_are_shown_from_five_repeats_on(make_record: Any, repeats: int) -> None:
    runs = tuple(0.7 + 0.01 * number for number in range(repeats))
    rows = [make_record(experiment=one, runs=runs) for one in ("accuracy", "tradeoff")]
    page = render(rows)
    assert (' class="range"' in page) == (repeats == 5)
    assert (' class="bar"' in page) == (repeats == 5)
    assert (f"{repeats} repeats with the 95 % bootstrap interval" in page) == (repeats == 5)


def test_of_equally_good_rows_the_cheaper_one_is_shown(make_record: Any) -> None:
    rows = [make_record(epsilon=epsilon, runs=(0.8, 0.8)) for epsilon in (4.0, 1.0, 2.0)]
    assert tiles_of(*rows)["Best private, edge level"]["how"].startswith("GAP, ε\u00a0=\u00a01,")


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ((0.60, 0.62, 0.58, 0.61, 0.59, 0.60, 0.60), True),
        ((0.55,) * 7, True),
        ((0.80, 0.82, 0.79, 0.81, 0.80, 0.80, 0.81), False),
    ],
)
def test_a_tile_says_when_the_graph_bought_nothing(
    make_record: Any, runs: tuple[float, ...], says: bool
) -> None:
    plain = make_record(method="mlp", epsilon=0.0, runs=(0.6, 0.61, 0.59, 0.6, 0.6, 0.61, 0.59))
    tiles = tiles_of(make_record(epsilon=4.0, runs=runs), plain)
    note = tiles["Best private, edge level"]["note"]
    assert (note == "No better than ignoring the graph (MLP: 60.0 %).") == says
    page = render([make_record(epsilon=4.0, runs=runs), plain])
    assert ("No better than ignoring the graph" in page) == says


def test_a_best_row_that_reads_no_edge_says_so(make_record: Any) -> None:
    node = {"level": "node", "relation": "add-remove", "epsilon": 8.0}
    tiles = tiles_of(
        make_record(method="gap", runs=(0.5, 0.51), **node),
        make_record(method="mlp", runs=(0.6, 0.61), **node),
    )
    assert "ignores the graph" in tiles["Best private, node level"]["note"]


def test_a_tile_shows_what_stands_beside_accuracy(make_measured: Any) -> None:
    tile = tiles_of(make_measured(majority=0.4, auc=0.9))["Best private, edge level"]
    assert tile["beside"] == [
        ("largest class", "40.0 %"),
        ("balanced", "70.0 %"),
        ("macro F1", "69.0 %"),
        ("AUC", "90.0 %"),
    ]
    assert tile["faults"] == []


def test_a_tile_says_that_a_row_is_no_better_than_its_largest_class(make_measured: Any) -> None:
    lost = {"recall": 0.0, "precision": None, "support": 9}
    found = {"recall": 1.0, "precision": 0.91, "support": 91}
    useless = make_measured(runs=(0.91, 0.91), majority=0.91, auc=0.58)
    for one in useless.extra["metrics"]:
        one["per_class"], one["balanced_accuracy"] = {"low": found, "<b>": lost}, 0.5
    faults = tiles_of(useless)["Best private, edge level"]["faults"]
    assert faults[0].startswith("Not better than always answering 'low'")
    assert "<b>" in faults[1]
    page = render([useless])
    assert "Not better than always answering" in page
    assert "<b>" not in page


def test_the_best_row_of_an_auc_task_is_the_one_with_the_best_auc(make_measured: Any) -> None:
    shared = {"dataset": "social", "headline": "auc"}
    rows = [
        make_measured(epsilon=1.0, runs=(0.7, 0.7), auc=0.8, **shared),
        make_measured(epsilon=4.0, runs=(0.9, 0.9), auc=0.6, **shared),
    ]
    tile = tiles_of(*rows)["Best private, edge level"]
    assert (tile["cell"].short, tile["figure"]) == ("80.0", "AUC")
    assert tile["how"].startswith("GAP, ε\u00a0=\u00a01,")
    assert tile["beside"][0] == ("accuracy", "70.0 %")
    page = render([*rows, *(replace(row, experiment="tradeoff") for row in rows)])
    assert "<small> % AUC</small>" in page
    assert "test AUC (%)" in page
    assert "test accuracy (%)</text>" not in page


def test_figures_at_node_level_are_called_the_curator_s(make_measured: Any) -> None:
    node = make_measured(level="node", relation="add-remove")
    assert "At node level labels are private" in render([node])
    assert "At node level labels are private" not in render([make_measured()])


def test_the_page_shows_every_figure_beside_accuracy(rendered: str) -> None:
    for name in ("accuracy", "tradeoff-edge", "tradeoff-node", "hops", "degree"):
        assert rendered.count(f'id="caption-{name}-metrics"') == 1


def test_headings_are_in_order_and_ids_are_unique(made_up: list[Record]) -> None:
    page = render(made_up)
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert 'lang="en"' in page
    assert len(re.findall(r"<title>[^<]+</title>", page)) == 1
    assert re.search(r"<th(?![^>]*scope)[ >]", page) is None
    cells = re.findall(r"<td([^>]*)>", page)
    assert cells
    assert all("data-label=" in cell for cell in cells)


def test_reports_are_their_owner_s(few_results: Path) -> None:
    written = write_report(few_results)
    assert written.figures
    assert written.tables
    for path in (written.page, *written.figures, *written.tables):
        assert path.stat().st_mode & 0o777 == 0o600
