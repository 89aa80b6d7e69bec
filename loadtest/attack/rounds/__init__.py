"""The rounds of an attack, by family, in the order in which they run."""

from __future__ import annotations

from loadtest.attack.rounds import bodies, browsers, floods, framing, keys, slow
from loadtest.attack.rounds.kinds import Round

FAMILIES: dict[str, tuple[Round, ...]] = {
    "floods": floods.ROUNDS,
    "slow": slow.ROUNDS,
    "bodies": bodies.ROUNDS,
    "keys": keys.ROUNDS,
    "browsers": browsers.ROUNDS,
    "framing": framing.ROUNDS,
}
