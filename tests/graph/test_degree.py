"""Bounded out-degree: at most D entries of each adjacency list, chosen by a secret order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gapgnn.errors import InputError
from gapgnn.graph import degree as degree_module
from gapgnn.graph import people
from gapgnn.graph.degree import BoundedAdjacency, bound_out_degrees
from gapgnn.graph.graph import Graph
from gapgnn.rng import NoiseKey

KEY = NoiseKey.insecure(0)


def make(arcs, ids, dangling=None, directed=True):
    """A graph of named nodes: ``arcs`` maps a name to the names it lists; unknown names dangle."""
    place = {name: position for position, name in enumerate(ids)}
    pairs = [(place[u], place[v]) for u in ids for v in arcs.get(u, ()) if v in place]
    absent = {place[u]: [v for v in arcs.get(u, ()) if v not in place] for u in ids}
    return Graph.from_arcs(
        [u for u, _ in pairs],
        [v for _, v in pairs],
        num_nodes=len(ids),
        features=np.zeros((len(ids), 1)),
        ids=ids,
        directed=directed,
        dangling={u: names for u, names in absent.items() if names},
    )


def kept(graph, limit, key=KEY):
    """What stays of every list, by outside name."""
    lists = bound_out_degrees(graph, limit, key)
    names = graph.ids.tolist()
    return {
        names[u]: {names[v] for v in lists.indices[lists.indptr[u] : lists.indptr[u + 1]]}
        for u in range(graph.num_nodes)
    }


@st.composite
def worlds(draw):
    """Names, who lists whom, and a limit that some lists exceed."""
    count = draw(st.integers(3, 12))
    numbers = draw(st.booleans())
    names = [7 * i - 20 if numbers else f"node {i}" for i in range(count)]
    arcs = {
        u: draw(st.lists(st.sampled_from([v for v in names if v != u]), unique=True)) for u in names
    }
    return names, arcs, draw(st.integers(1, 5))


@given(worlds())
def test_no_list_is_longer_than_the_limit_and_short_lists_stay_whole(world):
    names, arcs, limit = world
    for u, targets in kept(make(arcs, names), limit).items():
        assert targets <= set(arcs[u])
        assert len(targets) == min(limit, len(arcs[u]))


@given(worlds(), st.data())
def test_nobody_elses_record_changes_what_a_list_keeps(world, data):
    names, arcs, limit = world
    before = kept(make(arcs, names), limit)
    leaver = data.draw(st.sampled_from(names))
    others = [name for name in names if name != leaver]

    after = kept(make({u: arcs[u] for u in others}, others), limit)
    assert after == {u: before[u] - {leaver} for u in others}, "a slot was refilled"

    rewritten = {**arcs, leaver: data.draw(st.lists(st.sampled_from(others), unique=True))}
    changed = kept(make(rewritten, names), limit)
    assert {u: changed[u] for u in others} == {u: before[u] for u in others}


@given(worlds(), st.randoms())
def test_the_order_of_the_nodes_does_not_matter(world, random):
    names, arcs, limit = world
    shuffled = list(names)
    random.shuffle(shuffled)
    assert kept(make(arcs, shuffled), limit) == kept(make(arcs, names), limit)


def test_a_dangling_entry_keeps_its_slot():
    names = list(range(31))
    arcs = {0: names[1:]}
    full = kept(make(arcs, names), 10)[0]
    gone = sorted(full)[:4]
    remaining = [name for name in names if name not in gone]
    assert kept(make(arcs, remaining), 10)[0] == full - set(gone)


def test_numbers_read_as_text_keep_the_same_entries():
    numbers = list(range(-3, 30))
    arcs = {u: [v for v in numbers if v != u] for u in numbers}
    as_text = make({str(u): [str(v) for v in arcs[u]] for u in numbers}, [str(u) for u in numbers])
    by_number = kept(make(arcs, numbers), 5)
    assert kept(as_text, 5) == {str(u): {str(v) for v in vs} for u, vs in by_number.items()}


@pytest.mark.parametrize("name", ["--5", "-0", "007", "٣", "", "9" * 30, "1e3", "Zoë"])
def test_any_text_is_a_name(name):
    names = [name, *(f"n{i}" for i in range(20))]
    lists = kept(make({name: names[1:]}, names), 4)
    assert len(lists[name]) == 4


def test_another_key_keeps_other_entries_and_the_same_key_the_same():
    names = list(range(200))
    graph = make({0: names[1:]}, names)
    first = kept(graph, 20, NoiseKey.insecure(1))
    assert kept(graph, 20, NoiseKey.insecure(1)) == first
    assert kept(graph, 20, NoiseKey.insecure(2)) != first
    assert kept(graph, 20, b"0123456789abcdef") == kept(graph, 20, NoiseKey(b"0123456789abcdef"))


def test_two_sources_with_the_same_list_choose_independently():
    names = list(range(402))
    graph = make({0: names[2:], 1: names[2:]}, names)
    lists = kept(graph, 100)
    overlap = len(lists[0] & lists[1])
    assert 1e-9 < stats.hypergeom.cdf(overlap, 400, 100, 100) < 1 - 1e-9


def test_every_entry_has_the_same_chance():
    names = list(range(41))
    graph = make({0: names[1:]}, names)
    counts = np.zeros(40)
    for run in range(400):
        for v in kept(graph, 10, NoiseKey.insecure(run))[0]:
            counts[v - 1] += 1
    # Counts of draws without replacement vary less than a multinomial, so this is one-sided safe.
    assert stats.chisquare(counts).pvalue > 1e-9
    assert counts.sum() == 4_000


def test_the_last_nodes_entries_are_kept():
    names = list(range(50))
    graph = make({49: names[:49], 48: [0, 1]}, names)
    lists = kept(graph, 5)
    assert len(lists[49]) == 5
    assert lists[48] == {0, 1}


def test_lists_come_back_sorted_and_whole_when_nothing_is_too_long():
    rng = np.random.default_rng(0)
    graph = Graph.from_arcs(
        rng.integers(0, 300, 9000),
        rng.integers(0, 300, 9000),
        num_nodes=300,
        features=np.zeros((300, 1)),
    )
    assert graph.out_degrees.max() > 20
    untouched = bound_out_degrees(graph, int(graph.out_degrees.max()), KEY)
    assert np.array_equal(untouched.indices, graph.indices)
    cut = bound_out_degrees(graph, 20, KEY)
    assert isinstance(cut, BoundedAdjacency)
    assert cut.indices.dtype == graph.indices.dtype
    assert cut.indptr[-1] == len(cut.indices)
    for u in range(300):
        row = cut.indices[cut.indptr[u] : cut.indptr[u + 1]]
        assert (np.diff(row) > 0).all()
        assert len(row) == min(20, len(graph.out_neighbours(u)))


@pytest.mark.parametrize("chunk", [1, 37, 1 << 20])
def test_the_size_of_a_chunk_changes_nothing(chunk, monkeypatch):
    rng = np.random.default_rng(1)
    names = list(range(0, 400, 4))
    arcs = {u: rng.choice(400, rng.integers(0, 60), replace=False).tolist() for u in names}
    arcs = {u: [v for v in targets if v != u] for u, targets in arcs.items()}
    graph = make(arcs, names)
    assert graph.num_dangling > 1000
    expected = kept(graph, 7)
    monkeypatch.setattr(degree_module, "CHUNK_ENTRIES", chunk)
    assert kept(graph, 7) == expected


def plain_words(codes, secret):
    """Words that tell who is who."""
    return codes, codes


def test_equal_hashes_are_settled_by_the_target(monkeypatch):
    monkeypatch.setattr(degree_module, "secret_words", plain_words)
    monkeypatch.setattr(degree_module, "pair_hashes", lambda owners, entrants: entrants * 0)
    names = list(range(30))
    lists = kept(make({0: names[1:], 5: names[10:]}, names), 4)
    assert lists[0] == {1, 2, 3, 4}
    assert lists[5] == {10, 11, 12, 13}


def test_low_bits_of_the_hash_decide_where_high_bits_tie(monkeypatch):
    monkeypatch.setattr(degree_module, "secret_words", plain_words)
    monkeypatch.setattr(degree_module, "pair_hashes", lambda owners, words: np.uint64(100) - words)
    names = list(range(30))
    arcs = {u: [v for v in names if v != u] for u in names}
    for u, targets in kept(make(arcs, names), 3).items():
        assert targets == set(sorted(arcs[u])[-3:])


@pytest.mark.parametrize("word", [0, 1, 77])
def test_names_that_share_a_word_never_make_a_list_longer_than_the_limit(monkeypatch, word):
    real = degree_module.encode_ids

    def coarse(ids, key):
        words = real(ids, key)
        return np.where(words > 3, np.uint64(word), words)

    monkeypatch.setattr(degree_module, "encode_ids", coarse)
    names = list(range(40))
    arcs = {u: [v for v in range(60) if v != u] for u in names}
    for limit in (1, 3, 10, 58):
        assert all(len(targets) <= limit for targets in kept(make(arcs, names), limit).values())


def test_words_are_siphash_2_4():
    words = np.frombuffer(bytes(range(16)), dtype="<u8").astype(np.uint64)
    state = people.absorb_first(words[:1], bytes(range(16)))
    published = bytes.fromhex("db9bc2577fcc2a3f")
    assert people.absorb_last(state, words[1:])[0] == int.from_bytes(published, "little")
    owner, entrant = degree_module.secret_words(words[:1], bytes(range(16)))
    for side, found in enumerate((owner, entrant)):
        state = people.absorb_first(words[:1], bytes(range(16)))
        assert found == people.absorb_last(state, np.full(1, side, dtype=np.uint64))


def test_a_pair_is_mixed_as_published():
    """The outputs of SplitMix64 for the seed 1234567: each mixes a multiple of the golden ratio."""
    seeds = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = degree_module.pair_hashes(seeds, np.zeros(3, dtype=np.uint64))
    assert found.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def kept_by_two_lists(keys: int) -> np.ndarray:
    """Two people with the same 40 entries keep 10 of them under each of many keys."""
    names = list(range(42))
    graph = make({0: names[2:], 1: names[2:]}, names)
    rows = np.zeros((2, keys, 42), dtype=np.bool_)
    for number in range(keys):
        lists = bound_out_degrees(graph, 10, NoiseKey.insecure(number))
        for owner in (0, 1):
            rows[owner, number, lists.indices[lists.indptr[owner] : lists.indptr[owner + 1]]] = True
    return rows[:, :, 2:]


@pytest.mark.gate
def test_every_entry_is_as_likely_to_stay_and_lists_are_cut_apart():
    """Six standard errors; a hash of the entry alone would keep the same ten in both lists."""
    keys = 2000
    one, other = kept_by_two_lists(keys)
    for rows in (one, other):
        shares = rows.mean(axis=0)
        assert np.abs(shares - 0.25).max() < 6 * np.sqrt(0.25 * 0.75 / keys)
    # Hypergeometric: 10 of 40 twice.
    common = (one & other).sum(axis=1)
    std = np.sqrt(10 * 0.25 * 0.75 * 30 / 39)
    assert abs(common.mean() - 2.5) < 6 * std / np.sqrt(keys)
    assert abs(common.std() - std) < 0.15
    # Nor does it matter for two entries of one list that both are in it.
    pairs = (one[:, :, None] & one[:, None, :]).mean(axis=0)[~np.eye(40, dtype=np.bool_)]
    wanted = 10 * 9 / (40 * 39)
    assert np.abs(pairs - wanted).max() < 6 * np.sqrt(wanted * (1 - wanted) / keys)


@settings(max_examples=20)
@given(st.integers(-5, 0))
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(InputError, match="`max_degree` must be at least 1"):
        bound_out_degrees(make({0: [1]}, [0, 1]), limit, KEY)


def test_a_short_key_is_refused_without_showing_it():
    with pytest.raises(InputError, match=r"`key` must have at least 16 bytes\. Got 6\.") as caught:
        bound_out_degrees(make({0: [1]}, [0, 1]), 1, b"secret")
    assert "secret" not in str(caught.value)


def test_a_key_keeps_the_same_entries_in_every_version():
    """A saved key must draw the same adjacency lists again, or a resumed run would release more."""
    hub = make({0: range(1, 41)}, list(range(41)))
    assert kept(hub, 5)[0] == {5, 18, 22, 23, 30}
    assert kept(hub, 5, b"0123456789abcdef")[0] == {5, 10, 21, 27, 30}
