"""The report in a real browser, from a file and with the network off.

Nothing but the browser is needed (tests/browsing.py).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from browsing import NEEDED, Browser, Tab, serious_problems
from gapgnn.errors import InputError
from gapgnn.evaluation.report.comparison import write_comparison
from gapgnn.evaluation.report.model import curator_figures, write_model_page
from gapgnn.evaluation.report.page import render, screenshot

pytestmark = [pytest.mark.gate, *NEEDED]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture
def page(rendered: str, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(rendered)
    return path


@pytest.fixture
def model_page(tmp_path: Path) -> Path:
    from gapgnn import LabelGAP, Ledger
    from gapgnn.graph.datasets.synthetic import social_graph
    from gapgnn.methods.folder import keep_audit

    ledger = Ledger.init(tmp_path / "own.sqlite").path
    graph = social_graph(num_nodes=300, mean_degree=10)
    folder = tmp_path / "model"
    LabelGAP(epochs=1, ledger=ledger, reason="for a test").fit(graph).save(folder)
    found = {"mechanism": "aggregation", "epsilon_claimed": 1.0, "epsilon_lower_bound": 0.9}
    rows = [{**found, "trials": 100, "holds": True}]
    keep_audit(folder, audit="mechanisms", command="gapgnn audit --model model", results=rows)
    return write_model_page(folder, ledger=ledger)


@pytest.fixture
def comparison_page(tmp_path: Path) -> Path:
    from gapgnn import GAP, LabelGAP, Ledger, NodeLabelGAP
    from gapgnn.graph.datasets.synthetic import social_graph

    ledger = Ledger.init(tmp_path / "own.sqlite").path
    graph = social_graph(num_nodes=300, mean_degree=10)
    models = [LabelGAP(epochs=1, ledger=ledger), NodeLabelGAP(epochs=1, ledger=ledger)]
    models.append(GAP(level="none", epochs=1))
    folders = [tmp_path / f"model {number}" for number in range(3)]
    for model, folder in zip(models, folders, strict=True):
        model.fit(graph).save(folder)
    return write_comparison(folders, figures=[curator_figures(one, graph) for one in models])


def test_the_page_opens_offline_without_errors_and_asks_for_nothing(
    browser: Browser, page: Path
) -> None:
    tab = Tab(browser, page)
    assert tab.value("document.querySelectorAll('.chart').length") >= 10
    assert tab.errors == []
    asked = {event["request"]["url"] for event in tab.said("Network.requestWillBeSent")}
    assert asked == {page.resolve().as_uri()}


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_sideways(browser: Browser, page: Path, width: int) -> None:
    tab = Tab(browser, page, width=width)
    tab.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert tab.value("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.chart svg, .tiles, .legend, pre, .card')]"
    assert (
        tab.value(f"{wide}.filter(one => one.getBoundingClientRect().right > {width}).length") == 0
    )
    assert tab.errors == []


WORDS_CUT = """
[...document.querySelectorAll('th, td, dd, dt, li, p, pre, h1, h2, h3')].filter(one => {
  const box = one.getBoundingClientRect();
  const isShown = box.width > 1 && box.height > 1 && !one.closest('thead, .hidden, .tip');
  const isCut = one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1;
  return isShown && (box.right > innerWidth + 1 || isCut);
}).map(one => one.outerHTML.slice(0, 120))
"""
# Words that are squeezed into a few pixels make a tall row that is blank beside them.
CELLS_BLANK = """
[...document.querySelectorAll('tbody th, tbody td')].filter(one => {
  const words = one.innerText.trim() + (one.dataset.label || '');
  const box = one.getBoundingClientRect();
  return box.height > 0 && (words === '' || box.height > 28 * (2 + Math.ceil(words.length / 14)));
}).map(one => one.outerHTML.slice(0, 120))
"""


@pytest.mark.parametrize("which", ["page", "model_page", "comparison_page"])
def test_on_a_phone_no_cell_is_cut_and_no_row_is_blank(
    browser: Browser, which: str, request: pytest.FixtureRequest
) -> None:
    tab = Tab(browser, request.getfixturevalue(which), width=390)
    tab.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert tab.value("document.documentElement.scrollWidth") <= 390
    assert tab.value(WORDS_CUT) == []
    assert tab.value(CELLS_BLANK) == []
    assert tab.value("document.querySelectorAll('tbody td:not([data-label])').length") == 0


def test_the_page_of_a_model_opens_offline_without_errors(
    browser: Browser, model_page: Path
) -> None:
    for width in (1280, 390):
        tab = Tab(browser, model_page, width=width)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.errors == []
        asked = {event["request"]["url"] for event in tab.said("Network.requestWillBeSent")}
        assert asked == {model_page.resolve().as_uri()}


def test_on_a_phone_a_star_and_an_interval_stand_beside_their_figure(
    browser: Browser, page: Path
) -> None:
    tab = Tab(browser, page, width=390)
    distant = """
    [...document.querySelectorAll('#accuracy td .mean')].filter(mean => {
      const box = mean.getBoundingClientRect(), star = mean.parentNode.querySelector('sup');
      const range = mean.parentNode.querySelector('.range');
      const isFar = range && range.getBoundingClientRect().top > box.bottom + 4;
      return (star && star.getBoundingClientRect().top > box.bottom) || isFar;
    }).map(one => one.parentNode.outerHTML)
    """
    assert tab.value("document.querySelectorAll('#accuracy td sup').length") > 0
    assert tab.value(distant) == []


def test_on_a_desk_no_table_of_budgets_is_cut(browser: Browser, page: Path) -> None:
    tab = Tab(browser, page, width=1280)
    tab.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    cut = """
    [...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)
      .map(one => one.getAttribute('aria-labelledby'))
    """
    assert tab.value(cut) == []


# A page of results is long, and axe-core looks at every word of it.
LOOKED_AT = [
    pytest.param(
        which,
        width,
        theme,
        marks=()
        if (which, width, theme)
        in (("model_page", 1280, "light"), ("comparison_page", 390, "dark"))
        else pytest.mark.slow,
    )
    for which in ("page", "model_page", "comparison_page")
    for width in (1280, 390)
    for theme in ("light", "dark")
]


@pytest.mark.parametrize(("which", "width", "theme"), LOOKED_AT)
def test_axe_finds_no_serious_problem(
    browser: Browser, which: str, width: int, theme: str, request: pytest.FixtureRequest
) -> None:
    tab = Tab(browser, request.getfixturevalue(which), width=width)
    tab.use_theme(theme)
    tab.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert serious_problems(tab) == []


GROUND = "getComputedStyle(document.body).backgroundColor"


def test_the_theme_can_be_changed_with_the_keyboard_alone(browser: Browser, page: Path) -> None:
    tab = Tab(browser, page)
    before = tab.value(GROUND)
    for _ in range(2):
        tab.press("Tab")
    assert tab.value("document.activeElement.id") == "theme"
    assert tab.value("document.activeElement.textContent") == "Dark theme"
    tab.press("Enter")
    assert tab.value(GROUND) != before
    assert tab.value("document.activeElement.textContent") == "Light theme"
    tab.press("Enter")
    assert tab.value(GROUND) == before


def test_the_system_s_dark_theme_is_followed_and_can_be_overruled(
    browser: Browser, page: Path
) -> None:
    tab = Tab(browser, page)
    light = tab.value(GROUND)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    tab.ask("Emulation.setEmulatedMedia", features=dark)
    assert tab.value(GROUND) != light
    tab.wait_for("document.getElementById('theme').textContent === 'Light theme'")
    tab.value("document.getElementById('theme').click()")
    assert tab.value(GROUND) == light


def test_the_arrow_keys_walk_through_the_values_and_show_them(browser: Browser, page: Path) -> None:
    tab = Tab(browser, page)
    tip = "document.querySelector('.chart .tip')"
    assert tab.value(f"{tip}.hidden")
    tab.value("document.querySelector('.chart .point').focus()")
    assert not tab.value(f"{tip}.hidden")
    assert tab.value(f"{tip}.textContent").startswith("GAPε = 0.1: ")
    tab.press("ArrowRight")
    assert tab.value(f"{tip}.textContent").startswith("GAPε = 0.2: ")
    tab.press("ArrowUp")
    assert tab.value(f"{tip}.textContent").startswith("LabelGAPε = 0.2: ")
    assert tab.value("document.activeElement.getAttribute('tabindex')") == "0"
    stops = "document.querySelectorAll('.chart')[0].querySelectorAll('.point[tabindex=\"0\"]')"
    assert tab.value(f"{stops}.length") == 1
    tab.press("Escape")
    assert tab.value(f"{tip}.hidden")
    assert tab.errors == []


def test_pointing_at_a_value_shows_it(browser: Browser, page: Path) -> None:
    tab = Tab(browser, page)
    tab.value("document.documentElement.style.scrollBehavior = 'auto'")
    tab.value("document.querySelector('.chart .point').scrollIntoView({block: 'center'})")
    box = tab.value(
        "(({x, y, width, height}) => [x + width / 2, y + height / 2])"
        "(document.querySelector('.chart .point .marker').getBoundingClientRect())"
    )
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    tip = "document.querySelector('.chart .tip')"
    assert tab.value(f"{tip}.textContent").startswith("GAPε = 0.1: ")
    assert tab.value(f"{tip}.getBoundingClientRect().left") >= 0
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert tab.value(f"{tip}.hidden")


def test_it_prints_light_with_everything_unfolded(browser: Browser, page: Path) -> None:
    tab = Tab(browser, page)
    tab.value("document.documentElement.dataset.theme = 'dark'")
    tab.value(
        "addEventListener('beforeprint', () => {"
        "window.folded = document.querySelectorAll('details:not([open])').length })"
    )
    pdf = base64.b64decode(tab.ask("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF-")
    assert pdf.count(b"/Type /Page\n") >= 3
    assert tab.value("window.folded") == 0
    assert tab.value("document.querySelectorAll('details:not([open])').length") > 0
    tab.ask("Emulation.setEmulatedMedia", media="print")
    assert tab.value(GROUND) == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.errors == []


def test_a_name_with_a_script_in_it_does_not_run(
    browser: Browser, make_record: Any, tmp_path: Path
) -> None:
    hostile = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
    rows = [
        make_record(experiment=experiment, dataset=hostile, command=hostile, epsilon=epsilon)
        for experiment in ("accuracy", "tradeoff")
        for epsilon in (1.0, 2.0)
    ]
    path = tmp_path / "report.html"
    path.write_text(render(rows))
    tab = Tab(browser, path)
    assert tab.value("window.hit") is None
    assert tab.value(f"document.body.textContent.includes({json.dumps(hostile)})")
    tab.value("document.querySelector('.chart .point').focus()")
    assert tab.value("window.hit") is None
    assert tab.errors == []


def test_the_policy_stops_what_slips_through_the_escaping(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    slipped = tmp_path / "slipped.html"
    injected = "<script>window.hit = 1</script><img src='http://127.0.0.1:9/x.png'><main "
    slipped.write_text(page.read_text().replace("<main ", injected, 1))
    tab = Tab(browser, slipped)
    assert tab.value("window.hit") is None
    messages = " ".join(entry["text"] for entry in tab.errors)
    assert "Content Security Policy" in messages
    loaded = [event["response"]["url"] for event in tab.said("Network.responseReceived")]
    assert not any(url.startswith("http") for url in loaded)


@pytest.mark.parametrize("section", ["", "tradeoff"])
def test_the_screenshot_has_the_asked_size_and_is_not_blank(
    page: Path, tmp_path: Path, section: str
) -> None:
    target = tmp_path / "shot.png"
    screenshot(page, target, section=section, width=800, height=600)
    picture = imread(target)
    assert picture.shape[:2] == (600, 800)
    lower = picture[300:, :, :3].reshape(-1, 3)
    assert len({tuple(row) for row in lower.tolist()}) > 20


def test_a_section_that_the_page_does_not_have_is_named(make_record: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render([make_record()]))
    with pytest.raises(InputError, match="'tradeoff'"):
        screenshot(path, tmp_path / "shot.png", section="tradeoff")
