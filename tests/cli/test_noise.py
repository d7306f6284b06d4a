"""`gapgnn noise` answers with the values of the privacy page, section 3."""

import json
import math

import pytest
from scipy.stats import norm

from gapgnn.cli.main import main
from gapgnn.errors import GapgnnError
from gapgnn.privacy import dpsgd
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.card.texts import percent

SAGE_OPTIONS = ["--method", "sage", "--steps", "60", "--sampling-rate", "0.02"]
STEPS = ["--hops", "2", "--steps", "1546", "--sampling-rate", "0.0129", "--delta", "1e-5"]


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def ask(capsys, *options):
    assert main(["noise", *options, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    answer = json.loads(printed.out)
    assert set(answer) == {
        "noise_multiplier",
        "sigma",
        "sensitivity",
        "epsilon",
        "delta",
        "odds",
        "accountant",
        "mu",
        "guess",
        "tpr_at_fpr_1_percent",
        "tpr_at_fpr_0_1_percent",
    }
    return answer


def table(capsys, *options):
    assert main(["noise", *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "multiplier"),
    [
        (["--level", "edge", "--epsilon", "1", "--delta", "1e-7", "--hops", "2"], 6.617),
        (["--level", "node", "--epsilon", "8", *STEPS], 0.950),
        (["--level", "node", "--epsilon", "1", *STEPS], 5.61),
        (["--level", "node", "--relation", "replace", "--epsilon", "16.88", *STEPS], 1.0),
    ],
)
def test_the_noise_that_a_budget_needs(capsys, options, multiplier):
    answer = ask(capsys, *options)
    assert answer["noise_multiplier"] == pytest.approx(multiplier, rel=0.005)
    target = float(options[options.index("--epsilon") + 1])
    assert 0.995 * target <= answer["epsilon"] <= target


@pytest.mark.parametrize(
    ("relation", "epsilon", "sensitivity"),
    [("auto", 7.449, 10.0), ("add-remove", 7.449, 10.0), ("replace", 16.88, 20.0)],
)
def test_what_a_noise_level_costs(capsys, relation, epsilon, sensitivity):
    answer = ask(
        capsys, "--level", "node", "--relation", relation, "--noise-multiplier", "1", *STEPS
    )
    assert answer["epsilon"] == pytest.approx(epsilon, rel=0.005)
    assert answer["accountant"] == "pld"
    assert answer["sensitivity"] == sensitivity
    assert answer["sigma"] == 10.0


def test_an_undirected_edge_needs_sqrt_two_times_the_standard_deviation(capsys):
    budget = ["--level", "edge", "--epsilon", "1", "--delta", "1e-7", "--hops", "2"]
    arc = ask(capsys, *budget, "--relation", "directed")
    edge = ask(capsys, *budget, "--relation", "undirected")
    assert edge["sigma"] / arc["sigma"] == pytest.approx(math.sqrt(2), rel=1e-12)
    assert edge["noise_multiplier"] == arc["noise_multiplier"]
    assert ask(capsys, *budget) == edge
    assert arc["sigma"] == arc["noise_multiplier"] * arc["sensitivity"]
    assert edge["accountant"] == "exact"


@pytest.mark.parametrize(
    ("relation", "sensitivity"), [("directed", 2**0.5), ("undirected", 8**0.5)]
)
def test_symmetrised_messages_need_more_noise_at_the_same_multiplier(capsys, relation, sensitivity):
    shared = ("--relation", relation, "--epsilon", "1", "--delta", "1e-7")
    along, symmetrised = ask(capsys, *shared), ask(capsys, *shared, "--symmetrised")
    assert symmetrised["noise_multiplier"] == along["noise_multiplier"]
    assert symmetrised["sensitivity"] == pytest.approx(sensitivity)
    assert symmetrised["sigma"] == pytest.approx(symmetrised["noise_multiplier"] * sensitivity)


@pytest.mark.parametrize("options", [("--level", "node"), ()])
def test_symmetrised_needs_a_relation_of_edge_level(options):
    with pytest.raises(GapgnnError, match="symmetrised is for level edge"):
        main(["noise", "--epsilon", "1", "--delta", "1e-7", "--symmetrised", *options])


def test_the_degree_bound_scales_the_noise_and_not_the_multiplier(capsys):
    budget = ["--level", "node", "--epsilon", "2", "--delta", "1e-5"]
    few = ask(capsys, *budget, "--max-degree", "25")
    many = ask(capsys, *budget, "--max-degree", "100")
    assert few["noise_multiplier"] == many["noise_multiplier"]
    assert many["sigma"] == pytest.approx(2 * few["sigma"])
    assert ask(capsys, *budget) == many


@pytest.mark.parametrize(("relation", "sensitivity"), [("add-remove", 1.0), ("replace", 2.0)])
def test_degree_normalised_messages_have_norm_1_together(capsys, relation, sensitivity):
    budget = ["--level", "node", "--relation", relation, "--epsilon", "2", "--delta", "1e-5"]
    answer = ask(capsys, *budget, "--normalised")
    assert answer["sensitivity"] == sensitivity
    assert answer["sigma"] * 10 == pytest.approx(ask(capsys, *budget)["sigma"])


@pytest.mark.parametrize(
    "options", [(), ("--level", "node", "--max-degree", "5"), ("--level", "node", *SAGE_OPTIONS)]
)
def test_degree_normalised_messages_are_for_gap_at_node_level_without_a_bound(options):
    with pytest.raises(GapgnnError, match="normalised is for gap at level node"):
        main(["noise", "--epsilon", "1", "--delta", "1e-5", "--normalised", *options])


def test_several_budgets_are_one_answer_each(capsys):
    """In JSON and in the table, and each is that of its own budget."""
    budgets, shared = ("1", "4"), ["--delta", "1e-7", "--hops", "2"]
    alone = [ask(capsys, "--epsilon", one, *shared) for one in budgets]
    several = ["noise", "--epsilon", *budgets, *shared]
    assert main([*several, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"answers": alone}
    shown = table(capsys, *several[1:])
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    for budget, answer in zip(budgets, alone, strict=True):
        multiplier, std, mu, guess, odds, *found = rows[budget][1:]
        assert multiplier == f"{answer['noise_multiplier']:.4g}"
        assert std == f"{answer['sigma']:.4g}"
        assert float(mu) == pytest.approx(answer["mu"], abs=0.011)
        assert float(odds.removeprefix("x")) == pytest.approx(math.exp(float(budget)), rel=0.01)
        rates = ("guess", "tpr_at_fpr_1_percent", "tpr_at_fpr_0_1_percent")
        assert [guess, *found] == [percent(answer[rate]).replace(" ", "") for rate in rates]


def test_people_see_all_accountants_and_the_other_relation(capsys):
    shown = table(capsys, "--epsilon", "1", "--delta", "1e-7", "--relation", "directed")
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert rows["exact"][1] == "6.617"
    assert float(rows["rdp"][1]) == pytest.approx(7.04, rel=0.005)
    assert float(rows["paper's"][2]) == pytest.approx(8.152, rel=0.005)
    assert "one arc" in shown
    assert "The same noise under `undirected`: epsilon 1.448" in " ".join(shown.split())


def test_people_see_what_given_noise_costs_under_both_relations(capsys):
    shown = table(capsys, "--level", "node", "--noise-multiplier", "1", *STEPS)
    assert "7.449" in shown
    assert "8.025" in shown
    assert "The same noise under `replace`: epsilon 16.88" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "0", "--delta", "1e-5"], "`--epsilon` must be positive"),
        (["--epsilon", "nan", "--delta", "1e-5"], "`--epsilon` must be a number"),
        (["--epsilon", "inf", "--delta", "1e-5"], "`--epsilon` must be finite"),
        (["--epsilon", "1", "--delta", "0"], "`--delta`"),
        (["--epsilon", "1", "--homophily", "0.5"], "--homophily has a meaning with --simulate"),
        (["--noise-multiplier", "1", "--simulate"], "--simulate needs --epsilon"),
        (["--epsilon", "1", "--mean-degree", "-1"], "`--mean-degree`"),
        (["--delta", "1e-5"], "give one of --epsilon and --noise-multiplier"),
        (["--delta", "1e-5", "--epsilon", "1", "--noise-multiplier", "1"], "give one of"),
        (["--noise-multiplier", "0", "--delta", "1e-5"], "`--noise-multiplier` must be positive"),
        (["--noise-multiplier", "1e-200", "--delta", "1e-5"], "no finite epsilon"),
        (["--epsilon", "1", "--delta", "1e-5", "--hops", "0"], "`--hops` must be at least 1"),
        (["--level", "none", "--epsilon", "1", "--delta", "1e-5"], "`--level` must be one of"),
        (["--relation", "replace", "--epsilon", "1", "--delta", "1e-5"], "`--relation` at level"),
        (["--epsilon", "1", *STEPS], "--steps has no meaning at level edge"),
        (["--epsilon", "1", "--delta", "1e-5", "--max-degree", "5"], "--max-degree has no meaning"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(GapgnnError, match=message):
        main(["noise", *options])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "10"], "belong together"),
        (["--sampling-rate", "0.1"], "belong together"),
        (["--steps", "0", "--sampling-rate", "0.1"], "`--steps` must be at least 1"),
        (["--steps", "10", "--sampling-rate", "1.1"], "`--sampling-rate` must be above 0 and at"),
        (["--max-degree", "0"], "`--max-degree` must be at least 1"),
    ],
)
def test_bad_node_input_is_named(options, message):
    with pytest.raises(GapgnnError, match=message):
        main(["noise", "--level", "node", "--epsilon", "1", "--delta", "1e-5", *options])


