"""The swarm: how many clients that submit and poll one small machine carries (F60).

`plan` says how many and for how long, `stage` holds a load and watches who pays for it,
`analysis` is pure, `drawing` draws, `run` puts them together.
"""

from __future__ import annotations

from loadtest.lab.swarm.run import Swarm

EXPERIMENT = Swarm()
