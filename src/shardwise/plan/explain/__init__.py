"""Explain: why the chosen execution is as it is, why not the others, what would help, and the timeline of a step."""
