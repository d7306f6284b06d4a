"""Downloads: HTTPS only, resumed, checked, and in place only when complete."""

import contextlib
import hashlib
import http.client
import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gapgnn.errors import DataError, InputError, UnavailableError
from gapgnn.graph.datasets import download
from gapgnn.graph.datasets.download import (
    DataFile,
    cache_folder,
    data_folder,
    fetch,
    https_opener,
    obtain,
)

CONTENT = bytes(range(256)) * 4096  # 1 MiB: several blocks
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """A file server whose manners depend on the path asked for."""

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        manner = self.path.strip("/")
        if manner == "missing":
            self.send_error(404)
        elif manner == "insecure-redirect":
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:1/file")
            self.end_headers()
        elif manner == "secure-redirect":
            self.send_response(302)
            self.send_header("Location", f"https://127.0.0.1:{self.server.server_port}/file")
            self.end_headers()
        elif asked and manner != "ignores-range" and start >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif asked and manner == "wrong-range":
            self._send(206, CONTENT, content_range=f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}")
        elif asked and manner != "ignores-range":
            span = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
            self._send(206, CONTENT[start:], content_range=span)
        elif manner == "breaks-off":
            self._send(200, CONTENT[: len(CONTENT) // 2], length=len(CONTENT))
        else:
            self._send(200, CONTENT)

    def _send(self, status, body, *, content_range=None, length=None):
        self.send_response(status)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.send_header("Content-Length", str(length or len(body)))
        self.end_headers()
        # Noted first: the client may be done before this thread runs again after the write.
        self.server.sent.append(len(body))
        # The client may have been interrupted, as some tests want.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def log_message(self, *args):
        pass


class InTheClear(urllib.request.HTTPSHandler):
    """Test only: carries https:// addresses without TLS, so that no certificate is needed."""

    handler_order = 100

    def https_open(self, req):
        return self.do_open(http.client.HTTPConnection, req)


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.sent = [], []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def opener():
    opener = https_opener()
    opener.add_handler(InTheClear())
    return opener


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("GAPGNN_DATA", raising=False)


def data_file(server, manner="file", sha256=SHA256):
    address = f"https://127.0.0.1:{server.server_port}/{manner}"
    return DataFile("set/part.bin", address, sha256, len(CONTENT))


def part_file():
    folder = cache_folder() / "set"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "part.bin.part"


def files_left():
    return sorted(path.name for path in cache_folder().rglob("*") if path.is_file())


def test_a_download_lands_in_the_cache_under_its_path(server, opener):
    path = fetch(data_file(server), opener=opener)
    assert path == cache_folder() / "set" / "part.bin"
    assert path.read_bytes() == CONTENT
    assert files_left() == ["part.bin"]


def test_progress_goes_from_nothing_to_everything(server, opener):
    steps = []
    fetch(data_file(server), opener=opener, progress=lambda *step: steps.append(step))
    names, done, totals = zip(*steps, strict=True)
    assert set(names) == {"part.bin"}
    assert set(totals) == {len(CONTENT)}
    assert done[0] == 0
    assert list(done) == sorted(done)
    assert done[-1] == len(CONTENT)


@pytest.mark.parametrize("here", [1, len(CONTENT) // 2, len(CONTENT) - 1])
def test_a_broken_download_is_resumed_where_it_broke_off(server, opener, here):
    part_file().write_bytes(CONTENT[:here])
    path = fetch(data_file(server), opener=opener)
    assert path.read_bytes() == CONTENT
    assert server.asked == [f"bytes={here}-"]
    assert server.sent == [len(CONTENT) - here]
    assert files_left() == ["part.bin"]


def test_a_server_that_ignores_the_range_is_read_from_the_start(server, opener):
    part_file().write_bytes(b"x" * 1000)
    assert fetch(data_file(server, "ignores-range"), opener=opener).read_bytes() == CONTENT


def test_a_server_that_sends_another_range_is_refused(server, opener):
    part_file().write_bytes(CONTENT[:10])
    with pytest.raises(UnavailableError, match="another part than was asked for"):
        fetch(data_file(server, "wrong-range", sha256=None), opener=opener)
    assert part_file().read_bytes() == CONTENT[:10]


def test_a_part_that_is_already_complete_is_not_fetched_again(server, opener):
    part_file().write_bytes(CONTENT)
    assert fetch(data_file(server), opener=opener).read_bytes() == CONTENT
    assert server.sent == []
    assert files_left() == ["part.bin"]


def test_a_part_that_is_too_long_is_fetched_from_the_start(server, opener):
    part_file().write_bytes(CONTENT + b"too much")
    assert fetch(data_file(server), opener=opener).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_the_file_removed(server, opener):
    with pytest.raises(
        DataError, match=r"must have the SHA-256 0000.*the download was removed"
    ) as e:
        fetch(data_file(server, sha256="0" * 64), opener=opener)
    assert SHA256 in str(e.value)
    assert files_left() == []


def test_a_damaged_part_is_found_by_the_checksum(server, opener):
    part_file().write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="SHA-256"):
        fetch(data_file(server), opener=opener)
    assert files_left() == []


def test_the_name_appears_only_when_the_file_is_complete(server, opener):
    seen = []
    fetch(data_file(server), opener=opener, progress=lambda *_: seen.append(files_left()))
    assert len(seen) > 2
    assert all(names == ["part.bin.part"] for names in seen)


def test_an_interruption_leaves_only_the_part_and_the_next_try_goes_on(server, opener):
    def interrupt(name, done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(data_file(server), opener=opener, progress=interrupt)
    assert files_left() == ["part.bin.part"]
    here = part_file().stat().st_size
    assert 0 < here < len(CONTENT)
    assert fetch(data_file(server), opener=opener).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={here}-"]


def test_a_connection_that_breaks_off_is_reported_and_resumed(server, opener):
    with pytest.raises(UnavailableError, match="broke off after 524,288 of 1,048,576 bytes"):
        fetch(data_file(server, "breaks-off"), opener=opener)
    assert files_left() == ["part.bin.part"]
    assert fetch(data_file(server, "file"), opener=opener).read_bytes() == CONTENT


def test_offline_is_one_line_with_address_and_folder(server, opener):
    file = data_file(server)
    server.server_close()
    with pytest.raises(UnavailableError) as error:
        fetch(file, opener=opener)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("`set/part.bin` is not here and could not be downloaded (")
    assert f"Get {file.address} and put it in {cache_folder() / 'set'} as part.bin." in message
    assert files_left() == []


def test_offline_names_the_data_folder_if_there_is_one(server, opener, tmp_path, monkeypatch):
    monkeypatch.setenv("GAPGNN_DATA", str(tmp_path))
    with pytest.raises(UnavailableError, match=f"put it in {tmp_path}/set as part.bin"):
        fetch(data_file(server, "missing"), opener=opener)


def test_an_address_that_answers_no_is_reported_with_its_answer(server, opener):
    with pytest.raises(UnavailableError, match="HTTP Error 404"):
        fetch(data_file(server, "missing"), opener=opener)
    assert files_left() == []


def test_a_redirect_to_https_is_followed_and_keeps_the_range(server, opener):
    part_file().write_bytes(CONTENT[:10])
    assert fetch(data_file(server, "secure-redirect"), opener=opener).read_bytes() == CONTENT
    assert server.asked == ["bytes=10-", "bytes=10-"]


def test_a_redirect_to_plain_http_is_refused(server, opener):
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:1/file, which is not HTTPS"):
        fetch(data_file(server, "insecure-redirect"), opener=opener)


@pytest.mark.parametrize("scheme", ["http", "ftp", "file"])
def test_other_addresses_than_https_are_refused(server, scheme):
    file = DataFile("set/part.bin", f"{scheme}://127.0.0.1:{server.server_port}/file")
    with pytest.raises(InputError, match="`address` must begin with https://"):
        fetch(file)
    assert server.asked == []


@pytest.mark.parametrize("scheme", ["http", "ftp", "file", "data"])
def test_the_opener_itself_knows_nothing_but_https(server, scheme):
    address = f"{scheme}://127.0.0.1:{server.server_port}/file"
    with pytest.raises(urllib.error.URLError, match=f"unknown url type: {scheme}"):
        https_opener().open(address, timeout=1)
    assert server.asked == []


def test_a_part_that_another_process_is_writing_is_left_alone(server, opener):
    fcntl = pytest.importorskip("fcntl")
    with part_file().open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # even the weakest lock must stop us
        with pytest.raises(UnavailableError, match="being downloaded by another process"):
            fetch(data_file(server), opener=opener)
    assert server.asked == []


@pytest.fixture
def certificate(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    out = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *name, *out], check=True, capture_output=True)
    return key, cert


def test_a_certificate_nobody_vouches_for_is_refused(server, certificate):
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # the refused handshake
    with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(data_file(server))
    assert files_left() == []
    trusting = https_opener(ssl.create_default_context(cafile=str(cert)))
    assert fetch(data_file(server), opener=trusting).read_bytes() == CONTENT


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
