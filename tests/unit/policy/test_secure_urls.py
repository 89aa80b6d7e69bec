"""Which URLs may be sent secrets."""

from __future__ import annotations

import pytest

from app.policy.secure_urls import why_not_secure


@pytest.mark.parametrize(
    "url",
    [
        *("https://login.example.com", "https://login.example.com:8443/realms/main"),
        *("http://localhost:8000", "http://127.0.0.1:9/x", "http://[::1]:80"),
    ],
)
def test_https_and_this_machine_are_secure(url: str) -> None:
    assert why_not_secure(url) == ""


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://login.example.com", "https"),
        ("http://localhost.example.com", "https"),
        ("login.example.com", "as https"),
        ("ftp://login.example.com", "as https"),
        ("https://", "as https"),
        ("https://exämple.com", "as https"),
        ("https://user:word@login.example.com", "no user"),
        ("https://login.example.com?x=1", "query"),
        ("https://login.example.com#x", "fragment"),
        ("https://login.example.com:x", "not a URL"),
        ("https://[login", "not a URL"),
    ],
)
def test_others_are_not(url: str, why: str) -> None:
    assert why in why_not_secure(url)
