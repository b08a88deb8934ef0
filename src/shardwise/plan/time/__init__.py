"""Time: seconds of kernels, messages, blocks, pipelines, and of a step."""
