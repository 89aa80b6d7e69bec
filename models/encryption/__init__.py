"""Encryption at rest of what tenants submit and get back: AES-256-GCM, optional."""
