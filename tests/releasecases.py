"""One small model, its signed and unsigned release, and every way to tamper with them.

A tampering is a function that changes a release folder. Some leave the digests as they are; others,
by a forger who knows the format, write new ones afterwards (:func:`hide`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from methodgraphs import small_graph

from gapgnn import GAP, MLP, Ledger
from gapgnn.evaluation.release import About, Signer, write_release
from gapgnn.evaluation.release.files import CHECKSUMS, checksums, files_in
from gapgnn.evaluation.release.sbom import serial_number
from gapgnn.methods.folder import _checksum, keep_audit
from gapgnn.privacy.ledger import People, make_key

DAY = "2026-11-19"
ABOUT = About(
    name="Contagion between customers",
    curator="A bank: its “research” department",
    curator_type="Industry",
    intended_use="Research\nand teaching: 50 % each",
    region="Europe",
    authors=("A. Curator", "B. Curator"),
    sector="Finance",
    justification="Chosen by the board.",
    people=400,
)


def make_keys(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """Write a private key of P-256 and its public key."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def build(place: Path, monkeypatch: Any) -> dict[str, Path]:
    """Train two models with a signed ledger, audit one, and write its releases."""
    ledger = Ledger.init(place / "secret-ledger-of-ann.sqlite")
    key = place / "ann-ledger.pem"
    ledger.add_signer("ann the secret signer", make_key(key))
    monkeypatch.setenv("GAPGNN_SIGNING_KEY", str(key))
    monkeypatch.setenv("LOGNAME", "login-of-ann")
    graph = small_graph(num_nodes=120)
    terms = {"level": "edge", "relation": "undirected", "composition": "sum"}
    ledger.grant("secret people", People.of(graph), epsilon=9, delta=1e-3, **terms)
    options = {"epochs": 1, "ledger": ledger.path, "reason": "a secret reason"}
    for name, epsilon in (("model", 1.0), ("other", 2.0)):
        GAP(epsilon=epsilon, hidden=4, seed=0, **options).fit(graph).save(place / name)
    MLP(level="edge", hidden=4, epochs=1).fit(graph).save(place / "free")
    monkeypatch.delenv("GAPGNN_SIGNING_KEY")
    results = [
        {
            "mechanism": "aggregation",
            "epsilon_claimed": 1.0,
            "epsilon_lower_bound": 0.7,
            "trials": 1000,
            "holds": True,
        }
    ]
    command = f"gapgnn audit --model {place / 'model'} --trials 1000"
    keep_audit(place / "model", audit="mechanisms", command=command, results=results)
    private, public = make_keys(place)
    shared = {"ledger": ledger.path, "about": ABOUT, "made": DAY}
    write_release(place / "model", place / "signed", signer=Signer(private), **shared)
    write_release(place / "model", place / "unsigned", **shared)
    write_release(place / "other", place / "other-release", signer=Signer(private), **shared)
    return {"place": place, "private": private, "public": public, "ledger": Path(ledger.path)}


# Ways to tamper ----------------------------------------------------------------------------------


