"""Addresses a config may name: plain http(s) bases, and never a metadata service in any disguise."""

from __future__ import annotations

import pytest

from gateway import urls


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:8000",
        "https://api.example.com/openai/v1",
        "http://[2001:db8::1]:8000/v1",
        "http://vllm-0.vllm.default.svc.cluster.local:8000",
        "http://localhost",
        "http://metadata-store.example.com",
        "http://1.2.3.4.example.com",
    ],
)
def test_good(url: str) -> None:
    assert urls.parse_url(url).hostname


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.0.1",
        "2852039166",  # the same address as one number
        "0xa9fea9fe",
        "0xa9.0xfe.0xa9.0xfe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "metadata.google.internal",
        "METADATA.google.internal.",
        "metadata",
        "instance-data",
        "100.100.100.200",
    ],
)
def test_metadata_addresses(host: str) -> None:
    with pytest.raises(ValueError, match="never an upstream"):
        urls.parse_url(f"http://{host}/v1")
    assert urls.is_metadata_host(host.strip("[]"))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.0.1",
        "ftp://h",
        "file:///etc/passwd",
        "http://",
        "http://:80",
        "http://h:0",
        "http://h:65536",
        "http://h:x",
        "http://u@h",
        "http://u:p@h",
        "http://@h",
        "http://h?x",
        "http://h/?",
        "http://h#x",
        "http://h h",
        "http://h\n",
        "http://h\x00",
        "http://h\t/v1",
        "unix:///run/x.sock",
        "http://[::1",
    ],
)
def test_bad(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        urls.parse_url(url)
    # What is wrong is said without the URL, which may hold a secret.
    assert not url or url not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("example.com", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert urls.is_loopback_host(host) == loopback


def test_the_same_server_in_two_spellings() -> None:
    same = ["http://H.example", "http://h.example:80", "http://h.example/", "http://h.example:80/"]
    assert len({urls.address_key(url) for url in same}) == 1
    different = ["http://h.example", "https://h.example", "http://h.example:81", "http://h.example/a"]
    assert len({urls.address_key(url) for url in different}) == 4
