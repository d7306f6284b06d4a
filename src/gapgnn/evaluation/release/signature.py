"""The signature of a release, in the format of OpenSSF model signing.

It is made and checked offline by the package ``model-signing`` (extra ``release``): with the
private key of an elliptic curve (P-256, P-384 or P-521), or with such a key and its certificate. It
covers every file of the folder but itself. Ed25519, with which entries of a ledger are signed, is
not among the keys of that format.

A public key that lies in the folder shows that nothing changed since somebody signed. Who that was
is known to those alone who have the key, or the root certificate, from elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.errors import InputError, IntegrityError, UnavailableError
from gapgnn.evaluation.release.files import SIGNATURE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

_CURVES = ("secp256r1", "secp384r1", "secp521r1")


@dataclass(frozen=True)
class Signer:
    """Who signs.

    Attributes:
        key: file of the private key, in PEM, without a password.
        certificate: file of the certificate of that key; None to sign with the key alone.
        chain: files of the certificates between that one and the root.
    """

    key: Path
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()

    def check(self) -> dict[str, Any]:
        """Return what the release states about its signer; refuse what could not sign."""
        _package()
        public = _public_pem(self.key)
        if self.certificate is None:
            if self.chain:
                raise InputError("`chain` must come with `certificate`. Got none.")
            return {"type": "key", "sha256": hashlib.sha256(public).hexdigest()}
        from cryptography import x509

        for path in (self.certificate, *self.chain):
            _load(path, x509.load_pem_x509_certificates, "a certificate in PEM")
        text = self.certificate.read_bytes()
        certificate = x509.load_pem_x509_certificate(text)
        if _pem(certificate.public_key()) != public:
            raise InputError(
                f"`certificate` must be of the private key. Got {str(self.certificate)!r}, which "
                "is of another."
            )
        from cryptography.hazmat.primitives.hashes import SHA256

        return {"type": "certificate", "sha256": certificate.fingerprint(SHA256()).hex()}

    def public_key(self) -> bytes:
        """Return the public key in PEM."""
        return _public_pem(self.key)

    def sign(self, folder: Path) -> None:
        """Write the signature of a folder into it."""
        signing, hashing, _ = _package()
        config = signing.Config()
        if self.certificate is None:
            config.use_elliptic_key_signer(private_key=self.key)
        else:
            config.use_certificate_signer(
                private_key=self.key,
                signing_certificate=self.certificate,
                # The package takes no empty chain.
                certificate_chain=self.chain or (self.certificate,),
            )
        config.set_hashing_config(_hashing(hashing)).sign(folder, folder / SIGNATURE)


def check_signature(
    folder: Path, *, public_key: Path | None = None, roots: Sequence[Path] = ()
) -> None:
    """Refuse a folder whose signature is not of its files, by this key or a certificate of a root.

    Raises:
        IntegrityError: if the signature is not valid, or a file was added, removed or changed.
    """
    _, hashing, verifying = _package()
    config = verifying.Config()
    if public_key is not None:
        text = public_key.read_bytes()
        _checked(text, public_key)
        config.use_elliptic_key_verifier(public_key=public_key)
    else:
        config.use_certificate_verifier(certificate_chain=roots)
    try:
        # The name of the signature is fixed here: a signed list of files to be left out is not
        # asked.
        config.set_hashing_config(_hashing(hashing)).verify(folder, folder / SIGNATURE)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise IntegrityError(reason) from None


def public_key_hash(text: bytes) -> str:
    """Return the SHA-256 of a public key as a release states it."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return hashlib.sha256(_pem(load_pem_public_key(text))).hexdigest()
    except (ValueError, TypeError):
        raise IntegrityError("the public key cannot be read") from None


def _package() -> tuple[Any, Any, Any]:
    try:
        from model_signing import hashing, signing, verifying
    except ImportError:
        raise UnavailableError(
            "signatures need the package model-signing. Install it with `pip install "
            '"gapgnn[release]"`.'
        ) from None
    return signing, hashing, verifying


def _hashing(hashing: Any) -> Any:
    """Return what is hashed: every file but the signature, and no file because of its name."""
    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


def _public_pem(path: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    def read(text: bytes) -> Any:
        return load_pem_private_key(text, password=None)

    key = _load(path, read, "a private key in PEM without a password")
    if not hasattr(key, "curve") or key.curve.name not in _CURVES:
        found = getattr(getattr(key, "curve", None), "name", type(key).__name__)
        raise InputError(
            f"`key` must be of an elliptic curve, P-256, P-384 or P-521. Got {found}: make one "
            "with `openssl ecparam -genkey -name prime256v1 -noout -out key.pem`."
        )
    return _pem(key.public_key())


def _load(path: Path, read: Callable[[bytes], Any], wanted: str) -> Any:
    try:
        return read(path.read_bytes())
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError):
        raise InputError(f"{str(path)!r} must be {wanted}. Got something else.") from None


def _checked(text: bytes, path: Path) -> EllipticCurvePublicKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: Any = _load(path, load_pem_public_key, "a public key in PEM")
    if not hasattr(key, "curve") or key.curve.name not in _CURVES:
        raise InputError(f"{str(path)!r} must be a public key of P-256, P-384 or P-521.")
    return key  # type: ignore[no-any-return]


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    text: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text
