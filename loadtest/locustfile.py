"""Load by hand: ``locust -f loadtest/locustfile.py``, then open the web page that it names.

Users: ``Submitter`` sends ``--rate`` submissions a second by a clock, whatever the answers;
``SwarmClient`` submits three, asks for them each second and starts over; ``Applicant`` asks as the
server advises. Without a page: ``--headless -u 20 -r 5 -t 1m SwarmClient``, or
``--headless --rate 5 -t 1m Submitter``.

Shapes: ``--shape steps``, ``ramp``, ``spike`` or ``soak``, up to ``--rate`` for the Submitter and
up to ``-u`` for the others; or one's own, such as ``--shape 2:20,4:20,0-8:30``. ``--host`` says
where Fairline is, ``--key`` (or ``FAIRLINE_KEY``) opens it.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Locust puts the folder of this file on the path, not the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loadtest.users import run
from loadtest.users.applicant import Applicant
from loadtest.users.shaped import Custom, Ramp, Soak, Spike, Steps
from loadtest.users.submitter import Submitter
from loadtest.users.swarm_client import SwarmClient

__all__ = ["Applicant", "Custom", "Ramp", "Soak", "Spike", "Steps", "Submitter", "SwarmClient"]

run.listen()
