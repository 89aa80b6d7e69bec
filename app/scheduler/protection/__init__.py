"""Protection from failures: circuits, quarantine, throttles, spikes, pools of job types."""
