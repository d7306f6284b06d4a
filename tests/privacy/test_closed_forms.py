import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import InputError
from gapgnn.privacy.accounting.accountants import ACCOUNTANTS, account
from gapgnn.privacy.accounting.events import Gaussian, PoissonGaussian
from gapgnn.privacy.accounting.rdp import paper_edge_epsilon, plain_rdp_epsilon

sigmas = st.floats(-2, 3).map(lambda x: 10**x)
deltas = st.floats(-12, -1).map(lambda x: 10**x)
hops = st.integers(1, 20)


@settings(deadline=None)
@given(sigma=sigmas, hops=hops, delta=deltas)
def test_the_papers_edge_formula_is_an_upper_bound_of_the_exact_curve(sigma, hops, delta):
    exact = account([Gaussian(sigma, count=hops)], delta, relation="directed").epsilon
    assert exact <= paper_edge_epsilon(sigma, hops, delta)


@settings(deadline=None)
@given(sigma=st.floats(0.5, 50), hops=hops, delta=st.floats(-9, -3).map(lambda x: 10**x))
def test_optimising_alpha_numerically_finds_the_closed_form(sigma, hops, delta):
    numeric = plain_rdp_epsilon([Gaussian(sigma, count=hops)], delta, relation="directed")
    closed = paper_edge_epsilon(sigma, hops, delta)
    assert closed * (1 - 1e-9) <= numeric <= closed * 1.005


@pytest.mark.parametrize("multiplier", [0.7, 1.0, 5.0])
def test_the_papers_node_formula_is_an_upper_bound_of_rdp_and_pld(multiplier):
    delta = 1e-5
    steps = PoissonGaussian(multiplier, sampling_rate=0.0129, steps=1546)
    events = [steps, Gaussian(multiplier, count=2)]
    # Noise of standard deviation 10 multipliers at a sensitivity of sqrt(100).
    paper = plain_rdp_epsilon(events, delta, relation="add-remove")
    rdp = ACCOUNTANTS["rdp"].epsilon(events, delta, relation="add-remove")
    pld = account(events, delta, relation="add-remove").epsilon
    assert pld < rdp < paper < 1.6 * pld


@pytest.mark.parametrize(
    ("sigma", "hops", "delta"), [(0.0, 1, 0.1), (1.0, 0, 0.1), (1.0, 1, 0.0), (1.0, 1, 1.0)]
)
def test_the_formulas_refuse_what_has_no_meaning(sigma, hops, delta):
    with pytest.raises(InputError):
        paper_edge_epsilon(sigma, hops, delta)
