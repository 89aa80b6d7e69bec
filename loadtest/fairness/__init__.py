"""Fair share, simulated: the real line of a pool, with slots and jobs that exist on paper only."""
