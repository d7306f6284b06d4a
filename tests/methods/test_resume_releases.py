"""Every release of every method, killed and resumed: none is drawn a second time under one charge.

Releases are counted where audits observe them, so a release that is kept nowhere, or drawn beside
the checkpoint, is seen whatever makes it. The run is killed at the first draw of each release in
turn, and once more when all of it is finished and nothing saved.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from methodgraphs import with_arcs

from gapgnn import GAP, MLP, Graph, GraphSAGE, LabelGAP, Ledger, NeighborVote, NodeLabelGAP, ProGAP
from gapgnn.graph import join_edge_types
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.graph.transforms import induced, random_split
from gapgnn.privacy import observed_by
from gapgnn.privacy.checkpoint import Checkpoint

NODE = {"epochs": 1, "batch_size": 100}
# Of each run the releases it must make, by name; "classifier" and the like are trained by DP-SGD,
# and "hops" are all hops of a method that keeps them as one step: rows of people without a record
# are not written, and the second hop reads them.
RUNS = {
    "default at node level": (
        (NodeLabelGAP, {**NODE, "epsilon": 16.0}),
        ["mean out-degree", "hops", "classifier"],
    ),
    "own record": (
        (NodeLabelGAP, {**NODE, "epsilon": 8.0, "own": "record", "hop_share": 0.5}),
        ["hops", "classifier"],
    ),
    "released rows alone, twice": (
        (NodeLabelGAP, {**NODE, "epsilon": 8.0, "own": "nothing", "hop_share": 0.5, "repeats": 2}),
        ["hops", "classifier"],
    ),
    "names without a record": (
        (NodeLabelGAP, {**NODE, "epsilon": 8.0, "own": "nothing", "hop_share": 0.5}),
        ["hops", "classifier"],
    ),
    "degree-bounded": (
        (GAP, {**NODE, "level": "node", "epsilon": 8.0, "max_degree": 5}),
        ["encoder", "hop 1", "hop 2", "classifier"],
    ),
    "edge level": (
        (LabelGAP, {"epochs": 1, "hops": 2}),
        ["hop 1", "hop 2"],
    ),
    "edge types and their union": (
        (LabelGAP, {"epochs": 1, "hops": 1}),
        ["hop 1 along calls", "hop 2 along visits", "hop 3 along all edge types"],
    ),
    "encoded features": (
        (GAP, {"epochs": 1}),
        ["hop 1", "hop 2"],
    ),
    "progressive, degree-bounded": (
        (ProGAP, {**NODE, "level": "node", "epsilon": 8.0, "hops": 2, "max_degree": 5}),
        ["encoder", "hop 1", "stage1", "hop 2", "classifier"],
    ),
    "vote": (
        (NeighborVote, {"level": "node", "epsilon": 2.0, "repeats": 2}),
        ["labels of repeat 1", "labels of repeat 2"],
    ),
    "sage, arr": (
        (GraphSAGE, {"epochs": 1, "epsilon": 4.0, "perturbation": "arr"}),
        ["edges"],
    ),
    "sage, lapgraph twice": (
        (GraphSAGE, {"epochs": 1, "epsilon": 4.0, "perturbation": "lapgraph", "repeats": 2}),
        ["edges", "edges"],
    ),
    "mlp at node level": (
        (MLP, {**NODE, "level": "node", "epsilon": 8.0}),
        ["classifier"],
    ),
    "sage at node level": (
        (GraphSAGE, {**NODE, "level": "node", "epsilon": 8.0, "max_degree": 3}),
        ["classifier", "hop 1"],
    ),
}
WITH_TYPES = {"edge types and their union"}
WITH_NAMES = {"names without a record"}


class KillError(BaseException):
    """Ends a run where it stands, as SIGKILL would."""


class Observer:
    """Lists releases in order and kills the run at one of them.

    All steps of one training are one release, and so is a hop of all repeats: they are kept
    together, and nobody sees a part.

    Args:
        kill_at: the number, from 0, of the release at whose first draw the run dies.
        joins_hops: all hops are one step.
    """

    def __init__(self, kill_at: int | None = None, *, joins_hops: bool = False) -> None:
        self.kill_at = kill_at
        self._joins_hops = joins_hops
        self.drawn: list[str] = []
        self._whole = ""

    def begin(self, purpose, **options):
        pass

    def release(self, release, output):
        name, is_step, _ = release.name.partition(" step ")
        if name.startswith("hop "):
            name, _, repeat = name.partition(" of repeat ")
            is_step = repeat
            if self._joins_hops:
                name, is_step = "hops", "all of them"
        if is_step and name == self._whole:
            return output
        self._whole = name if is_step else ""
        if self.kill_at is not None and len(self.drawn) == self.kill_at:
            raise KillError
        self.drawn.append(name)
        # Long lists, whatever the noise says, so that hops follow.
        return torch.full_like(output, 1e4) if name == "mean out-degree" else output

    def batch(self, phase, batch, members):
        return batch


@pytest.fixture(scope="module")
def graph() -> Graph:
    # Few features and long lists, so that default training at node level releases hops.
    return random_split(
        generate(num_nodes=200, mean_degree=20, num_features=4, num_classes=3), seed=0
    )


@pytest.fixture(scope="module")
def typed(graph) -> Graph:
    arcs = graph.adjacency().tocoo()
    is_call = (arcs.row + arcs.col) % 3 == 0
    return join_edge_types(
        {"calls": with_arcs(graph, is_call), "visits": with_arcs(graph, ~is_call)}
    )


@pytest.fixture(scope="module")
def naming(graph) -> Graph:
    """A graph whose lists name people without a record."""
    has_record = np.ones(graph.num_nodes, dtype=np.bool_)
    has_record[::20] = False
    return induced(graph, has_record, dangle=True)


@pytest.mark.parametrize("run", RUNS)
def test_no_release_is_drawn_a_second_time_under_one_charge(run, graph, typed, naming, tmp_path):
    (method, options), wanted = RUNS[run]
    given = typed if run in WITH_TYPES else naming if run in WITH_NAMES else graph
    observer = partial(Observer, joins_hops="hops" in wanted)

    def fitted(name: str, watching: Observer, *, resume: bool = False):
        ledger = Ledger.init(tmp_path / f"{name}.sqlite")
        checkpoint = Checkpoint(tmp_path / name, ledger=ledger.path, resume=resume)
        model = method(**options, ledger=ledger.path, device="cpu")
        try:
            with observed_by(watching):
                model.fit(given, checkpoint=checkpoint)
        finally:
            checkpoint.close()
        assert len(ledger.entries()) == 1
        return model

    undisturbed = observer()
    first = fitted("undisturbed", undisturbed)
    assert sorted(undisturbed.drawn) == sorted(wanted)
    # Finished and not saved: nothing is drawn, and the releases are those of the first run.
    nothing = observer()
    again = fitted("undisturbed", nothing, resume=True)
    assert nothing.drawn == []
    pairs = zip(first.releases_.hops.values(), again.releases_.hops.values(), strict=True)
    for before, after in pairs:
        assert all(map(torch.equal, before.hops, after.hops))
    for kill in range(len(wanted)):
        killed, resumed = observer(kill_at=kill), observer()
        with pytest.raises(KillError):
            fitted(f"killed at {kill}", killed)
        fitted(f"killed at {kill}", resumed, resume=True)
        assert [*killed.drawn, *resumed.drawn] == undisturbed.drawn


def test_steps_of_an_unfinished_run_do_not_tell_whether_lists_name_people_without_a_record(
    graph, naming, tmp_path
):
    method, options = RUNS["released rows alone, twice"][0]
    found = []
    for name, given in (("all have one", graph), ("not all", naming)):
        ledger = Ledger.init(tmp_path / f"{name}.sqlite")
        checkpoint = Checkpoint(tmp_path / name, ledger=ledger.path)
        model = method(**options, ledger=ledger.path, device="cpu")
        with pytest.raises(KillError), observed_by(Observer(kill_at=1, joins_hops=True)):
            model.fit(given, checkpoint=checkpoint)
        checkpoint.close()
        found.append(sorted(path.name for path in (tmp_path / name).iterdir()))
    assert "hops.safetensors" in found[0]
    assert found[0] == found[1]
