"""What nobody should send: bodies, requests and calls, shared with the tests."""
