"""What can be sent, and to whom: nothing a caller passes can change how a request is framed."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from providers.origin import Heads, Origin
from providers.transport import Transport
from tests.transport.scripted import OK, Upstream, always, post

ORIGIN = Origin("http", "engine", 8000)


@pytest.mark.parametrize(
    ("url", "origin", "prefix", "authority"),
    [
        ("http://engine:8000", Origin("http", "engine", 8000), "", "engine:8000"),
        ("http://Engine/", Origin("http", "engine", 80), "", "engine"),
        ("https://api.example.com/v1/", Origin("https", "api.example.com", 443), "/v1", "api.example.com"),
        ("https://h:80/a/b", Origin("https", "h", 80), "/a/b", "h:80"),
        ("http://[::1]:9001/x", Origin("http", "::1", 9001), "/x", "[::1]:9001"),
        ("https://[fe80::1]", Origin("https", "fe80::1", 443), "", "[fe80::1]"),
    ],
)
def test_a_base_url_is_an_origin_and_a_prefix(url: str, origin: Origin, prefix: str, authority: str) -> None:
    assert Origin.parse(url) == (origin, prefix)
    assert origin.authority == authority
    assert str(origin) == f"{origin.scheme}://{authority}"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "engine:8000",
        "ftp://engine",
        "http://",
        "http://user:pw@engine",
        "http://engine?x=1",
        "http://engine/#a",
        "http://engine:port",
        "http://engine:99999",
        "http://en gine/",
        "http://engine/a b",
        "http://engine/é",
    ],
)
def test_what_is_no_base_url(url: str) -> None:
    with pytest.raises(ValueError):
        Origin.parse(url)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("", "/", []),
        ("PO ST", "/", []),
        ("GET\r\n", "/", []),
        ("CONNECT", "/", []),
        ("GET", "", []),
        ("GET", "v1", []),
        ("GET", "http://elsewhere/", []),
        ("GET", "/a b", []),
        ("GET", "/a HTTP/1.1\r\nx: y", []),
        ("GET", "/a\n", []),
        ("GET", "/é", []),
        ("GET", "/a#b", []),
        ("GET", "/", [("", "v")]),
        ("GET", "/", [("x y", "v")]),
        ("GET", "/", [("x:", "v")]),
        ("GET", "/", [("x\r\ny", "v")]),
        ("GET", "/", [("x-é", "v")]),
        ("GET", "/", [("x", "v\r\ny: z")]),
        ("GET", "/", [("x", "v\n")]),
        ("GET", "/", [("x", "\rv")]),
        ("GET", "/", [("x", "a\0b")]),
        ("GET", "/", [("x", "€")]),
        ("GET", "/", [("Content-Length", "5")]),
        ("GET", "/", [("transfer-encoding", "chunked")]),
        ("GET", "/", [("Host", "elsewhere")]),
        ("GET", "/", [("connection", "close")]),
        ("GET", "/", [("Accept-Encoding", "gzip")]),
        ("GET", "/", [("proxy-authorization", "x")]),
        ("GET", "/", [("expect", "100-continue")]),
    ],
)
def test_what_cannot_be_sent(method: str, path: str, headers: list[tuple[str, str]]) -> None:
    heads = Heads(ORIGIN)
    for _ in range(2):  # also when something has been remembered
        with pytest.raises(ValueError):
            heads.build(method, path, headers, 3)
        heads.build("GET", "/", [("x", "v")], 0)


def test_a_host_that_would_change_the_request_is_no_origin() -> None:
    with pytest.raises(ValueError):
        Heads(Origin("http", "engine\r\nx: y", 80))


@given(
    st.text(max_size=12),
    st.one_of(st.text(max_size=12), st.text("/\r\n\0 :abc", max_size=12).map(lambda text: "/" + text)),
    st.lists(st.tuples(st.text("xyz-:\r\n ", max_size=8), st.text("ab:\r\n\0é€ ", max_size=12)), max_size=4),
    st.binary(max_size=5),
)
@example("GET", "/", [("x", "a\r"), ("y", "\nb")], b"")
def test_whatever_is_passed_the_head_has_the_lines_meant_or_is_refused(
    method: str, path: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    try:
        head = Heads(ORIGIN).build(method, path, headers, len(body))
    except ValueError:
        return
    lines = head.decode("latin-1").split("\r\n")
    assert head.count(b"\n") == head.count(b"\r") == len(lines) - 1
    assert lines[0] == f"{method} {path} HTTP/1.1"
    assert lines[1:3] == ["host: engine:8000", "accept-encoding: identity"]
    assert lines[3 : 3 + len(headers)] == [f"{name}: {value}" for name, value in headers]
    assert lines[-2:] == ["", ""]
    rest = lines[3 + len(headers) : -2]
    assert rest in ([f"content-length: {len(body)}"], [] if not body else None)


def test_memory_of_paths_and_names_is_bounded() -> None:
    heads = Heads(ORIGIN)
    for number in range(2000):
        head = heads.build("GET", f"/{number}", [(f"x-{number}", "v")], 0)
        assert head.startswith(b"GET /%d " % number)
    assert len(heads._starts) <= 256
    assert len(heads._vetted) <= 256


@pytest.mark.asyncio
async def test_a_refused_request_costs_no_connection() -> None:
    async with Upstream(always(OK)) as upstream, Transport() as transport:
        await post(transport, upstream.origin)
        with pytest.raises(ValueError):
            await post(transport, upstream.origin, headers=[("x", "a\r\nb: c")])
        answer = await post(transport, upstream.origin)
        assert answer.reused
        assert len(upstream.peers[0].requests) == 2
