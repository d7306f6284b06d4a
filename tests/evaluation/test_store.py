"""A results store loses nothing that was finished, whatever moment a process dies at."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.errors import DataError, GapgnnError, UnavailableError
from gapgnn.evaluation.grid import records
from gapgnn.evaluation.grid.records import CANDIDATE, FILE, Record, Store, load, newest


def result(key: str = "a", **changes: Any) -> Record:
    values: dict[str, Any] = {
        "key": key,
        "experiment": "accuracy",
        "dataset": "social",
        "fingerprint": "f",
        "method": "gap",
        "level": "edge",
        "relation": "undirected",
        "epsilon": 4.0,
        "delta": 1e-6,
        "parameters": {},
        "metric": "test_accuracy",
        "runs": (0.5, 0.75),
        "seconds": 1.5,
        "noise_multiplier": 1.8,
        "events": ({"event": "Gaussian", "count": 2},),
        "guarantee": "Grüße: one sentence\nwith a line break.",
        "command": "gapgnn train gap",
        "version": "0.1.0+abc",
        "created": "2026-11-15T10:00:00+00:00",
        "machine": "2 cores",
    }
    return Record(**{**values, **changes})


def measured(accuracy: float, auc: float | None = 0.5) -> dict[str, Any]:
    names = ("majority", "balanced_accuracy", "macro_f1")
    others = {**dict.fromkeys(names, 0.5), "calibration_error": 0.1, "per_class": {}}
    return {"accuracy": accuracy, "auc": auc, "ranking": None, **others}


class TestRecords:
    def test_a_record_is_one_line_and_comes_back_equal(self) -> None:
        record = result(epsilon=None, delta=None, extra={"noise": "fast"})
        line = record.to_json()
        assert "\n" not in line
        assert json.loads(line)["format"] == 2
        assert Record.from_json(line) == record

    def test_every_figure_comes_back_from_the_store(self) -> None:
        runs = [measured(0.5, auc=0.6), measured(0.75, auc=0.7)]
        record = result(extra={"metrics": runs, "headline": "auc"})
        again = Record.from_json(record.to_json())
        assert (again.headline, again.figures("auc")) == ("auc", (0.6, 0.7))
        assert again.figures("accuracy") == again.runs == (0.5, 0.75)

    def test_a_figure_that_one_repeat_lacks_is_not_made_of_the_others(self) -> None:
        runs = [measured(0.5, auc=None), measured(0.75, auc=0.7)]
        record = result(extra={"metrics": runs, "headline": "auc"})
        assert (record.headline, record.figures("auc")) == ("accuracy", ())

    @pytest.mark.parametrize("metrics", [[measured(0.5)], [{}, {}], "metrics", 3])
    def test_figures_that_do_not_fit_the_repeats_are_refused(self, metrics: Any) -> None:
        with pytest.raises(DataError, match=r"`metrics` must hold .* for each repeat"):
            result(extra={"metrics": metrics})

    def test_an_attack_has_no_figures_of_usefulness(self) -> None:
        assert result(metric="auc").figures("accuracy") == ()

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"format": 3}, "Got 3; use a newer gapgnn"),
            ({"format": 1}, "Got 1, whose methods had other names; measure again into another"),
            ({"format": None}, "must have format 2. Got None."),
            ({"colour": "red"}, "missing or unknown keys: colour"),
            ({"runs": []}, "`runs` must be at least one finite number"),
            ({"runs": ["x"]}, "`runs` must be at least one finite number"),
            ({"experiment": "acuracy"}, "Did you mean 'accuracy'?"),
        ],
    )
    def test_what_cannot_be_understood_is_refused(self, change: dict, complaint: str) -> None:
        values = {**json.loads(result().to_json()), **change}
        with pytest.raises(GapgnnError) as error:
            Record.from_json(json.dumps(values))
        assert complaint in str(error.value)

    def test_of_two_code_versions_the_newer_counts_and_of_two_runs_the_longer(self) -> None:
        old = result("a", runs=(0.1,) * 9, version="1", created="2026-01-01T00:00:00+00:00")
        quick = result("b", runs=(0.2,) * 2, version="2", created="2026-01-03T00:00:00+00:00")
        full = result("c", runs=(0.3,) * 5, version="2", created="2026-01-02T00:00:00+00:00")
        other = result("d", epsilon=1.0)
        assert newest([old, quick, full, other]) == [full, other]

    def test_attacks_on_target_and_shadow_are_two_rows(self) -> None:
        both = [result(on, extra={"attack": {"on": on}}) for on in ("target", "shadow")]
        assert newest(both) == both

    def test_a_selection_replaces_no_fixed_row_and_itself_when_it_chooses_anew(self) -> None:
        fixed = result("a")
        first = result("b", select="validation", parameters={"hops": 1}, version="1")
        later = replace(first, key="c", parameters={"hops": 3}, created="2027", version="2")
        assert newest([fixed, first, later]) == [fixed, later]

    def test_candidates_of_a_selection_are_not_results(self, tmp_path: Path) -> None:
        Store(tmp_path).append(result("a", experiment=CANDIDATE))
        Store(tmp_path).append(result("b"))
        assert [record.key for record in load(tmp_path)] == ["b"]


class TestAppend:
    def test_records_come_back_in_order(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "new" / "folder")
        records = [result(str(number)) for number in range(3)]
        assert all(store.append(record) for record in records)
        assert store.records() == records

    def test_the_same_result_is_kept_once_and_per_experiment(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        assert store.append(result("a"))
        assert not store.append(result("a", seconds=9.0))
        assert store.append(result("a", experiment="tradeoff"))
        assert [record.seconds for record in store.records()] == [1.5, 1.5]

    def test_only_the_curator_can_read_it(self, tmp_path: Path) -> None:
        Store(tmp_path).append(result())
        assert (tmp_path / FILE).stat().st_mode & 0o077 == 0

    @settings(max_examples=60)
    @given(cut=st.integers(0, 10**6), count=st.integers(1, 3))
    def test_a_file_cut_at_any_byte_keeps_every_finished_line(
        self, cut: int, count: int, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("cut")
        store = Store(folder)
        records = [result(str(number)) for number in range(count)]
        for record in records:
            store.append(record)
        data = store.path.read_bytes()
        kept = data[: cut % (len(data) + 1)]
        store.path.write_bytes(kept)
        finished = kept[: kept.rfind(b"\n") + 1]
        lacks_only_its_end = kept != finished and data.startswith(kept + b"\n")
        whole = kept.count(b"\n") + lacks_only_its_end
        assert store.records() == records[:whole]
        is_torn = kept != finished and not lacks_only_its_end
        assert store.half_written() == (len(kept) - len(finished) if is_torn else 0)
        store.append(result("next"))
        assert store.path.read_bytes().startswith(finished)
        assert store.records() == [*records[:whole], result("next")]
        assert store.half_written() == 0

    def test_a_newer_format_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        line = result().to_json().replace('"format": 2', '"format": 7') + "\n"
        (tmp_path / FILE).write_text(line)
        for act in (Store(tmp_path).records, lambda: Store(tmp_path).append(result("b"))):
            with pytest.raises(DataError, match=r"line 1: .* Got 7; use a newer gapgnn"):
                act()
        assert (tmp_path / FILE).read_text() == line

    def test_a_newer_record_that_lacks_only_its_line_end_is_not_cut_off(
        self, tmp_path: Path
    ) -> None:
        text = result().to_json() + '\n{"format": 7}'
        (tmp_path / FILE).write_text(text)
        with pytest.raises(DataError, match="Got 7; use a newer gapgnn"):
            Store(tmp_path).append(result("b"))
        assert (tmp_path / FILE).read_text() == text

    def test_a_damaged_line_in_the_middle_is_named_and_nothing_is_written(
        self, tmp_path: Path
    ) -> None:
        lines = [result("a").to_json(), "garbage", result("b").to_json()]
        (tmp_path / FILE).write_text("\n".join(lines) + "\n")
        with pytest.raises(DataError, match="line 2: A result must be one line of JSON"):
            Store(tmp_path).append(result("c"))
        assert (tmp_path / FILE).read_text() == "\n".join(lines) + "\n"

    def test_a_full_disk_leaves_the_file_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = Store(tmp_path)
        store.append(result("a"))
        before = store.path.read_bytes()
        write = os.write
        monkeypatch.setattr(records.os, "write", lambda fd, data: write(fd, data[:40]))
        with pytest.raises(UnavailableError, match="disk is full; earlier results are safe"):
            store.append(result("b"))
        assert store.path.read_bytes() == before

    def test_a_folder_that_cannot_be_made_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UnavailableError, match="must be a folder that can be written"):
            Store(tmp_path / "file" / "results").append(result())

    def test_reading_creates_nothing(self, tmp_path: Path) -> None:
        assert Store(tmp_path / "results").records() == []
        assert list(tmp_path.iterdir()) == []

    def test_a_line_that_somebody_is_still_writing_is_waited_for(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        store.append(result("a"))
        line = result("b").to_json().encode() + b"\n"
        with store.path.open("ab", buffering=0) as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            other.write(line[:50])
            appended = threading.Thread(target=store.append, args=(result("c"),))
            appended.start()
            appended.join(timeout=0.3)
            # Without the lock, the beginning of the other's line would be gone by now.
            assert appended.is_alive()
            other.write(line[50:])
        appended.join(timeout=300)
        assert store.records() == [result("a"), result("b"), result("c")]
