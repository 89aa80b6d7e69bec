"""Jobs: states, ids, and every statement that writes the table ``jobs``.

One file for each transition: admit, promote, dispatch, claim, heartbeat, checkpoint, settle,
release, reap, expire, cancel, replay, retire. Each states from and to which states it
leads, its callers, and what happens if the process dies before or after its commit.
"""
