"""Fair share on a stack of its own: shares by weight, a flood, a thousand free accounts."""
