"""Jobs: states, ids, and every statement that writes the table ``jobs``.

One file for each transition: admit, promote, dispatch, claim, heartbeat, checkpoint, settle,
release, reap, expire, cancel, replay, retire. Each says which states it leads from and to, who
calls it, and what happens if the process dies before or after its commit.
"""
