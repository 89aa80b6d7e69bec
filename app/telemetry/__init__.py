"""OpenTelemetry: traces and metrics of every process; see ``docs/telemetry.md``."""
