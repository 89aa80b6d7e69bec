"""The HTTP API: one blueprint a resource, each parse → call → respond."""
