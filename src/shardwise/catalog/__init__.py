"""Facts: GPUs, models and this machine, each figure with its source. Data in, nouns out; no planner arithmetic."""
