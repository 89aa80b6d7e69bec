"""What protects tenants from failures: circuits, quarantine, throttles, pool changes."""
