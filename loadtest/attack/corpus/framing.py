"""Requests whose end one server sees elsewhere than another, and what is no HTTP at all."""

from __future__ import annotations

from loadtest.attack.corpus.bodies import body

POST_HEAD = b"POST /applications HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GOOD = body()

#: After ``POST_HEAD``: a body that is not as it was announced; 400.
MISFRAMED: list[bytes] = [
    b"Content-Length: 100\r\n\r\n" + GOOD,
    b"Transfer-Encoding: chunked\r\n\r\nff\r\n" + GOOD,
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + GOOD,
    b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + GOOD,
    b"Transfer-Encoding: chunked\r\n\r\n1;a=\r\n{\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0\r\nno trailer\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 10_000,
    b"Content-Length: 0\r\n\r\n",
    b"\r\n",
]

#: Requests that the parser of heads refuses, with the status.
NOT_HTTP: list[tuple[bytes, int]] = [
    (POST_HEAD + b"Content-Length: -1\r\n\r\n", 400),
    (POST_HEAD + b"Content-Length: 1e3\r\n\r\n", 400),
    (POST_HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
    (POST_HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (POST_HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 400),
    (POST_HEAD + b"Expect: miracles\r\n\r\n", 417),
    (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 414),
    (b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431),
    (b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n", 431),
    (b"GET /healthz HTTP/1.1\r\na: " + b"b" * 100_000 + b"\r\n\r\n", 431),
    (b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", 400),
    (b"GET /healthz HTTP/1.1\r\na\x00b: c\r\n\r\n", 400),
    (b"GET /healthz HTTP/1.1\r\na: b\r\n folded\r\n\r\n", 400),
    (POST_HEAD + b"a: b\r\n folded\r\nContent-Length: 2\r\n\r\n{}", 400),
    (b"GET /applications/\x00 HTTP/1.1\r\n\r\n", 400),
    (b"GET /healthz HTTP/9.9\r\n\r\n", 400),
    (b"GET /healthz\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # a TLS handshake
    (bytes(range(256)) + b"\r\n\r\n", 400),
]

#: Whole heads for a request at ``/echo``; 400, and the connection is closed.
NO_HOST_OR_BARE_LINE_FEED: list[bytes] = [
    b"GET /echo HTTP/1.1\r\n\r\n",
    b"GET /echo HTTP/1.1\r\nAccept: */*\r\n\r\n",
    b"GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /echo HTTP/1.1\nHost: a\n\n",
    b"GET /echo HTTP/1.1\r\nHost: a\n\n",
    b"GET /echo HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    b"GET /echo HTTP/1.1\r\nHost: a\r\nX: b\n\r\n\r\n",
    b"GET /echo HTTP/1.1\nHost: a\r\n\r\n",
]

#: Heads and bodies that a reader in a hurry would misread.
TELLING: list[bytes] = [
    *(b"X: a\r\nX: b", b"X: a\r\nx: b", b"Cookie: a=b\r\nCookie: c=d", b"Host: a\r\nHost: b"),
    *(b"X_Y: a", b"X_Y: a\r\nX-Y: b", b"Content_Length: 5", b"SCRIPT_NAME: /x", b"Script-Name: /x"),
    *(b"X: a\r\n folded", b" folded: a", b": nameless", b"X : a", b"X: \xe9\xff", b"X:\ta \t"),
    *(b"X-Forwarded-Proto: https", b"X-Forwarded-Proto: http", b"X-Forwarded-Ssl: on"),
    b"X-Forwarded-Proto: https\r\nX-Forwarded-Ssl: on",
    b"X-Forwarded-Proto: https\r\nX-Forwarded-Ssl: off",
    b"X-Forwarded-Proto: http\r\nX-Forwarded-Protocol: ssl",
    *(b"Connection: close", b"Connection: Keep-Alive", b"Connection: upgrade", b"Connection: x"),
    *(b"Connection: close\r\nConnection: keep-alive", b"Upgrade: h2c", b"TE: trailers", b"A:"),
    *(b"Expect: 100-continue", b"Expect: miracles", b"Expect: 100-Continue\r\nExpect: x"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: x"),
    *(b"\r\n".join(b"A%d: b" % n for n in range(count)) for count in (97, 98, 99, 100, 101)),
    *(b"A: " + b"b" * size for size in (8185, 8186, 8187, 8188)),
]
#: Paths, and what takes the place of one.
TARGETS: list[bytes] = [
    *(b"//echo", b"//x/y?z", b"/a//b", b"/a%2Fb%00%ff?%20", b"/a#b", b"/a?b#c", b"/?", b"/??a=b?"),
    *(
        b"/;x:y[",
        b"//[",
        b"/%",
        b"/%zz",
        b"/a?b=//c",
        b"http://x/y",
        b"*",
        b"?x",
        b"/\xe9",
        b"/\x7f",
    ),
    *(b"/" + b"a" * size for size in (4000, 4077, 4078, 4079, 4080, 4081, 4082, 4083, 4084)),
]
#: Values of Content-Length.
LENGTHS: list[bytes] = [
    b"0",
    b"5",
    b"05",
    b"+5",
    b"-1",
    b"5,5",
    b"0x5",
    b"5_0",
    b"\xb2",
    b"",
    b"5 ",
    b"9" * 99,
]
