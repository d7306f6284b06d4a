"""A release says what its files say, verifies from its folder alone, and every change is found."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from methodgraphs import small_graph

from gapgnn import GAP, MLP, Ledger, NodeLabelGAP, load_model
from gapgnn.errors import InputError, IntegrityError, PrivacyError, UnavailableError
from gapgnn.evaluation.release import Signer, verify_release, write_release
from gapgnn.evaluation.release.files import files_in
from gapgnn.evaluation.release.sbom import serial_number
from gapgnn.methods.folder import keep_audit, load_folder
from releasecases import (
    ABOUT,
    CARD,
    CONFIG,
    CONTRADICTIONS,
    DAY,
    TAMPERINGS,
    build,
    change,
    hide,
    lower_everywhere,
    make_keys,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield build(tmp_path_factory.mktemp("releases"), monkeypatch)


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Any:
    """Return a function that copies a release to another place."""
    shutil.copytree(made["place"] / "other-release", tmp_path / "other-release")
    make_keys(tmp_path, "forger")

    def copy(name: str) -> Path:
        return Path(shutil.copytree(made["place"] / name, tmp_path / name))

    return copy


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another machine: no ledger, no network."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("GAPGNN_LEDGER", str(tmp_path / "no" / "ledger.sqlite"))
    monkeypatch.setattr(Ledger, "entries", refuse)


@pytest.mark.usefixtures("elsewhere")
def test_a_signed_release_verifies_from_its_folder_alone(made, copied) -> None:
    found = verify_release(copied("signed"), public_key=made["public"])
    assert found.holds
    assert found.is_known_signer
    outcomes = {one.name: one.outcome for one in found.checks}
    assert set(outcomes.values()) == {"ok"}
    names = "files statement signature model plan epsilon ledger audits software decision pages"
    assert list(outcomes) == names.split()
    # What nobody can see in it is said.
    assert any("gapgnn ledger verify --against" in line for line in found.limits)


@pytest.mark.usefixtures("elsewhere")
def test_an_unsigned_release_says_that_nobody_answers_for_it(made, copied) -> None:
    found = verify_release(copied("unsigned"))
    assert found.holds
    assert not found.is_known_signer
    assert any("Nobody signed" in line for line in found.limits)
    asked = verify_release(copied("signed").parent / "unsigned", public_key=made["public"])
    assert asked.problems == ("model.sig is missing: nobody signed this release",)


@pytest.mark.parametrize("name", TAMPERINGS)
def test_every_tampering_is_found_and_named(name: str, made, copied) -> None:
    tamper, file = TAMPERINGS[name]
    folder = copied("signed")
    tamper(folder)
    found = verify_release(folder, public_key=made["public"])
    assert not found.holds
    assert any(file in problem for problem in found.problems), found.problems


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_forger_who_writes_new_digests_contradicts_the_card(name: str, copied) -> None:
    folder = copied("unsigned")
    TAMPERINGS[name][0](folder)
    hide(folder)
    found = verify_release(folder)
    assert not any("was changed" in problem for problem in found.problems)
    assert any(CONTRADICTIONS[name] in problem for problem in found.problems), found.problems


@pytest.mark.parametrize(
    ("where", "value", "problem"),
    [
        (("signed", "signature"), "5f" * 64, "not signed by the key"),
        (("signed", "public_key"), "5f" * 32, "not signed by the key"),
        (("seq",), 99, "later than the head"),
        (("moment",), "2999-01-01T00:00:00+00:00", "later than the head"),
        (("id",), "5f" * 12, "is not on the card"),
        (("events",), [], "what the charge"),
    ],
)
def test_an_excerpt_that_cannot_be_of_a_chain_is_found(
    where: tuple[str, ...], value: Any, problem: str, copied
) -> None:
    folder = copied("unsigned")

    def into(values: dict[str, Any]) -> None:
        place = values["charges"][0]
        for name in where[:-1]:
            place = place[name]
        place[where[-1]] = value

    change(folder, "ledger.json", into)
    hide(folder)
    problems = verify_release(folder).problems
    assert any(problem in one for one in problems), problems


def test_one_place_of_the_chain_has_one_link(copied) -> None:
    folder = copied("unsigned")
    change(folder, "ledger.json", lambda v: v["head"].update(seq=v["charges"][0]["seq"]))
    hide(folder)
    assert any("two links" in one for one in verify_release(folder).problems)


def test_a_model_that_may_not_leave_is_reported_by_whoever_receives_it(copied) -> None:
    folder = copied("unsigned")
    TAMPERINGS["audit: result"][0](folder)
    hide(folder)
    problems = verify_release(folder).problems
    assert any("must not be released" in one for one in problems), problems


def test_an_epsilon_that_is_lowered_everywhere_does_not_cover_its_events(copied) -> None:
    folder = copied("unsigned")
    lower_everywhere(folder)
    hide(folder)
    found = verify_release(folder)
    assert any("come to 1" in problem for problem in found.problems), found.problems


@pytest.mark.parametrize("name", ["mu", "guess", "tpr_at_fpr_1_percent", "tpr_at_fpr_0_1_percent"])
def test_a_bound_on_attackers_that_is_lowered_is_found(name: str, copied) -> None:
    folder = copied("unsigned")
    least = {"mu": 0.01, "guess": 0.5, "tpr_at_fpr_1_percent": 0.01}.get(name, 0.001)
    change(folder, "model/card.json", lambda v: v["attacker"].update({name: least}))
    hide(folder)
    assert any(f"states {name}" in one for one in verify_release(folder).problems)


def test_a_forger_who_makes_a_release_of_his_own_is_found_by_the_key_from_elsewhere(
    made, tmp_path: Path
) -> None:
    forger = Signer(make_keys(tmp_path, "forger")[0])
    write_release(made["place"] / "model", tmp_path / "signed", signer=forger)
    # By the key in the folder alone it is a valid release, and the report says what to compare.
    own = verify_release(tmp_path / "signed")
    assert own.holds
    assert not own.is_known_signer
    assert any("Compare that number" in one.text for one in own.checks)
    assert not verify_release(tmp_path / "signed", public_key=made["public"]).holds


def test_others_verify_the_signature_without_gapgnn(made) -> None:
    from model_signing import verifying

    config = verifying.Config().use_elliptic_key_verifier(public_key=made["public"])
    config.verify(made["place"] / "signed", made["place"] / "signed" / "model.sig")


def test_a_release_signed_with_a_certificate_descends_from_its_root(made, tmp_path: Path) -> None:
    key, certificate, root, other = certificates(tmp_path)
    out = tmp_path / "release"
    write_release(made["place"] / "free", out, signer=Signer(key, certificate), made=DAY)
    assert verify_release(out, roots=[root]).is_known_signer
    assert "Give the root" in " ".join(verify_release(out).limits)
    found = verify_release(out, roots=[other])
    assert any("model.sig is not valid" in one for one in found.problems)
    for options in ({"public_key": made["public"]}, {"roots": [root]}):
        given = out if "public_key" in options else made["place"] / "signed"
        (problem,) = verify_release(given, **options).problems
        assert "not what you gave" in problem
    with pytest.raises(InputError, match="must be of the private key"):
        Signer(made["private"], certificate).check()


def certificates(folder: Path) -> tuple[Path, Path, Path, Path]:
    """Write a key with its certificate, the root that signed it, and another root."""
    from datetime import datetime, timedelta, timezone

    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    from cryptography.x509.oid import NameOID

    now = datetime.now(timezone.utc)

    def certificate(name: str, issuer: str, is_root: bool) -> Path:
        own = load_pem_private_key((folder / f"{name}.pem").read_bytes(), None)
        by = load_pem_private_key((folder / f"{issuer}.pem").read_bytes(), None)
        usage = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True, key_cert_sign=is_root, crl_sign=is_root, **usage
                ),
                critical=True,
            )
            .sign(by, SHA256())
        )
        path = folder / f"{name}.crt"
        path.write_bytes(made.public_bytes(Encoding.PEM))
        return path

    for name in ("root", "other", "leaf"):
        make_keys(folder, name)
    roots = [certificate(name, name, True) for name in ("root", "other")]
    return folder / "leaf.pem", certificate("leaf", "root", False), roots[0], roots[1]


def test_the_same_release_is_the_same_bytes(made, tmp_path: Path) -> None:
    write_release(
        made["place"] / "model", tmp_path / "again", ledger=made["ledger"], about=ABOUT, made=DAY
    )
    before = made["place"] / "unsigned"
    for name in files_in(before)[0]:
        assert (tmp_path / "again" / name).read_bytes() == (before / name).read_bytes(), name


def test_it_names_nobody(made) -> None:
    secrets = [
        "secret",
        "ann the",
        "-ledger",
        str(made["place"]),
        socket.gethostname(),
        load_folder(made["place"] / "model").config["plan"]["method"] + " --",
    ]
    charges = Ledger(made["ledger"]).entries()
    secrets += [charges[0].population, charges[0].fingerprint, charges[0].who]
    folder = made["place"] / "unsigned"
    for name in files_in(folder)[0]:
        if name == "sbom.cdx.json":  # names of packages alone
            continue
        text = (folder / name).read_bytes()
        for secret in secrets:
            if len(secret) > 3:
                assert secret.encode() not in text, (name, secret)


def test_the_owner_of_the_ledger_confirms_the_excerpt(made, tmp_path: Path) -> None:
    from gapgnn.cli.ledger import _against

    ledger, release = Ledger(made["ledger"]), made["place"] / "signed"
    assert _against(ledger, release) == []
    other = Ledger.init(tmp_path / "other.sqlite")
    assert len(_against(other, release)) == 2
    excerpt = json.loads((release / "ledger.json").read_text())
    assert excerpt["head"]["link"] == ledger.chain()[-1].link
    assert excerpt["charges"][0]["signed"]["public_key"] == next(iter(ledger.signers().values()))


def test_a_released_model_loads_and_answers_as_before(made) -> None:
    released = load_model(made["place"] / "unsigned" / "model", ledger=made["ledger"])
    before = load_model(made["place"] / "model", ledger=made["ledger"])
    assert (released.predict_cached() == before.predict_cached()).all()
    assert Ledger(made["ledger"]).problems() == []


class TestWhatMustNotLeave:
    """A model whose promise does not hold is refused, and what no promise covers is left out."""

    def saved(self, tmp_path: Path, model: Any) -> Path:
        model.fit(small_graph(num_nodes=120)).save(tmp_path / "model")
        return tmp_path / "model"

    def refused(self, folder: Path, **options: Any) -> str:
        with pytest.raises((PrivacyError, IntegrityError)) as error:
            write_release(folder, folder.parent / "out", made=DAY, **options)
        assert [one.name for one in folder.parent.iterdir() if "out" in one.name] == []
        return str(error.value)

    def test_no_protection(self, tmp_path: Path) -> None:
        model = self.saved(tmp_path, MLP(level="none", epochs=1))
        assert "trained without protection" in self.refused(model)

    @pytest.mark.parametrize("option", [{"insecure_noise_seed": 1}, {"noise": "fast"}])
    def test_noise_that_is_not_safe(self, option: dict[str, Any], ledger_file, tmp_path) -> None:
        model = self.saved(tmp_path, GAP(epochs=1, hidden=4, ledger=ledger_file, **option))
        assert "noise is not fit" in self.refused(model, ledger=ledger_file)

    def test_an_audit_that_found_a_violation(self, made, tmp_path: Path) -> None:
        model = Path(shutil.copytree(made["place"] / "model", tmp_path / "model"))
        broken = [
            {
                "mechanism": "aggregation",
                "epsilon_claimed": 1.0,
                "epsilon_lower_bound": 2.0,
                "trials": 9,
                "holds": False,
            }
        ]
        keep_audit(model, audit="mechanisms", command="gapgnn audit", results=broken)
        assert "found a violation" in self.refused(model, ledger=made["ledger"])

    def test_a_card_that_the_ledger_contradicts(self, made, tmp_path: Path) -> None:
        model = Path(shutil.copytree(made["place"] / "unsigned", tmp_path / "model"))
        lower_everywhere(model)
        hide(model)
        assert "ledger disagree" in self.refused(model / "model", ledger=made["ledger"])

    def test_a_damaged_model(self, made, tmp_path: Path) -> None:
        model = Path(shutil.copytree(made["place"] / "model", tmp_path / "model"))
        (model / "weights.safetensors").write_bytes(b"")
        assert "is damaged" in self.refused(model, ledger=made["ledger"])

    def test_ids_at_node_level_leave_only_if_they_are_public(self, tmp_path, ledger_file) -> None:
        options = {"epsilon": 8.0, "epochs": 1, "hidden": 4, "ledger": ledger_file}
        model = self.saved(tmp_path, NodeLabelGAP(**options))
        assert "how many people are in the data" in self.refused(model, ledger=ledger_file)
        written = write_release(
            model, tmp_path / "out", ledger=ledger_file, ids_are_public=True, made=DAY
        )
        to_whom = {one.what: one.who for one in written.decision.recipients}
        assert "this page" not in to_whom
        assert "the person it is about" in to_whom["a prediction"]
        why = {one.what: one.why for one in written.left_out}["figures of usefulness"]
        assert "true labels without noise" in why
        # Nothing of the folder is a figure computed from private labels.
        for name in files_in(written.folder)[0]:
            assert b"accuracy" not in (written.folder / name).read_bytes(), name

    def test_an_audit_on_the_curators_own_tables(self, made, tmp_path: Path) -> None:
        model = Path(shutil.copytree(made["place"] / "model", tmp_path / "model"))
        results = [{"neighbours": "2 pairs", "releases": 77, "holds": True}]
        command = "gapgnn audit pipeline --model model --edges calls.csv --nodes people.csv"
        keep_audit(model, audit="pipeline", command=command, results=results)
        written = write_release(model, tmp_path / "out", ledger=made["ledger"], made=DAY)
        assert any("own data" in one.what for one in written.left_out)
        assert len(list((tmp_path / "out" / "model" / "audits").iterdir())) == 1

    @pytest.mark.parametrize("word", ["", " --dataset social"])
    def test_an_audit_of_a_fit_leaves_if_it_was_on_a_known_data_set(
        self, word: str, made, tmp_path: Path
    ) -> None:
        model = Path(shutil.copytree(made["place"] / "model", tmp_path / "model"))
        results = [
            {"mechanism": "fit", "epsilon_claimed": 1.0, "epsilon_lower_bound": 0.8, "holds": True}
        ]
        keep_audit(model, audit="fit", command=f"gapgnn audit fit{word}", results=results)
        written = write_release(model, tmp_path / "out", ledger=made["ledger"], made=DAY)
        assert any("own data" in one.what for one in written.left_out) == (word == "")
        assert len(list((tmp_path / "out" / "model" / "audits").iterdir())) == (
            1 if not word else 2
        )

    def test_people_who_were_removed_elsewhere(self, made, tmp_path: Path) -> None:
        from gapgnn.methods import forget

        place = shutil.copytree(made["place"], tmp_path / "all")
        ledger = Ledger(Path(place) / made["ledger"].name)
        copy = Path(shutil.copytree(Path(place) / "model", tmp_path / "model"))
        forget(Path(place) / "model", ["3", "4"], ledger)
        assert "were removed" in self.refused(copy, ledger=ledger.path)
        written = write_release(Path(place) / "model", tmp_path / "rel", ledger=ledger.path)
        assert "forgotten" not in json.loads((tmp_path / "rel/model/config.json").read_text())
        assert verify_release(written.folder).holds

    def test_files_that_are_no_part_of_the_model(self, made, tmp_path: Path) -> None:
        model = Path(shutil.copytree(made["place"] / "model", tmp_path / "model"))
        (model / "accuracy-of-mrs-jones.json").write_text("{}")
        (model / "hops" / "link.json").symlink_to("/etc/hostname")
        written = write_release(model, tmp_path / "out", ledger=made["ledger"], made=DAY)
        private = [one.what for one in written.left_out if not one.is_public]
        assert private == ["accuracy-of-mrs-jones.json", "hops/link.json is a symbolic link"]
        assert not any(
            "jones" in (tmp_path / "out" / name).read_text(errors="ignore")
            for name in files_in(tmp_path / "out")[0]
        )

    def test_nothing_is_charged(self, made, tmp_path: Path) -> None:
        before = made["ledger"].read_bytes()
        write_release(made["place"] / "model", tmp_path / "out", ledger=made["ledger"], made=DAY)
        verify_release(tmp_path / "out")
        assert made["ledger"].read_bytes() == before

    @pytest.fixture
    def ledger_file(self, tmp_path: Path) -> Path:
        return Path(Ledger.init(tmp_path / "own.sqlite").path)


def own_encoder(width: int, classes: int) -> torch.nn.Module:
    return torch.nn.Linear(width, 4)


def test_of_a_model_that_cannot_be_loaded_here_the_plan_is_still_compared(tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "own.sqlite").path
    model = GAP(encoder=own_encoder, hidden=4, epochs=1, ledger=ledger)
    model.fit(small_graph(num_nodes=120)).save(tmp_path / "model")
    folder = write_release(tmp_path / "model", tmp_path / "out", ledger=ledger).folder
    found = verify_release(folder)
    assert found.holds
    assert any("cannot be loaded here" in line for line in found.limits)
    TAMPERINGS["plan"][0](folder)
    hide(folder)
    assert any("in the plan" in one for one in verify_release(folder).problems)


def test_keys_that_cannot_sign_are_refused_before_anything_is_written(made, tmp_path) -> None:
    from gapgnn.privacy.ledger import make_key

    make_key(tmp_path / "ed25519.pem")
    (tmp_path / "text.pem").write_text("no key")
    for name, error in (
        ("ed25519.pem", InputError),
        ("text.pem", InputError),
        ("missing.pem", UnavailableError),
    ):
        with pytest.raises(error, match=r"P-256|PEM|cannot be read"):
            write_release(made["place"] / "free", tmp_path / "out", signer=Signer(tmp_path / name))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["ledger.json", "release.json", "sbom.cdx.json"])
@pytest.mark.parametrize("text", ["", "[]", "[" * 10_000, '{"format": 1}', '{"format": 2}'])
def test_files_that_are_no_release_are_named(name: str, text: str, copied) -> None:
    folder = copied("unsigned")
    (folder / name).write_text(text)
    hide(folder)
    problems = verify_release(folder).problems
    assert any(name in problem for problem in problems), problems


def test_a_release_of_another_version_is_compared_by_its_figures(copied) -> None:
    folder = copied("unsigned")
    change(folder, "release.json", lambda v: v.update(gapgnn="0.9"))
    change(folder, "sbom.cdx.json", of_version_9)
    hide(folder)
    found = verify_release(folder)
    assert found.holds, found.problems
    assert any("made by gapgnn 0.9" in line for line in found.limits)
    for name in ("transcript", "registry entry", "card: epsilon", "excerpt: amount"):
        other = Path(shutil.copytree(folder, folder.parent / f"other {name}"))
        TAMPERINGS[name][0](other)
        hide(other)
        assert not verify_release(other).holds, name


def of_version_9(values: dict[str, Any]) -> None:
    values["metadata"]["component"]["version"] = "0.9"
    values["serialNumber"] = serial_number(values)


def test_names_that_are_no_text_and_pipes_are_reported(copied, gapgnn_verify) -> None:
    folder = copied("unsigned")
    (folder / os.fsdecode(b"x\xff\nname")).write_text("")
    code, _, err = gapgnn_verify(folder)
    assert code == 4
    assert "was added" in err
    os.mkfifo(folder / "model" / "pipe")
    code, _, err = gapgnn_verify(folder)
    assert code == 4
    assert "model/pipe is no plain file" in err


@pytest.fixture
def gapgnn_verify(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    from gapgnn.cli.main import run

    def call(folder: Path) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["gapgnn", "verify", str(folder)])
        with pytest.raises(SystemExit) as done:
            run()
        return (done.value.code, *capfd.readouterr())

    return call


def rewritten(name: str, folder: Path, data: st.DataObject) -> str:
    """Change one value somewhere in a JSON file, and return where."""
    values = json.loads((folder / name).read_text())
    place, where = values, []
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        where.append(key)
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    others = st.sampled_from([None, True, -1, 1e400, "x", [], {}, [{}], {"a": 1}])
    before = place[key]
    place[key] = data.draw(others.filter(lambda new: repr(new) != repr(before)))
    (folder / name).write_text(json.dumps(values))
    return f"{name}: {where}"


JSON = ("release.json", "ledger.json", "transcript.json", "sbom.cdx.json", CARD, CONFIG)


def check_rewritten(made: dict[str, Path], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(made["place"] / "unsigned", Path(scratch) / "release"))
        where = rewritten(data.draw(st.sampled_from(JSON)), folder, data)
        assert not verify_release(folder).holds, where
        # With new digests it may be consistent, and is still no reason to stumble.
        config = json.loads((folder / CONFIG).read_text())
        if isinstance(config.get("files"), dict):
            hide(folder)
        verify_release(folder)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_that_is_rewritten_is_reported_and_never_stumbled_over(made, data) -> None:
    check_rewritten(made, data)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_values_that_are_rewritten(made, data) -> None:
    check_rewritten(made, data)


@pytest.mark.slow
def test_it_verifies_in_another_process_without_home_or_network(made, copied, tmp_path) -> None:
    code = (
        "import socket, sys\n"
        "def no(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = no\n"
        "socket.getaddrinfo = no\n"
        "from gapgnn.cli.main import run\n"
        "run()\n"
    )
    folder = copied("signed")
    os.chmod(folder, 0o500)
    words = [sys.executable, "-c", code, "verify", str(folder), "--json"]
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": str(tmp_path / "nobody")}
    done = subprocess.run(
        [*words, "--public-key", str(made["public"])],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_known_signer"] is True
    assert not (tmp_path / "nobody").exists()
