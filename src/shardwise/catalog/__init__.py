"""Facts: GPUs, models and this machine, each figure with its source. Nothing is forecast here."""
