"""What a run measures and hands on: memory, metrics, peak rates, trackers."""