def edit(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text(encoding="utf-8")
    assert old in text, (name, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def change(folder: Path, name: str, into: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file, and the digests of a model folder that list it."""
    values = json.loads((folder / name).read_text())
    into(values)
    (folder / name).write_text(json.dumps(values, indent=2))


def flip(folder: Path, name: str) -> None:
    """Change the last byte of a file."""
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)


def relist(folder: Path) -> None:
    """Write the configuration of a model folder anew, with the digests of its files."""
    import hashlib

    path = folder / "model" / "config.json"
    config = json.loads(path.read_text())
    del config["checksum"]
    config["files"] = {
        name: hashlib.sha256((folder / "model" / name).read_bytes()).hexdigest()
        for name in config["files"]
        if (folder / "model" / name).exists()
    }
    path.write_text(json.dumps({**config, "checksum": _checksum(config)}, indent=2))


def hide(folder: Path) -> None:
    """Write new digests, as a forger does who knows the format."""
    relist(folder)
    names, _ = files_in(folder)
    (folder / CHECKSUMS).write_text(checksums(folder, names))


def swap(folder: Path, one: str, other: str) -> None:
    first, second = (folder / one).read_bytes(), (folder / other).read_bytes()
    (folder / one).write_bytes(second)
    (folder / other).write_bytes(first)


def rows_of(folder: Path, end: str) -> str:
    return next((folder / "model" / "hops").glob(f"*{end}")).relative_to(folder).as_posix()


def link_elsewhere(folder: Path, name: str) -> None:
    """Replace a file by a symbolic link to a copy outside of the folder."""
    outside = folder.parent / f"outside-{Path(name).name}"
    shutil.move(folder / name, outside)
    (folder / name).symlink_to(outside)


def take_over(folder: Path, *names: str) -> None:
    """Put files of another model's release in the place of this one's."""
    for name in names:
        shutil.copy(folder.parent / "other-release" / name, folder / name)


def take_over_model(folder: Path) -> None:
    shutil.rmtree(folder / "model")
    shutil.copytree(folder.parent / "other-release" / "model", folder / "model")


def lower_epsilon(values: dict[str, Any]) -> None:
    """State a tenth of the epsilon everywhere on a card, as one who knows what is compared."""
    for name in ("epsilon", "composed_epsilon"):
        values[name] /= 10
    values["releases"][0]["epsilon"] /= 10


def lower_planned(values: dict[str, Any]) -> None:
    values["plan"]["guarantee"]["epsilon"] /= 10
    values["params"]["epsilon"] /= 10


def lower_everywhere(folder: Path) -> None:
    change(folder, "model/card.json", lower_epsilon)
    change(folder, "model/config.json", lower_planned)
    change(folder, "ledger.json", lambda v: v["charges"][0].update(epsilon=0.1))


def rename(folder: Path, old: str, new: str) -> None:
    (folder / old).rename(folder / new)


def replace_audit(folder: Path, holds: bool) -> None:
    name = next((folder / "model" / "audits").iterdir()).relative_to(folder).as_posix()
    change(folder, name, lambda v: v["results"][0].update(holds=holds))


def rewrite_sbom(folder: Path) -> None:
    def other(values: dict[str, Any]) -> None:
        values["metadata"]["component"]["version"] = "9.9"
        values["serialNumber"] = serial_number(values)

    change(folder, "sbom.cdx.json", other)


CARD, CONFIG = "model/card.json", "model/config.json"
# Name: what is done, and the file that the report must name.
TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "card: epsilon": (lambda f: change(f, CARD, lower_epsilon), CARD),
    "card: what is not covered": (
        lambda f: change(f, CARD, lambda v: v["not_covered"].pop()),
        CARD,
    ),
    "card page": (lambda f: edit(f, "model/card.md", "1.00", "0.10"), "model/card.md"),
    "transcript": (
        lambda f: change(f, "transcript.json", lambda v: v["together"].update(epsilon=0.1)),
        "transcript.json",
    ),
    "weights": (lambda f: flip(f, "model/weights.safetensors"), "model/weights.safetensors"),
    "rows": (lambda f: flip(f, rows_of(f, ".safetensors")), "model/hops/"),
    "ids": (lambda f: edit(f, rows_of(f, ".ids.json"), "[0, 1,", "[1, 0,"), "model/hops/"),
    "signature": (lambda f: flip(f, "model.sig"), "model.sig"),
    "signature removed": (lambda f: (f / "model.sig").unlink(), "model.sig"),
    "signature of another release": (lambda f: take_over(f, "model.sig"), "model.sig"),
    "public key": (lambda f: shutil.copy(f.parent / "forger.pub", f / "signer.pub"), "signer.pub"),
    "software": (rewrite_sbom, "sbom.cdx.json"),
    "registry entry": (
        lambda f: edit(f, "registry_entry.yaml", "epsilon: 0.9", "epsilon: 0.1"),
        "registry_entry.yaml",
    ),
    "excerpt: amount": (
        lambda f: change(f, "ledger.json", lambda v: v["charges"][0].update(epsilon=0.1)),
        "ledger.json",
    ),
    "excerpt: link": (
        lambda f: change(f, "ledger.json", lambda v: v["charges"][0].update(link="5f" * 16)),
        "ledger.json",
    ),
    "plan": (lambda f: change(f, CONFIG, lower_planned), CONFIG),
    "parameters: weaker noise": (
        lambda f: change(f, CONFIG, lambda v: v["params"].update(noise="fast")),
        CONFIG,
    ),
    "audit: result": (lambda f: replace_audit(f, False), "model/audits/"),
    "audit removed": (
        lambda f: next((f / "model" / "audits").iterdir()).unlink(),
        "model/audits/",
    ),
    "checksums": (lambda f: edit(f, CHECKSUMS, "0", "1"), CHECKSUMS),
    "statement: who may have it": (
        lambda f: change(f, "release.json", lambda v: v["decision"].update(answer="Yes.")),
        "release.json",
    ),
    "statement: who publishes it": (
        lambda f: change(f, "release.json", lambda v: v["about"].update(curator="A forger")),
        "release.json",
    ),
    "page": (lambda f: edit(f, "index.html", "epsilon 1.00", "epsilon 0.10"), "index.html"),
    "mapping": (lambda f: edit(f, "nist-sp-800-226.md", "1.00", "0.10"), "nist-sp-800-226.md"),
    "added file": (lambda f: (f / "accuracy.json").write_text("{}"), "accuracy.json"),
    "added file in the model": (lambda f: (f / "model" / "x").write_text(""), "model/x"),
    "removed file": (lambda f: (f / "nist-sp-800-226.md").unlink(), "nist-sp-800-226.md"),
    "swapped files": (lambda f: swap(f, "transcript.json", "ledger.json"), "transcript.json"),
    "renamed file": (lambda f: rename(f, "index.html", "Index.html"), "index.html"),
    "symbolic link": (lambda f: link_elsewhere(f, CARD), CARD),
    "linked folder": (lambda f: link_elsewhere(f, "model/hops"), "model/hops"),
    "another model's card": (lambda f: take_over(f, CARD, "model/card.md"), CARD),
    "another model's weights": (
        lambda f: take_over(f, "model/weights.safetensors"),
        "model/weights.safetensors",
    ),
    "another model": (lambda f: take_over_model(f), CARD),
}
# Those that are found without any digest, because the files contradict each other; and by what.
CONTRADICTIONS: dict[str, str] = {
    "card: epsilon": "card",
    "card: what is not covered": "index.html",
    "card page": "model/card.md",
    "transcript": "transcript.json",
    "rows": "transcript.json",
    "weights": "transcript.json",
    "software": "sbom.cdx.json",
    "registry entry": "registry_entry.yaml",
    "excerpt: amount": "ledger.json",
    "excerpt: link": "ledger.json",
    "plan": "plan",
    "parameters: weaker noise": "its configuration says noise source",
    "audit: result": "audit",
    "statement: who may have it": "release.json",
    "statement: who publishes it": "registry_entry.yaml",
    "page": "index.html",
    "mapping": "nist-sp-800-226.md",
    "added file": "accuracy.json",
    "removed file": "nist-sp-800-226.md",
    "renamed file": "Index.html",
    "another model's card": "card",
    "another model": "ledger.json",
}
