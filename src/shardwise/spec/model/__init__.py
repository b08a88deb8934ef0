"""The shape of a model: sizes, names, stages and FLOPs."""