# `--method sage` prices the mixture and the original theorem side by side.
SIZES = ["--level", "node", "--delta", "1e-5", "--steps", "60", "--sampling-rate", "0.02"]
SAGE = ["noise", "--method", "sage", "--max-degree", "10", *SIZES]


def sage(capsys, *options):
    assert main([*SAGE, *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_tighter_price_of_sage_is_the_one_that_is_used(capsys):
    found = sage(capsys, "--epsilon", "4", "--train-nodes", "5000")
    assert found["accountant"] == "pld"
    assert 0.995 * 4 <= found["epsilon"] <= 4 < found["original_theorem_epsilon"]


def test_the_train_nodes_change_the_original_theorem_alone(capsys):
    few = sage(capsys, "--noise-multiplier", "1", "--train-nodes", "200")
    many = sage(capsys, "--noise-multiplier", "1")
    assert few["epsilon"] == many["epsilon"]
    assert few["original_theorem_epsilon"] < many["original_theorem_epsilon"]


def test_the_original_theorem_counts_the_aggregation_too(capsys):
    found = sage(capsys, "--noise-multiplier", "1")["original_theorem_epsilon"]
    sizes = {"sampling_rate": 0.02, "steps": 60, "max_degree": 10}
    known = [
        dpsgd.original_epsilon(1.0, 1e-5, **sizes, aggregation=hop) for hop in (Gaussian(1.0), None)
    ]
    assert found == pytest.approx(known[0])
    assert found > 1.01 * known[1]


def test_the_mixture_and_the_original_theorem_are_in_the_table(capsys):
    assert main([*SAGE, "--noise-multiplier", "1"]) == 0
    printed = capsys.readouterr().out
    assert "pld" in printed
    assert "original theorem" in printed
    assert "21 clips" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "sage", "--delta", "1e-5", "--epsilon", "1"], "--level node"),
        (["--method", "sage", *SIZES, "--relation", "replace", "--epsilon", "1"], "add-remove"),
        (["--method", "sage", *SIZES, "--hops", "2", "--epsilon", "1"], "`--hops` must be 1"),
        (["--method", "sage", *SIZES[:4], "--epsilon", "1"], "needs --steps"),
        (["--method", "sag", *SIZES, "--epsilon", "1"], "Did you mean 'sage'"),
        (["--train-nodes", "9", *SIZES, "--epsilon", "1"], "--method sage only"),
    ],
)
def test_what_has_no_answer_for_sage_is_refused(words, message):
    with pytest.raises(GapgnnError, match=message):
        main(["noise", *words])


