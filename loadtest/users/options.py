"""The options of the locustfile; most of them are also fields of locust's web page."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

HOST = "http://127.0.0.1:8000"


def add_options(parser: Any) -> None:
    """Beside locust's own, of which some get defaults that suit a Fairline on this machine."""
    parser.set_defaults(host=HOST, num_users=20, spawn_rate=5, class_picker=True)
    add = parser.add_argument
    add("--rate", type=above_zero, default=5.0, help="Submitter: submissions a second (5)")
    add(
        "--shape",
        default="",
        help="steps, ramp, spike, soak, or level:seconds and from-to:seconds as in 2:20,0-8:30; "
        "in the web page choose the shape Custom with it",
    )
    add("--key", default="", is_secret=True, env_var="FAIRLINE_KEY", help="API key, if needed")
    add("--path", default="/applications", help="Submitter: where to post")
    add("--letter-bytes", default="", help="Submitter: random length of the letters: 200-20000")
    for name, kind, default, words in (
        ("--record", str, "", "for programs: the folder for the record of what was sent"),
        ("--part", int, 0, "for programs: which of several processes this is"),
        ("--parts", int, 1, "for programs: how many processes share the work"),
        ("--begin-at", float, 0.0, "for programs: when the clock of arrivals starts"),
        ("--arrivals", str, "", "for programs: the shape, as the master tells its workers"),
    ):
        add(name, type=kind, default=default, include_in_web_ui=False, help=words)


def above_zero(text: str) -> float:
    """A rate; argparse makes a sentence of what is wrong with another."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text} is no rate: it must be above 0")
    return value
