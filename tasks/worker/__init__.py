"""Running jobs: claim → run → decide → settle, all of it fenced by the lease."""
