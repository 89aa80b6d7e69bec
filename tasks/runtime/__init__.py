"""Running jobs: claim → run → classify → settle, all of it fenced by the lease."""
