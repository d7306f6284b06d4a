"""Checkpoints: a run that was interrupted goes on without paying or drawing again.

A run is charged once, and its charge covers each of its releases once. Every release, a noisy hop
or a network trained by DP-SGD, is written here as soon as it exists and before anything computed
from it is shown. After a kill:

- what is here is used as it is and never drawn again;
- what is not here never left the dead process, so nobody has seen a draw of it. It is drawn with a
  fresh key, for the first time that counts, and the charge of the first start pays for it.

A charge knows who draws on it: the ledger keeps the token of the run's state, a hash of it and of
random bytes in it. Every start, resume and finished step swaps it for the token of the next state
(:meth:`gapgnn.privacy.ledger.ledger.Ledger.claim`), which was written here before, beside the last
one.

- A kill at any moment leaves the state that the ledger knows in the folder.
- Of several copies of a folder the first to go on wins; the ledger knows none of the others' states
  any more. If the run itself is still alive, whoever swaps second throws its draw away.
- A checkpoint that was changed by hand has no state that the ledger knows.

The noise key is not written: whoever found it could take the noise off the hops. At node level the
cut of the adjacency lists after a resume comes from the fresh key, too; any key keeps the bound on
a record's influence (privacy page, sections 1, 2 and 6).

The folder holds what the model's folder will hold, and nothing else: neither the fingerprint nor,
at node level, hop 0.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gapgnn import __version__
from gapgnn.errors import InputError, IntegrityError, PrivacyError, UnavailableError
from gapgnn.graph import file_digest
from gapgnn.privacy.ledger import Charge, Ledger
from gapgnn.rng import system_entropy

FORMAT = 2
INDEX = "journal.json"
LOCK = "lock"
# What a charge paid for, by its name here and on :class:`~gapgnn.privacy.ledger.ledger.Charge`.
PAID = ("level", "relation", "epsilon", "delta", "count", "events")


# Tensors by name: what one finished step leaves.
Tensors = dict[str, Tensor]


class NoCheckpoint:
    """Keeps nothing: the run starts at its beginning and, if it dies, is over."""

    def charged(self, about: Mapping[str, Any], charge: Callable[[], Charge | None]) -> Any:
        """Charge the ledger."""
        return charge()

    def load_or_run(
        self, name: str, run: Callable[[], Tensors], *, is_sound: Callable[[Tensors], bool]
    ) -> Tensors:
        """Run a step."""
        return run()


class Checkpoint(NoCheckpoint):
    """Keeps what a run has finished in a folder of its own.

    Args:
        folder: where to; belongs to one run.
        ledger: file of the privacy ledger, as of the estimator.
        resume: go on with the run that the folder holds; without it the folder must be new.

    >>> import tempfile
    >>> import torch
    >>> folder = Path(tempfile.mkdtemp()) / "model.unfinished"
    >>> checkpoint = Checkpoint(folder, ledger=None)
    >>> checkpoint.charged({"method": "gap", "fingerprint": "", "events": []}, lambda: None)
    >>> def released():
    ...     print("releasing")
    ...     return {"hop": torch.ones(2)}
    >>> found = checkpoint.load_or_run("hop-1", released, is_sound=lambda state: True)
    releasing
    >>> checkpoint.close()
    >>> again = Checkpoint(folder, ledger=None, resume=True)
    >>> again.charged({"method": "gap", "fingerprint": "", "events": []}, lambda: 1 / 0)
    >>> again.load_or_run("hop-1", released, is_sound=lambda state: True)["hop"].tolist()
    [1.0, 1.0]
    >>> again.remove()
    """

    def __init__(
        self, folder: str | Path, *, ledger: str | Path | None, resume: bool = False
    ) -> None:
        self.folder = Path(folder)
        self._ledger = ledger
        self._resume = resume
        self._state: dict[str, Any] = {}
        self._claim: str | None = None
        self._is_over = False
        self._lock: int | None = None

    def check(self) -> None:
        """Raise if the folder cannot be used, before any data is read."""
        exists = (self.folder / INDEX).is_file()
        if self._resume and not exists:
            raise InputError(
                f"`resume` must find an unfinished run. Got none in {str(self.folder)!r}."
            )
        if not self._resume and self.folder.exists():
            raise InputError(
                f"`out` has an unfinished run beside it, which was charged: {str(self.folder)!r}. "
                "Go on with it by `--resume`, or delete the folder."
            )

    @property
    def paid(self) -> str | None:
        """The charge that a run which is interrupted now can go on with."""
        charge: str | None = self._state.get("charge")
        return charge

    def charged(self, about: Mapping[str, Any], charge: Callable[[], Charge | None]) -> Any:
        """Return the charge that pays for this run: the one of its first start, or a new one.

        Args:
            about: what must be the same after a resume. Its ``fingerprint`` is compared with the
                ledger's and not written. What is going to be released (:data:`PAID`) is compared
                with the ledger's charge and not only with what is written here.
            charge: charges the ledger.

        Raises:
            PrivacyError: if the charge pays for something else, or somebody else draws on it.
        """
        self.check()
        public = {key: value for key, value in about.items() if key != "fingerprint"}
        public = json.loads(json.dumps({**public, "gapgnn": __version__}))
        if not self._resume:
            # What Ctrl-C leaves behind is either no charge or one that the folder knows.
            with _interrupts_held_back():
                paid = charge()
                self._make_folder()
                self._commit({"about": public, "charge": paid and paid.id, "finished": {}})
            return paid
        self._acquire()
        states = self._read_index()
        self._check_same(states[-1]["about"], public)
        paid = self._find_charge(states[-1]["charge"], str(about["fingerprint"]), public)
        self._state = states[-1] if paid is None else self._known_state(states, paid)
        # A damaged copy must not keep a sound one out, so this comes before the claim.
        self._check_finished()
        self._commit(self._state)
        for path in self.folder.glob("*.part"):
            path.unlink()
        return paid

    def _check_same(self, before: dict[str, Any], public: dict[str, Any]) -> None:
        # Options first: what follows from them says less to whoever changed one.
        for key in sorted({*before, *public}, key=lambda key: (key != "params", key)):
            was, asked = before.get(key), public.get(key)
            if was == asked:
                continue
            if isinstance(was, dict) and isinstance(asked, dict):
                key = min(k for k in {*was, *asked} if was.get(k) != asked.get(k))
                was, asked = was.get(key), asked.get(key)
            raise InputError(
                f"`{key}` must be as in the unfinished run, {was!r}. Got {asked!r}. Use the "
                "options of the first start."
            )

    def _find_charge(
        self, wanted: str | None, fingerprint: str, public: dict[str, Any]
    ) -> Charge | None:
        """Return the first start's charge; refuse where it does not pay for what comes now."""
        if wanted is None:
            if public["events"]:
                raise PrivacyError("the unfinished run names no charge. Delete it and start anew.")
            return None
        found = [entry for entry in Ledger(self._ledger).entries() if entry.id == wanted]
        if not found:
            raise PrivacyError("the unfinished run was charged in another ledger. Use that one.")
        if found[0].fingerprint != fingerprint:
            raise PrivacyError("the unfinished run was on another graph. Resume with its graph.")
        for key in PAID:
            was, asked = getattr(found[0], key), public[key]
            if (list(was) if key == "events" else was) != asked:
                raise PrivacyError(
                    f"`{key}` must be as charged for the unfinished run, {was!r}. Got {asked!r}. "
                    "Nothing was released."
                )
        self._is_over = found[0].completed_at is not None
        return found[0]

    def _known_state(self, states: list[dict[str, Any]], paid: Charge) -> dict[str, Any]:
        """Return the state in which the ledger has the run."""
        self._claim = Ledger(self._ledger).claimed(paid.id)
        for state in states:
            # Without a claim the run was killed right after its first state: nothing was drawn.
            is_new = self._claim is None and not state["finished"] and not self._is_over
            if is_new or self._claim == _checksum(state):
                return state
        raise self._lost()

    def _lost(self) -> PrivacyError:
        return PrivacyError(
            f"the charge of the unfinished run in {str(self.folder)!r} is not for this folder any "
            "more: a copy of it went on, or its files were changed. Delete it."
        )

    def _commit(self, state: dict[str, Any]) -> None:
        """Go over to a state: write it beside the last one, then have the ledger swap them."""
        following = {**state, "nonce": system_entropy(16).hex()}
        self._write_index([self._state, following] if self._state else [following])
        if following["charge"] is not None:
            token = _checksum(following)
            try:
                Ledger(self._ledger).claim(following["charge"], self._claim, token)
            except PrivacyError:
                raise self._lost() from None
            self._claim = token
        self._state = following

    def load_or_run(
        self, name: str, run: Callable[[], Tensors], *, is_sound: Callable[[Tensors], bool]
    ) -> Tensors:
        """Return what a finished step left under a name, or run the step and keep it.

        Args:
            name: of the step, once in a run.
            run: makes the release, or trains the network.
            is_sound: whether what was kept has the shapes that are expected.
        """
        state = self._load(name)
        if state is None:
            self._check_open(name)
            state = run()
            self._keep(name, state)
        elif not is_sound(state):
            raise _damaged(self._path(name))
        return state

    def _check_open(self, name: str) -> None:
        if self._is_over:
            raise PrivacyError(
                f"the charge of the unfinished run was used up by another one, so {name} cannot be "
                "drawn again. Delete the folder and start anew."
            )

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write one finished step durably.

        A step counts from the moment the ledger knows the state that lists it; its file is complete
        by then. Killed before that, the file is deleted at the resume; killed after it, it is used.
        """
        path = self._path(name)
        scratch = path.with_suffix(".part")
        with _explained(self.folder):
            plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
            save_file(plain, scratch)
            scratch.chmod(0o600)
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
            finished = {**self._state["finished"], name: file_digest(scratch)}
            try:
                self._commit({**self._state, "finished": finished})
            except PrivacyError:
                # Somebody else draws on the charge, so this draw must not stay.
                scratch.unlink()
                raise
            os.replace(scratch, path)

    def _load(self, name: str) -> dict[str, Tensor] | None:
        if name not in self._state["finished"]:
            return None
        try:
            return load_file(self._path(name))
        except (OSError, SafetensorError):
            raise _damaged(self._path(name)) from None

    def _check_finished(self) -> None:
        for name, digest in self._state["finished"].items():
            path = self._path(name)
            try:
                if path.with_suffix(".part").exists():
                    os.replace(path.with_suffix(".part"), path)
                if file_digest(path) != digest:
                    raise _damaged(path)
            except OSError:
                raise _damaged(path) from None

    def _read_index(self) -> list[dict[str, Any]]:
        path = self.folder / INDEX
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            checksum = content.pop("checksum")
            if content["format"] != FORMAT or checksum != _checksum(content):
                raise ValueError
            states = list(content["states"])
            if len({_checksum({**s, "finished": {}, "nonce": ""}) for s in states}) != 1:
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _damaged(path) from None
        return states

    def _write_index(self, states: list[dict[str, Any]]) -> None:
        content = {"format": FORMAT, "states": states}
        scratch = self.folder / f".{INDEX}.part"
        with _explained(self.folder):
            scratch.touch(mode=0o600)
            with scratch.open("w", encoding="utf-8") as file:
                file.write(json.dumps({**content, "checksum": _checksum(content)}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, self.folder / INDEX)

    def _make_folder(self) -> None:
        with _explained(self.folder):
            self.folder.mkdir(mode=0o700, parents=True)
        self._acquire()

    def _acquire(self) -> None:
        """Hold the folder until this process ends: two runs on one charge would draw twice."""
        import fcntl

        with _explained(self.folder):
            self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"the unfinished run in {str(self.folder)!r} is going on in another process."
            ) from None

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Delete the folder: the run is finished and saved."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP wait until a block is over; only the main thread hears."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    held = [number for number in numbers if before[number] is not signal.SIG_IGN]
    for number in held:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, before[number] or signal.SIG_DFL)
    if received:
        signal.raise_signal(received[0])


def _damaged(path: Path) -> IntegrityError:
    return IntegrityError(f"the unfinished run is damaged: {str(path)!r} is not what was written.")


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UnavailableError(
            f"the unfinished run {str(folder)!r} cannot be written: {error}"
        ) from None
