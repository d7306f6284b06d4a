"""Figures: the paper's five and the attack, in three formats, readable without colour."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from gapgnn.evaluation.grid.records import Record
from gapgnn.evaluation.report import figures
from gapgnn.evaluation.report.figures import Chart, draw, save_figures, ticks
from gapgnn.evaluation.report.plots import STYLES, Plot, plots

FIVE = ["tradeoff-edge", "tradeoff-node", "encoder", "hops", "degree"]


def named(records: list[Record], name: str) -> Plot:
    return next(plot for plot in plots(records) if plot.name == name)


def test_the_paper_s_five_figures_and_the_attack_are_there(made_up: list[Record]) -> None:
    assert [plot.name for plot in plots(made_up)] == [*FIVE, "membership"]


@pytest.mark.gate
def test_each_figure_is_written_in_three_formats_with_the_same_bytes_every_time(
    make_record: Any, tmp_path: Path
) -> None:
    rows = [make_record(experiment="tradeoff", epsilon=epsilon) for epsilon in (1.0, 2.0)]
    before = dict(matplotlib.rcParams)
    drawn = plots(rows)
    first = save_figures(drawn, tmp_path / "first")
    again = save_figures(drawn, tmp_path / "again")
    assert [path.suffix for path in first] == [".pdf", ".svg", ".png"]
    assert [path.read_bytes()[:5] for path in first] == [b"%PDF-", b"<?xml", b"\x89PNG\r"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert sorted(tmp_path.rglob("*.part")) == []
    assert dict(matplotlib.rcParams) == before


def test_the_legend_names_every_line_within_the_page(made_up: list[Record]) -> None:
    for name in ("tradeoff-edge", "membership"):
        plot = named(made_up, name)
        single = replace(plot, panels=plot.panels[:1])
        figure = figures._figure(single)
        legend = figure.legends[0].get_window_extent(FigureCanvasAgg(figure).get_renderer())
        assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1
        labels = {text.get_text() for text in figure.legends[0].get_texts()}
        panel = single.panels[0]
        assert labels == {line.label for line in (*panel.lines, *panel.references)}


def test_lines_differ_in_marker_and_references_in_dashes_not_in_colour_alone() -> None:
    assert len({style.marker for style in STYLES}) == len(STYLES)
    assert len({style.level_dashes for style in STYLES}) == len(STYLES)


def test_lines_of_one_panel_never_share_a_style(made_up: list[Record]) -> None:
    for plot in plots(made_up):
        for panel in plot.panels:
            styles = [line.style for line in panel.lines]
            assert len(set(styles)) == len(styles), (plot.name, panel.title)


def test_a_budget_looks_the_same_in_every_panel(made_up: list[Record]) -> None:
    seen: dict[str, int] = {}
    for panel in named(made_up, "hops").panels:
        for line in panel.lines:
            assert seen.setdefault(line.label, line.style) == line.style
    assert len(set(seen.values())) == len(seen) == 4


def test_the_edge_trade_off_shows_budgets_and_two_ends(made_up: list[Record]) -> None:
    panel = named(made_up, "tradeoff-edge").panels[0]
    assert [line.label for line in panel.lines] == ["GAP", "LabelGAP", "GraphSAGE"]
    assert [value.x for value in panel.lines[0].values] == [0.1, 0.2, 0.5, 1, 2, 4, 8]
    assert {reference.label for reference in panel.references} >= {"GAP-∞", "MLP"}


def test_relations_are_drawn_apart(make_record: Any) -> None:
    rows = [
        make_record(experiment="tradeoff", relation=relation, epsilon=epsilon)
        for relation in ("directed", "undirected")
        for epsilon in (1.0, 4.0)
    ]
    panels = named(rows, "tradeoff-edge").panels
    assert [panel.title for panel in panels] == ["social, directed", "social, undirected"]


def test_two_seeds_are_never_mixed_into_one_line(make_record: Any) -> None:
    rows = [
        make_record(experiment="tradeoff", seed=0, runs=(0.5,)),
        make_record(experiment="tradeoff", seed=1, runs=(0.7, 0.7)),
    ]
    values = named(rows, "tradeoff-edge").panels[0].lines[0].values
    assert [(value.mean, value.repeats) for value in values] == [(0.7, 2)]


def test_a_name_with_a_dollar_or_a_tag_is_drawn_as_it_is(make_record: Any) -> None:
    rows = [
        make_record(experiment="tradeoff", dataset=r"a$\frac$<b>", epsilon=epsilon)
        for epsilon in (1.0, 2.0)
    ]
    svg = draw(named(rows, "tradeoff-edge"))["svg"]
    text = "".join(ET.fromstring(svg).itertext())
    assert r"a$\frac$<b>" in text


def test_the_page_s_drawing_puts_higher_accuracy_higher(made_up: list[Record]) -> None:
    for plot in plots(made_up):
        for panel in plot.panels:
            chart = Chart(plot, panel)
            for line in panel.lines:
                values = sorted(line.values, key=lambda value: value.mean)
                heights = [chart.y(value.mean) for value in values]
                assert heights == sorted(heights, reverse=True)
                for value in values:
                    assert chart.y(value.high) <= chart.y(value.mean) <= chart.y(value.low)


def test_ticks_span_what_they_are_for() -> None:
    for low, high in ((0.0, 100.0), (49.9, 50.1), (50.0, 50.0), (81.2, 88.8)):
        steps = ticks(low, high)
        assert steps[0] <= low
        assert steps[-1] >= high
        assert 2 <= len(steps) <= 8