@pytest.mark.parametrize(
    ("relation", "sensitivity", "beside"),
    [
        ("5-edges", math.sqrt(30), "undirected"),
        ("5-arcs", math.sqrt(5), "directed"),
        ("1-edges", math.sqrt(2), "directed"),
    ],
)
def test_several_links_of_one_person(capsys, relation, sensitivity, beside):
    options = ["--relation", relation, "--delta", "1e-7", "--hops", "4"]
    answer = ask(capsys, *options, "--epsilon", "1")
    assert answer["sensitivity"] == pytest.approx(sensitivity)
    # Noise is counted in sensitivities, so the multiplier is the one of any relation.
    one = ask(capsys, "--delta", "1e-7", "--hops", "4", "--epsilon", "1")
    assert answer["noise_multiplier"] == one["noise_multiplier"]
    assert answer["sigma"] == pytest.approx(sensitivity * one["noise_multiplier"])
    shown = table(capsys, *options, "--epsilon", "1")
    (line,) = (line for line in shown.splitlines() if "The same noise under" in line)
    assert f"`{beside}`" in line
    ratio = {"undirected": math.sqrt(2), "directed": 1.0}[beside] / sensitivity
    scaled = f"{one['noise_multiplier'] / ratio:.12g}"
    same = ask(capsys, "--delta", "1e-7", "--hops", "4", "--noise-multiplier", scaled)
    assert line.endswith(f"epsilon {same['epsilon']:.4g}.")


