"""Who is let in, from where, and to what."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from penstock_dashboard.security.buckets import TokenBucket
from penstock_dashboard.security.hosts import Hosts, is_loopback, split_host, split_origin
from penstock_dashboard.security.links import Links
from penstock_dashboard.security.tokens import Keyring, Token, TokenFile, UnusableTokenFile, load, save
from penstock_dashboard.settings import Limits, Retention, Settings
from penstock_dashboard.store import Store
from penstock_dashboard.store.sqlite import Sqlite
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.backend.harness import BRISK, Address, FakeLoader, Running, serving, until

# ------------------------------------------------------------------------------------------ scopes × routes

ROUTES = {
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): None,
    ("GET", "/api/openapi.json"): None,
    ("GET", "/metrics"): "view",
    ("GET", "/api/status"): "view",
    ("GET", "/api/alerts"): "view",
    ("GET", "/api/loaders"): "view",
    ("GET", "/api/loaders/scoped:0:train"): "view",
    ("GET", "/api/loaders/scoped:0:train/history"): "view",
    ("GET", "/api/loaders/scoped:0:train/events"): "view",
    ("GET", "/api/loaders/scoped:0:train/predictions"): "view",
    ("GET", "/api/loaders/scoped:0:train/quarantine"): "view",
    ("GET", "/api/loaders/scoped:0:train/commands"): "view",
    ("GET", "/api/runs"): "view",
    ("GET", "/api/runs/changes"): "view",
    ("GET", "/api/runs/scoped/commands"): "view",
    ("GET", "/api/runs/scoped/report"): "view",
    ("GET", "/api/commands/none"): "view",
    ("GET", "/api/compare?a=nobody&b=none"): "view",
    ("POST", "/api/session/links"): "any",
    ("POST", "/api/loaders/scoped:0:train/commands"): "control",
    ("POST", "/api/runs/scoped/commands"): "control",
    ("PUT", "/api/runs/scoped/place"): "control",
    ("DELETE", "/api/runs/none"): "control",
    ("WS", "/ws/live"): "view",
    ("WS", "/ws/publish"): "publish",
}
BODIES = {"POST": {"action": "pause"}, "PUT": {"place": "pinned"}}
TOKENS = {
    "local": {"publish", "view", "control"},
    "viewer": {"view"},
    "publisher": {"publish"},
    "operator": {"control"},
    "wrong": set[str](),
    None: set[str](),
}


def status(server: Address, method: str, path: str, headers: dict[str, str]) -> int:
    if method == "WS":
        try:
            with server.websocket(path, None, headers=headers):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code
    with server.http(None, headers=headers) as client:
        return client.request(method, path, json=BODIES.get(method)).status_code


@pytest.fixture(scope="module")
def scoped(server: Running) -> Iterator[FakeLoader]:
    with server.loader("scoped") as loader:
        yield loader


@pytest.mark.usefixtures("scoped")
@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_each_scope_against_each_route(server: Running, method: str, path: str, name: str | None) -> None:
    needed = ROUTES[method, path]
    secret = {**server.secrets, "wrong": "token-for-everythinG"}.get(name or "")
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    found = status(server, method, path, headers)
    if needed is None or needed in TOKENS[name] or (needed == "any" and TOKENS[name]):
        assert found in ({101} if method == "WS" else {200, 202, 404})
        assert found != 404 or path.endswith("none")
    else:
        assert found == (401 if name in (None, "wrong") else 403)


def test_every_route_of_the_description_is_in_the_table(server: Running) -> None:
    described = server.get("/api/openapi.json")["paths"]
    patterns = {path.partition("?")[0].replace("scoped:0:train", "{loader}") for _, path in ROUTES}
    for example, pattern in (
        ("runs/scoped", "runs/{run}"),
        ("runs/none", "runs/{run}"),
        ("commands/none", "commands/{command}"),
    ):
        patterns = {path.replace(example, pattern) for path in patterns}
    assert set(described) - {"/api/session"} <= patterns


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Basic dG9rZW4=",
        "token-for-everything",
        "Bearer token-for-everything x",
        "Bearer \xff\xfe",
    ],
)
def test_malformed_authorization_is_refused(server: Running, header: str) -> None:
    with server.http(None) as client:
        answer = client.get("/api/loaders", headers=[(b"authorization", header.encode("latin-1"))])
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_token_in_the_address_is_not_accepted(server: Running) -> None:
    for name in ("token", "access_token", "key"):
        assert status(server, "GET", f"/api/loaders?{name}={server.secrets['local']}", {}) == 401
        assert status(server, "WS", f"/ws/live?{name}={server.secrets['local']}", {}) == 401


def test_read_only_refuses_even_the_most_powerful(folder: Path) -> None:
    with serving(Settings(read_only=True, timing=BRISK), folder) as server, server.loader() as loader:
        with server.http() as client:
            answer = client.post(f"/api/loaders/{loader.id}/commands", json={"action": "pause"})
            assert answer.status_code == 403
            assert answer.json()["type"].endswith("read-only")
            session = client.get("/api/session").json()
        assert session["read_only"] and "control" not in session["scopes"]


# ------------------------------------------------------------------------------------------------- sessions


def sign_in(client: httpx.Client, server: Address, name: str = "local") -> httpx.Response:
    """As our own page does: it keeps its half of the session and sends it along."""
    answer = client.post("/api/session", json={"token": server.secrets[name]})
    client.headers["X-Penstock-Page"] = answer.json().get("page", "")
    return answer


def test_a_browser_signs_in_and_out(server: Running) -> None:
    with server.http(None) as client:
        assert client.get("/api/session").status_code == 401
        answer = sign_in(client, server)
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age="):
            assert part.lower() in cookie.lower()
        assert server.secrets["local"] not in cookie
        assert client.get("/api/session").json()["scopes"] == ["publish", "view", "control"]
        assert client.get("/api/loaders").status_code == 200
        stolen = dict(client.cookies)
        page = client.headers["X-Penstock-Page"]
        origin = {"Cookie": "; ".join(f"{k}={v}" for k, v in stolen.items()), "Origin": server.url}
        assert status(server, "WS", "/ws/live", {**origin, "X-Penstock-Page": page}) == 101
        assert client.delete("/api/session").status_code == 204
        assert client.get("/api/loaders").status_code == 401
        client.cookies.update(stolen)
        assert client.get("/api/loaders").status_code == 401, "the session has ended, not only the cookie"


def test_a_session_has_its_tokens_scopes(server: Running) -> None:
    with server.http(None) as client, server.loader("session") as loader:
        sign_in(client, server, "viewer")
        assert client.get("/api/loaders").status_code == 200
        answer = client.post(f"/api/loaders/{loader.id}/commands", json={"action": "pause"})
        assert answer.status_code == 403


def test_a_session_survives_a_restart_but_not_its_token(folder: Path) -> None:
    with serving(Settings(timing=BRISK), folder) as server, server.http(None) as client:
        page = sign_in(client, server, "viewer").json()["page"]
        (value,) = client.cookies.values()
    with serving(Settings(timing=BRISK), folder) as server:
        cookie = {f"penstock-{server.port}": value}
        half = {"X-Penstock-Page": page}
        with server.http(None, cookies=cookie, headers=half) as client, server.viewer("viewer") as viewer:
            assert client.get("/api/loaders").status_code == 200
            path = folder / "tokens.json"
            content = load(path)
            save(path, TokenFile(content.key, tuple(t for t in content.tokens if t.name != "viewer")))
            until(lambda: client.get("/api/loaders").status_code == 401)
            with pytest.raises(ConnectionClosed):  # and what is open is closed
                while True:
                    viewer.next()


@pytest.mark.parametrize(
    "change", ["", "x", "6c6f63616c.99999999999.00.00", "....", "ü", "6c6f63616c.1e9.0.0", "A" * 5000]
)
def test_forged_cookies_are_refused(server: Running, change: str) -> None:
    cookie = f"penstock-{server.port}={change}".encode()
    with server.http(None) as client:
        assert client.get("/api/loaders", headers=[(b"cookie", cookie)]).status_code == 401


def test_changing_one_letter_of_a_cookie_breaks_it(server: Running) -> None:
    with server.http(None) as client:
        sign_in(client, server)
        ((name, value),) = client.cookies.items()
        for place in range(0, len(value), 7):
            letter = "0" if value[place] != "0" else "1"
            forged = value[:place] + letter + value[place + 1 :]
            page = {"X-Penstock-Page": client.headers["X-Penstock-Page"]}
            with server.http(None, cookies={name: forged}, headers=page) as thief:
                assert thief.get("/api/loaders").status_code == 401


def test_wrong_tokens_are_slowed_down_and_keep_no_good_one_out(folder: Path) -> None:
    settings = Settings(timing=BRISK, limits=Limits(login_rate=0.01))
    with serving(settings, folder) as server, server.http(None) as client:
        for _ in range(10):
            assert client.post("/api/session", json={"token": "guess"}).status_code == 401
        answer = client.post("/api/session", json={"token": "guess"})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert sign_in(client, server).status_code == 200, "from the same address"


def test_a_cookie_is_worth_nothing_without_the_pages_half(server: Running) -> None:
    """Browsers send it to every port of the host: whoever listens there has it, and no more."""
    with server.http(None) as client:
        page = sign_in(client, server).json()["page"]
        cookies = dict(client.cookies)
    with server.http(None, cookies=cookies) as thief:
        assert thief.get("/api/loaders").status_code == 401
        assert thief.get("/api/session").status_code == 401
        assert thief.get("/api/loaders", headers={"X-Penstock-Page": page[::-1]}).status_code == 401
        assert thief.delete("/api/session").status_code == 204
    cookie = {"Cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())}
    assert status(server, "WS", "/ws/live", cookie) == 401
    with server.websocket("/ws/live", None, headers=cookie, subprotocols=["penstock", f"penstock-page.{page}"]) as ours:
        assert ours.subprotocol == "penstock", "the session holds: nobody else could end it"
    with server.http(None, headers={"X-Penstock-Page": page}) as half:
        assert half.get("/api/loaders").status_code == 401, "nor is the half of any use alone"


def test_a_link_signs_in_once_with_the_scopes_of_whoever_made_it(server: Running) -> None:
    with server.http("viewer") as viewer, server.http(None) as browser:
        link = viewer.post("/api/session/links").json()
        assert server.secrets["viewer"] not in str(link)
        once = {"once": link["fragment"].removeprefix("#once=")}
        assert browser.post("/api/session", json=once).json()["session"]["scopes"] == ["view"]
        assert browser.post("/api/session", json=once).status_code == 401


def test_links_are_few_and_do_not_live_for_ever(folder: Path) -> None:
    async def check() -> None:
        now = 0.0
        token = Token("t", "s", ("view",))
        save(folder / "tokens.json", TokenFile("key", (token,)))
        store = Store(Sqlite(None, Retention()), 0.0, Limits(links=2))
        await store.start()
        links = Links(store, Keyring(folder / "tokens.json"), clock=lambda: now)
        codes = [await links.make(token, lifetime=10.0) for _ in range(3)]
        assert await links.use(codes[0]) is None, "only two wait"
        now = 11.0
        assert await links.use(codes[1]) is None, "it is too old"
        now = 5.0
        assert await links.use(codes[2]) == token
        assert await links.use(codes[2]) is None
        await store.stop()

    asyncio.run(check())


# ----------------------------------------------------------------------------------------- Host and Origin

BAD_HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "169.254.169.254",
    "[::2]",
    "0.0.0.0",
]
BAD_HOSTS += [
    "[::1",
    "a b",
    "127.0.0.1:99999",
    "127.0.0.1:80:80",
    "user@localhost",
    "",
    "localhost/x",
    "LOCALHOST.evil",
]


def handshake(host: str) -> dict[str, str]:
    return {
        "Host": host,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_foreign_host_is_refused_on_http_and_websocket(server: Running, host: str) -> None:
    with server.http() as client:
        for path, headers in (
            ("/api/loaders", {"Host": host}),
            ("/healthz", {"Host": host}),
            ("/ws/live", handshake(host)),
        ):
            assert client.get(path, headers=headers).status_code in (400, 421), path


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "127.0.0.1:1234",
        "[::1]:8787",
        "LOCALHOST:80",
        "localhost.",
        "[0:0:0:0:0:0:0:1]",
    ],
)
def test_loopback_by_any_name_and_port_is_ours(server: Running, host: str) -> None:
    with server.http() as client:
        assert client.get("/api/loaders", headers={"Host": host}).status_code == 200


ORIGINS = [
    "http://evil.example",
    "null",
    "https://127.0.0.1:{port}",
    "http://127.0.0.1",
    "http://127.0.0.1:{other}",
]
ORIGINS += [
    "http://localhost:{port}",
    "file://",
    "http://127.0.0.1:{port}.evil.example",
    "http://127.0.0.1:{port}/",
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_foreign_origin_is_refused_on_http_and_websocket(server: Running, origin: str) -> None:
    headers = {"Origin": origin.format(port=server.port, other=server.port + 1)}
    with server.http() as client:
        assert client.post("/api/session", json={"token": "x"}, headers=headers).status_code == 403
        assert client.get("/api/loaders", headers=headers).status_code == 403
    assert status(server, "WS", "/ws/live", headers) == 403
    assert status(server, "WS", "/ws/publish", headers) == 403


def test_our_own_origin_is_allowed(server: Running) -> None:
    headers = {"Origin": server.url, "Authorization": f"Bearer {server.secrets['local']}"}
    assert status(server, "GET", "/api/loaders", headers) == 200
    assert status(server, "WS", "/ws/live", headers) == 101


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_unsafe_requests_from_other_sites_are_refused(server: Running, site: str) -> None:
    headers = {"Sec-Fetch-Site": site, "Authorization": f"Bearer {server.secrets['local']}"}
    with server.loader("fetch") as loader, server.http(None, headers=headers) as client:
        assert client.post(f"/api/loaders/{loader.id}/commands", json={"action": "pause"}).status_code == 403
        assert client.delete("/api/session").status_code == 403
        assert client.get("/").status_code == 200, "a link from elsewhere may lead here"
    assert status(server, "WS", "/ws/live", headers) == 403


def test_no_cors(server: Running) -> None:
    with server.http(None) as client:
        preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        answers = [client.options("/api/loaders", headers=preflight), client.get("/healthz")]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/loaders", "/api/nowhere", "/metrics"])
def test_every_answer_has_the_protecting_headers(server: Running, path: str) -> None:
    with server.http(None) as client:
        headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe-eval" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers
    if path.startswith("/api"):
        assert headers["cache-control"] == "no-store"


def test_a_public_address_and_a_prefix(folder: Path) -> None:
    settings = Settings(
        public_url="https://ml.example/penstock",
        root_path="/penstock",
        allow_hosts=("backend",),
        timing=BRISK,
    )
    with serving(settings, folder) as server:
        local = {"Authorization": f"Bearer {server.secrets['local']}"}
        public = {
            **local,
            "Host": "ml.example",
            "Origin": "https://ml.example",
            "Sec-Fetch-Site": "same-origin",
        }
        for path in ("/api/loaders", "/penstock/api/loaders"):  # the proxy may strip the prefix or not
            assert status(server, "GET", path, public) == 200
        assert status(server, "WS", "/penstock/ws/live", {**local, "Origin": "https://ml.example"}) == 101
        assert status(server, "GET", "/api/loaders", {**local, "Host": "backend:8787"}) == 200
        assert status(server, "GET", "/api/loaders", {**public, "Origin": "http://ml.example"}) == 403
        with server.http(None) as client:
            assert client.get("/penstock").headers["location"] == "/penstock/"
            cookie = sign_in(client, server).headers["set-cookie"]
            assert cookie.startswith("__Host-") and "Secure" in cookie and "Path=/;" in cookie
        with server.loader() as loader, server.http() as client:
            answer = client.post(f"/penstock/api/loaders/{loader.id}/commands", json={"action": "pause"})
            assert answer.headers["location"].startswith("/penstock/api/commands/")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("localhost", ("localhost", None)),
        ("LocalHost.:80", ("localhost", 80)),
        ("[::1]:8787", ("::1", 8787)),
        ("[0:0::1]", ("::1", None)),
        ("::1", None),
        ("[::1]x", None),
        ("[nonsense]", None),
        ("a:b", None),
        ("a:65536", None),
        ("a,b", None),
        ("a\n", None),
    ],
)
def test_host_headers_are_taken_apart(text: str, parts: Any) -> None:
    assert split_host(text) == parts


def test_origins_are_taken_apart() -> None:
    assert split_origin("http://[::1]:8787") == ("http", "::1", 8787)
    assert split_origin("https://a.example") == ("https", "a.example", 443)
    for bad in ("null", "", "http:/x", "ftp://x", "http://", "http://a/b", "http://a@b"):
        assert split_origin(bad) is None


def test_addresses_are_allowed_only_where_the_server_listens_to_them() -> None:
    assert not Hosts("127.0.0.1").allows("10.0.0.5:8787")
    assert Hosts("0.0.0.0").allows("10.0.0.5:8787")
    assert Hosts("::").allows("[fe80::1]:8787")
    assert not Hosts("0.0.0.0").allows("evil.example:8787")
    assert Hosts("0.0.0.0", more=("backend",)).allows("backend:8787")
    assert is_loopback("127.8.8.8") and is_loopback("::1") and not is_loopback("0.0.0.0")


# -------------------------------------------------------------------------------------------------- tokens


def test_the_first_start_makes_private_tokens(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tokens.json"
    content = load(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {token.name: token.scopes for token in content.tokens} == {
        "local": ("publish", "view", "control"),
        "viewer": ("view",),
    }
    assert all(len(token.token) >= 43 for token in content.tokens), "256 bits"
    assert load(path) == content, "the second start finds the same"


def test_a_file_that_others_can_read_is_made_private(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens.json"
    load(path)
    path.chmod(0o644)
    load(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "could be read by others" in caplog.text


def test_a_token_file_that_makes_no_sense_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    for content in ("{", "[]", '{"key":"k","tokens":[{"name":"x","token":"y","scopes":["root"]}]}'):
        path.write_text(content)
        with pytest.raises(UnusableTokenFile):
            Keyring(path)
    save(path, TokenFile("key", ()))
    with pytest.raises(UnusableTokenFile):
        Keyring(path)


def test_the_environment_can_set_the_local_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    keyring = Keyring(path, "from-the-environment")
    assert keyring.local == Token("local", "from-the-environment", ("publish", "view", "control"))
    assert "from-the-environment" not in path.read_text()
    assert keyring.find("from-the-environment") == keyring.local


def test_buckets_fill_with_time() -> None:
    now = [0.0]
    bucket = TokenBucket(2.0, 1.0, clock=lambda: now[0])
    assert [bucket.take(), bucket.take()] == [0.0, 0.0]
    assert bucket.take() == pytest.approx(1.0)
    now[0] = 1.0
    assert bucket.take() == 0.0
    assert bucket.owe(3.0) == pytest.approx(3.0)
    assert msgspec.json.encode(bucket.wait() > 0) == b"true"
