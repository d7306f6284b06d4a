"""Downloads: HTTPS only, tried again, checked, and in place only when complete."""

import contextlib
import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gapgnn.errors import DataError, InputError, UnavailableError
from gapgnn.graph.datasets import download
from gapgnn.graph.datasets.download import DataFile, cache_folder, data_folder, fetch, obtain

CONTENT = bytes(range(256)) * 4096  # 1 MiB: several blocks
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """A file server whose behaviour depends on the path asked for."""

    def do_GET(self):
        self.server.asked.append(self.path)
        behaviour = self.path.strip("/")
        if behaviour == "missing":
            self.send_error(404)
        elif behaviour == "insecure-redirect":
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/file")
            self.end_headers()
        elif behaviour == "secure-redirect":
            self.send_response(302)
            self.send_header("Location", "/file")
            self.end_headers()
        elif behaviour == "breaks-off" or (
            behaviour == "breaks-off-once" and len(self.server.asked) == 1
        ):
            self._send(CONTENT[: len(CONTENT) // 2])
        elif behaviour == "damaged-once" and len(self.server.asked) == 1:
            self._send(bytes(len(CONTENT)))
        else:
            self._send(CONTENT)

    def _send(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        # The client may have been interrupted, as some tests want.
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return a file with the key and the certificate of 127.0.0.1, signed by nobody else."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.timezone.utc)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(secret + signed.public_bytes(pem))
    return path


@pytest.fixture
def server(certificate):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # Shakes hands in the thread of the connection, which closes it whatever happens.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        server.handle_error = lambda *_: None  # what clients break off
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch, certificate):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("GAPGNN_DATA", raising=False)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between two attempts


def data_file(server, behaviour="file", sha256=SHA256):
    address = f"https://127.0.0.1:{server.server_port}/{behaviour}"
    return DataFile("set/part.bin", address, sha256, len(CONTENT))


def files_left():
    return sorted(path.name for path in cache_folder().rglob("*") if path.is_file())


def test_a_download_lands_in_the_cache_under_its_path(server, capfd):
    path = fetch(data_file(server))
    assert path == cache_folder() / "set" / "part.bin"
    assert path.read_bytes() == CONTENT
    assert files_left() == ["part.bin"]
    assert capfd.readouterr() == ("", "")


def test_progress_goes_from_nothing_to_everything(server):
    steps = []
    fetch(data_file(server), progress=lambda *step: steps.append(step))
    names, done, totals = zip(*steps, strict=True)
    assert set(names) == {"part.bin"}
    assert set(totals) == {len(CONTENT)}
    assert done[0] == 0
    assert list(done) == sorted(done)
    assert len(set(done)) > 2
    assert done[-1] == len(CONTENT)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_download_keeps_to_the_umask(server, umask):
    before = os.umask(umask)
    try:
        path = fetch(data_file(server))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("behaviour", ["breaks-off-once", "damaged-once"])
def test_a_download_that_fails_once_is_tried_again(server, behaviour):
    steps = []
    path = fetch(data_file(server, behaviour), progress=lambda *step: steps.append(step[1]))
    assert path.read_bytes() == CONTENT
    assert server.asked == [f"/{behaviour}"] * 2
    assert files_left() == ["part.bin"]
    assert steps.count(0) == 2
    assert steps[-1] == len(CONTENT)


def test_a_wrong_checksum_is_refused_and_the_file_removed(server):
    file = data_file(server, sha256="0" * 64)
    with pytest.raises(DataError, match="Deleted download") as error:
        fetch(file)
    message = str(error.value)
    assert message.startswith(f"{file.address}: ")
    assert "\n" not in message
    assert f"expected {'0' * 64} but got {SHA256}" in message
    assert files_left() == []


def test_the_name_appears_only_when_the_file_is_complete(server):
    seen = []
    fetch(data_file(server), progress=lambda *_: seen.append(files_left()))
    assert len(seen) > 2
    assert all("part.bin" not in names for names in seen)


def test_an_interruption_leaves_nothing(server):
    def interrupt(name, done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(data_file(server), progress=interrupt)
    assert files_left() == []


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_connection_that_always_breaks_off_is_reported_and_leaves_nothing(server, sha256):
    with pytest.raises(UnavailableError, match=r"IncompleteRead\(524288 bytes read, 524288 more"):
        fetch(data_file(server, "breaks-off", sha256))
    assert len(server.asked) == 3
    assert files_left() == []


def test_offline_is_one_line_with_address_and_folder():
    with socket.socket() as closed:
        # Taken, and nobody listens on it: no other process answers there.
        closed.bind(("127.0.0.1", 0))
        file = DataFile("set/part.bin", f"https://127.0.0.1:{closed.getsockname()[1]}/file")
        with pytest.raises(UnavailableError) as error:
            fetch(file)
    message = str(error.value)
    assert message == (
        "`set/part.bin` is not here and could not be downloaded ([Errno 111] Connection refused). "
        f"Get {file.address} and put it in {cache_folder() / 'set'} as part.bin."
    )
    assert files_left() == []


def test_offline_names_the_data_folder_if_there_is_one(server, tmp_path, monkeypatch):
    monkeypatch.setenv("GAPGNN_DATA", str(tmp_path))
    with pytest.raises(UnavailableError, match=f"put it in {tmp_path}/set as part.bin"):
        fetch(data_file(server, "missing"))


def test_an_address_that_answers_no_is_reported_with_its_answer(server):
    with pytest.raises(UnavailableError, match="404 Client Error: Not Found"):
        fetch(data_file(server, "missing"))
    assert files_left() == []


def test_a_cache_that_cannot_be_written_is_named(server, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match=f"Not a directory: '{tmp_path}/file/gapgnn'"):
        fetch(data_file(server))


def test_a_redirect_to_https_is_followed(server):
    assert fetch(data_file(server, "secure-redirect")).read_bytes() == CONTENT
    assert server.asked == ["/secure-redirect", "/file"]


def test_a_redirect_to_plain_http_is_refused_at_once(server):
    plain = rf"redirects to http://127\.0\.0\.1:{server.server_port}/file, which is not HTTPS"
    with pytest.raises(UnavailableError, match=plain):
        fetch(data_file(server, "insecure-redirect"))
    assert server.asked == ["/insecure-redirect"]
    assert files_left() == []


@pytest.mark.parametrize("scheme", ["http", "ftp", "file", "sftp", "doi"])
def test_other_addresses_than_https_are_refused(server, scheme):
    file = DataFile("set/part.bin", f"{scheme}://127.0.0.1:{server.server_port}/file")
    with pytest.raises(InputError, match="`address` must begin with https://"):
        fetch(file)
    assert server.asked == []


def test_a_certificate_nobody_vouches_for_is_refused(server, monkeypatch):
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(data_file(server))
    assert server.asked == []
    assert files_left() == []


def test_a_file_that_is_here_is_not_fetched(monkeypatch):
    monkeypatch.setattr(download, "fetch", lambda *_, **__: pytest.fail("fetched"))
    path = cache_folder() / "set" / "part.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert obtain(DataFile("set/part.bin", "https://127.0.0.1:1/", SHA256)) == path


def test_a_file_that_is_here_is_checked_too_but_never_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("GAPGNN_DATA", str(tmp_path))
    path = tmp_path / "part.bin"
    path.write_bytes(b"something else")
    with pytest.raises(DataError, match="must have the SHA-256") as error:
        obtain(DataFile("part.bin", "https://127.0.0.1:1/", SHA256))
    assert str(path) in str(error.value)
    assert path.exists()


def test_the_cache_follows_the_xdg_rules(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache" / "gapgnn"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" / "gapgnn"


def test_a_data_folder_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("GAPGNN_DATA", "/no/such/folder")
    with pytest.raises(InputError, match="`GAPGNN_DATA` must be an existing folder"):
        data_folder()
