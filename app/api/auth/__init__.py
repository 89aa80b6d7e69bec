"""Authentication of callers, and which routes they may call."""