@pytest.mark.parametrize("word", ["k-edges", "k-arcs", "0-edges", "05-edges", "5-edge"])
def test_a_number_of_links_that_is_none_is_refused_in_one_line(word):
    with pytest.raises(GapgnnError, match="`--relation` must have a number for k: 5-") as caught:
        main(["noise", "--relation", word, "--epsilon", "1", "--delta", "1e-7"])
    assert "\n" not in str(caught.value)


def test_gaussian_noise_has_its_mu_and_the_figures_of_an_attacker_in_closed_form(capsys):
    answer = ask(capsys, "--epsilon", "1", "--delta", "1e-7", "--hops", "2")
    mu = 2**0.5 / answer["noise_multiplier"]
    assert answer["mu"] == pytest.approx(mu)
    assert answer["guess"] == pytest.approx(norm.cdf(mu / 2))
    assert answer["tpr_at_fpr_1_percent"] == pytest.approx(norm.cdf(norm.ppf(0.01) + mu))
    assert answer["tpr_at_fpr_0_1_percent"] == pytest.approx(norm.cdf(norm.ppf(0.001) + mu))


def test_at_node_level_a_guess_is_bounded_by_the_noise_and_not_by_epsilon_and_delta(capsys):
    words = ["--level", "node", "--epsilon", "8", "--delta", "1e-5"]
    words += ["--steps", "1546", "--sampling-rate", "0.0129"]
    answer = ask(capsys, *words)
    assert answer["mu"] is None
    # Epsilon and delta alone allow 99.97 %. Without the steps, the hops alone are a lower bound.
    assert norm.cdf(2**0.5 / answer["noise_multiplier"] / 2) < answer["guess"] < 0.82
    assert main(["noise", *words]) == 0
    text = capsys.readouterr().out
    assert f"a 50:50 guess is right in at most {percent(answer['guess'])}" in " ".join(text.split())
    assert "true positives at 0.1 % false positives" in text
    assert "Gaussian DP -" in " ".join(text.split())
