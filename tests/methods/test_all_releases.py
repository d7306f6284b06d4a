"""A model's card covers all of its releases: it lists each and states what they come to."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from methodgraphs import cut_in_two, small_graph, with_arcs

from gapgnn import GAP, Graph, GraphSAGE, NodeLabelGAP, load_model
from gapgnn.errors import DataError, PrivacyError
from gapgnn.methods import folder as folder_module
from gapgnn.methods.folder import _checksum
from gapgnn.privacy import parse_relation
from gapgnn.privacy.accounting import Event, Gaussian, Laplace, PoissonGaussian, account
from gapgnn.privacy.card import PrivacyCard, guarantee_sentence, texts
from gapgnn.privacy.card.composition import ChargedRelease, composed


@pytest.fixture(scope="module")
def halves() -> tuple[Graph, Graph]:
    return cut_in_two(small_graph(num_nodes=300), seed=0)


def quick(**options: object) -> GAP:
    return GAP(**{"epsilon": 4.0, "epochs": 2, **options})


def months(graph: Graph, count: int) -> list[Graph]:
    """Return graphs of the same people, each with other edges left out."""
    undirected = graph.adjacency().tocoo()
    key = np.minimum(undirected.row, undirected.col) + np.maximum(undirected.row, undirected.col)
    return [with_arcs(graph, key % 7 != number) for number in range(count)]


def events_of(card: PrivacyCard) -> list[Event]:
    return [Event.from_dict(dict(event)) for one in card.releases for event in one.events]


class TestTheCardListsEveryRelease:
    def test_with_its_charge_and_what_all_come_to(self, halves, ledger, tmp_path):
        model = quick(ledger=ledger.path).fit(halves[0])
        model.save(tmp_path / "model")
        for graph in months(halves[0], 3):
            model.predict(graph)
        card = model.card_
        charges = ledger.entries()
        assert [one.charge_id for one in card.releases] == [charge.id for charge in charges]
        for one, charge in zip(card.releases, charges, strict=True):
            assert (one.epsilon, one.delta) == (charge.epsilon, charge.delta)
            assert (list(one.events), str(one.relation)) == (list(charge.events), charge.relation)
            assert charge.charged_at.startswith(one.when)
        assert [one.purpose for one in card.releases] == ["training"] + 3 * ["prediction"]
        union = account(events_of(card), card.delta, relation=card.relation).epsilon
        assert card.composed_epsilon == pytest.approx(union, rel=1e-9)
        assert 2 * card.epsilon < card.composed_epsilon < 4 * card.epsilon
        assert f"{math.ceil(100 * union) / 100:.2f}" in str(card)

    def test_facts_of_the_training_alone_are_distinguished_from_those_of_all(self, halves, ledger):
        model = quick(ledger=ledger.path).fit(halves[0])
        alone = model.card_
        assert f"| epsilon | {texts.at_most(alone.epsilon)} |" in alone.to_markdown()
        assert "| a 50:50 guess is right in at most | " in alone.to_markdown()
        model.predict(months(halves[0], 1)[0])
        both = model.card_
        assert both.attacker.guess > alone.attacker.guess
        lines = both.to_markdown().splitlines()
        guess = texts.percent(both.attacker.guess)
        assert f"| epsilon of the training | {texts.at_most(alone.epsilon)} |" in lines
        assert f"| a 50:50 guess is right in at most (all releases together) | {guess} |" in lines

    def test_its_first_sentence_is_about_all_of_them(self, halves, ledger):
        """What an attacker sees is the model with every prediction, not the training alone."""
        model = quick(ledger=ledger.path).fit(halves[0])
        alone = model.card_
        model.predict(months(halves[0], 1)[0])
        both = model.card_
        sentences = guarantee_sentence(both).split(". ")
        assert f"by at most a factor of {texts.odds(both.composed_epsilon)}" in sentences[0]
        assert "are in the graphs of both releases" in sentences[0]
        assert texts.price(both.composed_epsilon, both.delta) in sentences[0]
        assert texts.price(alone.epsilon, alone.delta) not in sentences[0]
        assert sentences[1:] == [
            f"The training alone promises {texts.price(alone.epsilon, alone.delta)}."
        ]

    def test_no_epsilon_on_it_is_smaller_than_it_is(self, halves, ledger):
        model = quick(ledger=ledger.path, epsilon=math.pi).fit(halves[0])
        model.predict(months(halves[0], 1)[0])
        rows = re.findall(
            r"epsilon ([0-9.]+)", "".join(model.card_.to_markdown().splitlines()[24:])
        )
        exact = [*(one.epsilon for one in model.card_.releases), model.card_.composed_epsilon]
        stated = [float(one) for one in rows][-3:]
        assert all(shown >= value for shown, value in zip(stated, exact, strict=True))
        assert stated == pytest.approx(exact, rel=1e-5)

    def test_and_so_does_the_card_of_its_folder(self, halves, ledger, tmp_path):
        place = tmp_path / "model"
        model = quick(ledger=ledger.path).fit(halves[0])
        model.save(place)
        before = (place / "card.md").read_text()
        loaded = load_model(place, ledger=ledger.path)
        for graph in months(halves[0], 3):
            loaded.predict(graph)
            loaded.save_releases(place)
        stated = json.loads((place / "card.json").read_text())
        assert len(stated["releases"]) == len(list((place / "hops").glob("*.safetensors"))) == 4
        assert stated["composed_epsilon"] == loaded.card_.composed_epsilon
        prose = (place / "card.md").read_text()
        assert all(one.charge_id in prose for one in loaded.card_.releases)
        assert texts.at_most(stated["composed_epsilon"]) in prose
        assert texts.at_most(stated["composed_epsilon"]) not in before
        assert load_model(place).card_ == loaded.card_

    def test_two_that_loaded_the_same_folder_keep_both_their_releases(
        self, halves, ledger, tmp_path
    ):
        place = tmp_path / "model"
        quick(ledger=ledger.path).fit(halves[0]).save(place)
        models = [load_model(place, ledger=ledger.path) for _ in range(2)]
        for model, graph in zip(models, months(halves[0], 2), strict=True):
            model.predict(graph)
        for model in models:
            model.save_releases(place)
        card = load_model(place).card_
        assert {one.charge_id for one in card.releases} == {one.id for one in ledger.entries()}

    def test_a_release_without_a_price_is_not_listed(self, halves, ledger):
        model = quick(level="none", epsilon=1.0, ledger=ledger.path).fit(halves[0])
        model.predict(halves[1])
        assert (model.card_.releases, model.card_.composed_epsilon) == ((), None)

    def test_at_node_level_too(self, halves, ledger):
        model = NodeLabelGAP(epsilon=8.0, ledger=ledger.path).fit(halves[0])
        charged = ledger.entries()[0]
        # The options of the adaptive choice that were not taken are part of the price.
        assert list(model.card_.releases[0].events) == list(charged.events)
        assert model.card_.composed_epsilon == model.card_.epsilon == charged.epsilon

    def test_a_model_of_randomised_edges_too(self, halves, ledger):
        model = GraphSAGE(epsilon=2.0, epochs=2, ledger=ledger.path).fit(halves[0])
        model.predict(halves[1])
        assert model.card_.composed_epsilon == pytest.approx(4.0)


class TestAFolderIsReadNoFurtherThanItsCard:
    @pytest.fixture
    def place(self, halves, ledger, tmp_path) -> Path:
        place = tmp_path / "model"
        model = quick(ledger=ledger.path).fit(halves[0])
        model.save(place)
        model.predict(halves[1])
        model.save_releases(place)
        return place

    def forge(self, place: Path, change) -> None:
        import hashlib

        values = json.loads((place / "card.json").read_text())
        change(values)
        (place / "card.json").write_text(json.dumps(values))
        config = json.loads((place / "config.json").read_text())
        digest = hashlib.sha256((place / "card.json").read_bytes()).hexdigest()
        config["files"]["card.json"] = digest
        del config["checksum"]
        config["checksum"] = _checksum(config)
        (place / "config.json").write_text(json.dumps(config))

    def test_a_card_that_understates_the_composition_is_refused(self, place):
        self.forge(place, lambda card: card.update(composed_epsilon=card["epsilon"]))
        with pytest.raises(DataError, match="`composed_epsilon` must be"):
            load_model(place)

    def test_a_card_that_leaves_a_release_out_is_refused(self, place):
        def forget(card):
            card["releases"] = card["releases"][:1]
            card["composed_epsilon"] = card["epsilon"]

        self.forge(place, forget)
        with pytest.raises(DataError, match="its card does not list the release"):
            load_model(place)


class TestNoReleaseIsEverUnlisted:
    """A kill at any step of adding a release: all that is in the folder is on its card."""

    def written(self, monkeypatch, stop_before: int) -> list[str]:
        names: list[str] = []
        write = folder_module._write

        def counted(path, content):
            if len(names) == stop_before:
                raise KeyboardInterrupt
            names.append(path.name)
            write(path, content)

        monkeypatch.setattr(folder_module, "_write", counted)
        return names

    @pytest.mark.parametrize("step", range(7))
    def test_a_kill_between_two_files(self, step, halves, ledger, tmp_path, monkeypatch):
        place = tmp_path / "model"
        model = quick(ledger=ledger.path).fit(halves[0])
        model.save(place)
        model.predict(halves[1])
        with monkeypatch.context() as patch:
            names = self.written(patch, stop_before=step)
            if step < 6:
                with pytest.raises(KeyboardInterrupt):
                    model.save_releases(place)
            else:
                model.save_releases(place)
                assert len(names) == 6
        on_disk = {path.stem for path in (place / "hops").glob("*.safetensors")}
        for path in (place / "card.json", place / "card.md"):
            assert all(release in path.read_text() for release in on_disk)
        loaded = load_model(place, ledger=ledger.path)
        listed = {one.charge_id for one in loaded.card_.releases}
        assert set(loaded.releases_.hops) <= listed
        spent = len(ledger.entries())
        loaded.predict(halves[1])
        if step >= 5:  # everything was there: asked again, the same answer
            assert len(ledger.entries()) == spent
            np.testing.assert_array_equal(
                loaded.predict_proba(halves[1]), model.predict_proba(halves[1])
            )
        loaded.save_releases(place)
        again = load_model(place, ledger=ledger.path)
        assert set(again.releases_.hops) <= {one.charge_id for one in again.card_.releases}

    def test_an_interrupted_release_is_listed_before_it_is_drawn(self, halves, ledger, monkeypatch):
        model = quick(ledger=ledger.path).fit(halves[0])

        def stop(*args, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(GAP, "read", stop)
        with pytest.raises(KeyboardInterrupt):
            model.predict(halves[1])
        assert [one.charge_id for one in model.card_.releases] == [
            one.id for one in ledger.entries()
        ]


def released(*events: Event, relation: str = "add-remove", purpose: str = "prediction"):
    plain = tuple(event.to_dict() for event in events)
    return ChargedRelease(purpose, "", "", parse_relation(relation), 1.0, 1e-6, plain)


class TestWhatReleasesComeTo:
    def test_gaussian_noise_is_composed_exactly(self):
        both = [released(Gaussian(3.0, count=2)), released(Gaussian(5.0))]
        wanted = account([Gaussian(3.0, count=2), Gaussian(5.0)], 1e-6, relation="add-remove")
        assert composed(both, 1e-6)[0] == pytest.approx(wanted.epsilon, rel=1e-9)

    def test_a_person_may_be_of_another_group_in_the_next_graph(self):
        groups = Gaussian(4.0, group="training"), Gaussian(2.0, group="others")
        steps = PoissonGaussian(1.0, sampling_rate=0.05, steps=100, group="training")
        both = [released(groups[0], steps), released(*groups)]
        wanted = account([Gaussian(4.0), steps, Gaussian(2.0)], 1e-6, relation="add-remove")
        assert composed(both, 1e-6)[0] == pytest.approx(wanted.epsilon, rel=1e-3)

    def test_of_an_adaptive_choice_the_dearest_option_counts(self):
        first = Laplace(10.0)
        options = [Gaussian(4.0, option=1), Gaussian(2.0, option=2)]
        both = [released(first, *options), released(Gaussian(3.0))]
        events = [first, Gaussian(2.0), Gaussian(3.0)]
        wanted = account(events, 1e-6, relation="add-remove").epsilon
        assert wanted * 0.999 <= composed(both, 1e-6)[0] <= wanted + 0.1

    def test_arcs_and_edges_are_composed_for_edges(self):
        both = [
            released(Gaussian(3.0), relation="undirected"),
            released(Gaussian(4.0), relation="directed"),
        ]
        # Symmetrised, the two arcs of an edge move a hop by twice what one arc does.
        wanted = account([Gaussian(3.0), Gaussian(2.0)], 1e-6, relation="undirected").epsilon
        assert composed(both, 1e-6)[0] == pytest.approx(wanted, rel=1e-9)
        # Whichever was released first.
        assert composed(both[::-1], 1e-6) == composed(both, 1e-6)

    def test_a_pure_release_of_arcs_counts_twice_for_edges(self):
        hops = released(Gaussian(3.0), relation="undirected")
        arcs = released(Laplace(2.0), relation="directed")
        attacker = composed([hops], 1e-6)[1]
        alone = account([Gaussian(3.0)], 1e-6, relation="undirected").epsilon
        both, reached = composed([hops, arcs], 1e-6)
        assert both == pytest.approx(alone + 2 * 0.5, rel=1e-6)
        # Of the two together no trade-off curve is known: epsilon and delta bound an attacker.
        assert reached.mu is None
        assert reached.guess == pytest.approx((1 - 1e-6) / (1 + math.exp(-both)) + 1e-6, abs=1e-5)
        assert reached.guess > attacker.guess

    def test_what_cannot_be_composed_is_refused_before_it_is_charged(self, halves, ledger):
        model = quick(level="node", epsilon=8.0, ledger=ledger.path).fit(halves[0])
        model.set_params(relation="replace")
        with pytest.raises(PrivacyError, match="must be of one relation"):
            model.predict(halves[1])
        assert len(ledger.entries()) == 1
