from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.telemetry import connection

from tests.loader.telemetry.conftest import Publish
from tests.loader.telemetry.servers import GoodServer, Wire, until
from tests.loader.telemetry.sources import CountingSource
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, with its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=here"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(path.with_name("c"))]
    subprocess.run([*command.split(), *files], check=True, capture_output=True, timeout=PATIENCE)
    with path.open("ab") as both:
        both.write(path.with_name("c").read_bytes())
    return path


@pytest.fixture
def secure(certificate: Path) -> Iterator[GoodServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    connection._tls_context.cache_clear()
    server = GoodServer(tls=context)
    yield server
    server.stop()
    connection._tls_context.cache_clear()


def test_it_publishes_over_tls(
    secure: GoodServer, certificate: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    source = CountingSource()
    publisher = publish(source, secure.url)
    source.happen(200, reason="x" * 16000)  # more than a TLS record and than the socket's buffer
    until(lambda: secure.loaders and len(secure.only.events) == 200)
    secure.stop()
    secure.start()
    until(lambda: secure.greeted == 2)
    publisher.close()
    assert secure.only.said_goodbye and secure.only.holes == []


def test_a_wire_that_breaks_during_the_tls_handshake_leaves_no_hole(
    secure: GoodServer, certificate: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    lengths = iter([1, 100, 500, 700, 900, 1100, 1300])
    wire = Wire(secure.port, lambda: (1 << 40, next(lengths, 1 << 40)))
    try:
        publisher = publish(CountingSource(), wire.url.replace("http:", "https:"))
        until(lambda: secure.loaders and len(secure.only.snapshots) > 20)
        publisher.close()
    finally:
        wire.stop()
    assert secure.only.said_goodbye and secure.only.holes == []


def test_a_certificate_that_nobody_vouches_for_is_refused_and_gets_no_token(
    secure: GoodServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    source = CountingSource()
    publish(source, secure.url)
    until(lambda: "certificate" in caplog.text.lower())
    assert "TLS failed" in caplog.text and secure.tokens == []
    taken = source.count
    until(lambda: source.count > taken)
