"""The broker: publishing job references, queue names, and the transports."""
