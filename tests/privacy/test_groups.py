"""Parallel composition: the most expensive group is the price, never all of them together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import CalibrationError, InputError
from gapgnn.privacy import AddRemove, Replace, parse_relation
from gapgnn.privacy.accounting import (
    Event,
    Gaussian,
    Laplace,
    PoissonGaussian,
    account,
    accountants,
    calibrate,
    parallel_compositions,
    renyi_curve,
)
from gapgnn.privacy.ledger.filters import Amount, Filter, Spend

DELTA = 1e-5
both_relations = pytest.mark.parametrize("relation", ["add-remove", "replace"])
SGD = PoissonGaussian(1.5, 0.05, 40, "classifier", group="training")
HOP = Gaussian(3.0, label="aggregation", group="training")
TRAINING = (HOP, SGD)
OTHERS = (Gaussian(1.2, label="aggregation by the others", group="others"),)
multipliers = st.floats(0.3, 30)


def price(events, relation="add-remove", delta=DELTA):
    return account(events, delta, relation=relation).epsilon


def of(role, *noise):
    return tuple(Gaussian(multiplier, group=role) for multiplier in noise)


class TestAccounting:
    @pytest.mark.parametrize("dearer", [0.5, 5.0], ids=["others", "training"])
    def test_the_price_is_that_of_the_dearest_role(self, dearer):
        others = (Gaussian(dearer, group="others"),)
        alone = price(TRAINING), price(others)
        assert price((*TRAINING, *others)) == max(alone)
        # And it matters: all of it together would cost more.
        together = [Event.from_dict({**one.to_dict(), "group": ""}) for one in (*TRAINING, *others)]
        assert price(together) > 1.01 * max(alone)

    @given(
        first=st.lists(multipliers, min_size=1, max_size=3),
        second=st.lists(multipliers, min_size=1, max_size=3),
        everybody=st.lists(multipliers, max_size=2),
    )
    @settings(max_examples=60, deadline=None)
    def test_what_reads_everybody_is_paid_by_every_role(self, first, second, everybody):
        shared = of("", *everybody)
        found = price((*of("a", *first), *shared, *of("b", *second)))
        alone = [
            price((*of(role, *noise), *shared)) for role, noise in (("a", first), ("b", second))
        ]
        assert found == max(alone)
        assert found <= price(of("", *first, *second, *everybody))

    def test_the_cheapest_role_as_the_price_would_be_seen(self, monkeypatch):
        """Planted: what every person of the dearer role is promised would not hold."""
        events, promised = (*of("a", 4.0), *of("b", 1.0)), price(of("", 1.0))
        assert price(events) >= promised

        def cheapest(events, *, relation):
            cases = parallel_compositions(events, relation=relation)
            return [min(cases, key=lambda case: sum(1 / one.noise_multiplier for one in case[0]))]

        monkeypatch.setattr(accountants, "parallel_compositions", cheapest)
        assert price(events) < 0.5 * promised

    @given(noise=st.lists(multipliers, min_size=1, max_size=4))
    @settings(max_examples=30, deadline=None)
    def test_one_role_pays_as_if_it_had_no_name(self, noise):
        for relation in ("add-remove", "replace"):
            assert price(of("training", *noise), relation) == price(of("", *noise), relation)

    def test_of_three_roles_the_dearest_counts(self):
        roles = [of(name, noise) for name, noise in (("a", 4.0), ("b", 1.0), ("c", 2.0))]
        assert price([event for role in roles for event in role]) == price(roles[1])

    @pytest.mark.parametrize("accountant", ["exact", "pld", "rdp"])
    def test_every_accountant_takes_the_dearest(self, accountant):
        from gapgnn.privacy.accounting.accountants import ACCOUNTANTS

        one = ACCOUNTANTS[accountant]
        events, dearest = (*of("a", 3.0), *of("b", 1.5)), of("b", 1.5)
        assert one.epsilon(events, DELTA, relation="add-remove") == one.epsilon(
            dearest, DELTA, relation="add-remove"
        )
        assert one.delta(events, 1.0, relation="add-remove") == one.delta(
            dearest, 1.0, relation="add-remove"
        )

    def test_at_every_order_renyi_takes_the_dearest(self):
        """Which role that is may differ between orders: DP-SGD grows faster than Gaussian noise."""
        orders = np.array([1.5, 4.0, 32.0, 256.0])
        curves = [
            renyi_curve(role, relation="add-remove", orders=orders) for role in (TRAINING, OTHERS)
        ]
        together = renyi_curve((*TRAINING, *OTHERS), relation="add-remove", orders=orders)
        np.testing.assert_array_equal(together, np.maximum(*curves))


class TestReplace:
    """A record that is exchanged may change its role: it leaves one and comes to another."""

    def test_there_is_a_case_in_which_the_record_changes_its_role(self):
        cases = parallel_compositions((*TRAINING, *OTHERS), relation="replace")
        assert {relation for _, relation in cases} == {Replace(), AddRemove()}
        (separate,) = (case for case, relation in cases if relation == AddRemove())
        # Half the distance of two records for Gaussian noise; DP-SGD counts one record anyway.
        assert [event.noise_multiplier for event in separate] == [6.0, 1.5, 2.4]

    def test_it_is_one_composition(self):
        """DP-SGD counts one record, so who changes the role meets each release by a whole one."""
        steps = PoissonGaussian(1.5, 0.05, 40, group="training")
        others = Gaussian(0.8, group="others")
        (separate,) = (
            case
            for case, relation in parallel_compositions((steps, others), relation="replace")
            if relation == AddRemove()
        )
        change = price([PoissonGaussian(1.5, 0.05, 40), Gaussian(1.6)], "add-remove")
        assert price(separate, "add-remove") == change
        assert {event.group for event in separate} == {""}
        # It is dearer than its dearer half, which is what it would be taken separate to.
        assert change > 1.05 * max(price([steps]), price([Gaussian(1.6)]))

    def test_two_roles_at_a_time(self):
        """A record has one role before and one after: three are never met at once."""
        many = [Gaussian(2.0 + role, group=str(role)) for role in range(4)]
        cases = [case for case, relation in parallel_compositions(many, relation="replace")]
        assert sorted(len(case) for case in cases) == [1] * 4 + [2] * 6
        assert price(many, "replace") == price(many[:1], "replace")

    def test_batches_of_two_roles_are_refused(self):
        """One record leaves a role's batches and one joins another's: two directions at once."""
        steps = [PoissonGaussian(2.0, 0.1, 5, group=role) for role in ("a", "b")]
        assert price(steps) == price(steps[:1])
        with pytest.raises(InputError, match="no accounting under `replace`"):
            price(steps, "replace")

    @given(first=st.lists(multipliers, min_size=1, max_size=3), second=multipliers)
    @settings(max_examples=60, deadline=None)
    def test_of_gaussian_noise_it_is_never_the_dearest_of_two_roles(self, first, second):
        """(a^2 + b^2) / 4 is at most half of the larger square."""
        roles = of("a", *first), of("b", second)
        assert price((*roles[0], *roles[1]), "replace") == max(
            price(one, "replace") for one in roles
        )

    def test_without_a_rule_for_what_everybody_is_in_it_is_refused(self):
        with pytest.raises(InputError, match="must be Laplace under `replace`"):
            price((*of("a", 1.0), *of("b", 1.0), *of("", 1.0)), "replace")


class TestCalibration:
    @both_relations
    @pytest.mark.parametrize("epsilon", [1.0, 8.0])
    def test_the_budget_is_kept_and_what_another_role_spends_takes_nothing_away(
        self, relation, epsilon
    ):
        template = (PoissonGaussian(1.0, 0.05, 40, "classifier", group="training"),)
        hop = calibrate([Gaussian(1.0)], epsilon=epsilon, delta=DELTA, relation=relation)
        most = hop.noise_multiplier * (1 + 1e-9)
        fixed = (Gaussian(2 * most, group="training"),)
        options = {"epsilon": epsilon, "delta": DELTA, "relation": relation}
        alone = calibrate(template, fixed=fixed, cache=False, **options)
        # The others spend the whole budget.
        beside = (*fixed, Gaussian(most, group="others"))
        both = calibrate(template, fixed=beside, cache=False, **options)
        assert both.noise_multiplier == alone.noise_multiplier
        assert both.epsilon <= epsilon
        assert both.epsilon == pytest.approx(epsilon, rel=5e-3)
        assert both.events[1:] == beside
        assert price(both.events, relation) <= epsilon

    def test_of_gaussian_noise_alone_too(self):
        options = {"epsilon": 2.0, "delta": DELTA, "relation": "add-remove"}
        template = of("training", 1.0)
        whole = calibrate(template, **options)
        beside = of("others", whole.noise_multiplier * (1 + 1e-9))
        both = calibrate(template, fixed=beside, **options)
        assert both.noise_multiplier == whole.noise_multiplier
        within = of("training", whole.noise_multiplier * 2)
        more = calibrate(template, fixed=within, **options)
        assert more.noise_multiplier > 1.1 * whole.noise_multiplier
        assert more.epsilon <= 2.0

    @both_relations
    def test_a_role_that_is_over_the_budget_by_itself_stops_everything(self, relation):
        """No noise of the training people can make up for what the others spend."""
        for template in (
            of("training", 1.0),
            (PoissonGaussian(1.0, 0.05, 40, group="training"),),
        ):
            with pytest.raises(CalibrationError):
                calibrate(
                    template,
                    fixed=of("others", 0.1),
                    epsilon=1.0,
                    delta=DELTA,
                    relation=relation,
                    cache=False,
                )

    def test_a_remembered_answer_belongs_to_its_roles(self):
        """The same noise for everybody is another question, and a dearer one."""
        options = {"epsilon": 1.0, "delta": DELTA, "relation": "add-remove"}
        named = PoissonGaussian(1.0, 0.05, 40, group="training")
        nameless = PoissonGaussian(1.0, 0.05, 40)
        separate = calibrate([named], fixed=of("others", 6.0), **options)
        together = calibrate([nameless], fixed=of("", 6.0), **options)
        assert together.noise_multiplier > 1.05 * separate.noise_multiplier
        again = calibrate([named], fixed=of("others", 6.0), **options)
        assert again.noise_multiplier == separate.noise_multiplier
        assert {event.group for event in again.events} == {"training", "others"}


class TestNamesAreWhole:
    """Group and option are fields: no part of a name has a meaning."""

    @both_relations
    @pytest.mark.parametrize(
        "names",
        [("nurses, day", "nurses, night"), ("a, option 1", "a, option 2"), ("a,", "a, b")],
    )
    @pytest.mark.parametrize("noise", [Laplace, Gaussian])
    def test_a_comma_in_a_group_changes_no_price(self, names, noise, relation):
        with_comma = [noise(1.0, group=name) for name in names]
        without = [noise(1.0, group=name) for name in ("day", "night")]
        assert price(with_comma, relation) == price(without, relation)

    def test_two_laplace_releases_of_two_groups_add_up_under_replace(self):
        both = [Laplace(1.0, group=name) for name in ("nurses, day", "nurses, night")]
        assert price(both, "replace") == pytest.approx(2.0, rel=1e-4)

    @both_relations
    def test_nobody_changes_between_options_of_one_choice(self, relation):
        options = [Laplace(1.0, group="a", option=1), Laplace(0.5, group="a", option=2)]
        assert price(options, relation) == price(options[1:], relation)

    @both_relations
    def test_what_every_option_releases_is_added_to_each(self, relation):
        """A group pays what is in every option beside the dearest option, not instead of it."""
        always = Laplace(1.0, group="a")
        events = [always, Laplace(1.0, group="a", option=1), Laplace(0.5, group="a", option=2)]
        assert price(events, relation) == price([always, events[2]], relation)
        everybody = [Laplace(1.0), *events[1:]]
        assert price(everybody, relation) == price(events, relation)

    def test_options_of_two_groups_are_chosen_together(self):
        events = [
            Laplace(2.0, group="a", option=1),
            Laplace(1.0, group="b", option=1),
            Laplace(1.0, group="a", option=2),
            Laplace(2.0, group="b", option=2),
        ]
        # Nobody is in the dearer one of both: each option costs 1 and 1/2.
        assert price(events, "replace", delta=0.0) == 1.5

    @pytest.mark.parametrize("option", [-1, "1", True])
    def test_an_option_is_a_number(self, option):
        with pytest.raises(InputError, match="`option`"):
            Gaussian(1.0, option=option)


class TestLedger:
    def spend(self, events, relation="add-remove", count=1):
        found = account(events, DELTA, relation=relation)
        text = json.dumps([event.to_dict() for event in events])
        return Spend(parse_relation(relation), Amount.of(found.epsilon, DELTA), count, text)

    @pytest.mark.parametrize("composition", ["gaussian", "renyi", "sum"])
    @both_relations
    def test_every_rule_charges_the_dearest_role(self, composition, relation):
        budget = Filter.granted(
            composition, "node", parse_relation(relation), Amount.of(20.0, DELTA)
        )
        roles = of("training", 3.0, 4.0), of("others", 2.0)
        both = self.spend((*roles[0], *roles[1]), relation)
        dearest = max(budget.together([self.spend(role, relation)]) for role in roles)
        assert budget.together([both]) == dearest
        # Charges add up, whoever had which role in each: a role may change from fit to fit.
        again = [self.spend((*roles[0], *roles[1]), relation, count=3)]
        worst = max(roles, key=lambda role: budget.together([self.spend(role, relation)]))
        assert budget.together(again) == budget.together([self.spend(worst, relation, count=3)])

    def test_renyi_takes_the_dearest_of_dpsgd_and_a_hop(self):
        budget = Filter.granted("renyi", "node", AddRemove(), Amount.of(20.0, DELTA))
        alone = [budget.together([self.spend(role)]) for role in (TRAINING, OTHERS)]
        assert budget.together([self.spend((*TRAINING, *OTHERS))]) == max(alone)


class TestPlainValues:
    @pytest.mark.parametrize(
        "event", [HOP, SGD, *OTHERS, Laplace(2.0, group="a")], ids=lambda one: type(one).__name__
    )
    def test_a_role_is_kept(self, event):
        plain = json.loads(json.dumps(event.to_dict()))
        assert plain["group"] == event.group
        again = Event.from_dict(plain)
        assert again == event
        assert again.group == event.group
        assert event.scaled(2.0).group == event.group

    def test_events_of_everybody_are_written_as_before_and_those_written_before_are_read(self):
        """What names no group is everybody's."""
        assert Gaussian(2.0).to_dict() == {
            "event": "Gaussian",
            "noise_multiplier": 2.0,
            "count": 1,
            "label": "",
        }
        old = {
            "event": "PoissonGaussian",
            "noise_multiplier": 1.0,
            "sampling_rate": 0.1,
            "steps": 5,
        }
        assert Event.from_dict(old).group == ""
        assert "group" not in Event.from_dict(old).to_dict()

    @pytest.mark.parametrize(
        ("role", "group", "option"),
        [
            ("training", "training", 0),
            ("training, option 2", "training", 2),
            ("others, option 1", "others", 1),
            (", option 3", "", 3),
            ("", "", 0),
            ("nurses, day", "nurses, day", 0),
            ("nurses, option 1", "nurses, option 1", 0),
            ("training, option 0", "training, option 0", 0),
            ("training, option 1 ", "training, option 1 ", 0),
        ],
    )
    def test_a_role_in_an_old_ledger_is_read_as_group_and_option(self, role, group, option):
        old = {"event": "Gaussian", "noise_multiplier": 2.0, "count": 1, "label": "", "role": role}
        found = Event.from_dict(old)
        assert (found.group, found.option) == (group, option)
        assert Event.from_dict(found.to_dict()) == found
        assert "role" not in found.to_dict()

    def test_an_event_with_role_and_group_is_refused(self):
        with pytest.raises(InputError, match="no field 'role'"):
            Event.from_dict({**HOP.to_dict(), "role": "training"})

    @both_relations
    def test_an_old_charge_keeps_its_price(self, relation):
        old = [
            {"event": "Laplace", "noise_multiplier": 20.0, "count": 1, "label": "first"},
            *(
                {"event": "Gaussian", "noise_multiplier": noise, "count": 1, "role": role}
                for noise, role in (
                    (2.0, "training, option 1"),
                    (1.5, "training, option 2"),
                    (1.0, "others"),
                )
            ),
        ]
        events = [Event.from_dict(one) for one in old]
        assert price(events, relation) == price([events[0], events[3]], relation)

    def test_a_role_is_part_of_what_an_event_is(self):
        assert Gaussian(2.0, group="training") != Gaussian(2.0, group="others")
        with pytest.raises(InputError, match="`group` must be text"):
            Gaussian(2.0, group=3)
