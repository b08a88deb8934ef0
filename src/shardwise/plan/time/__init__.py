"""Time: seconds of blocks, pipelines, and of a step."""
