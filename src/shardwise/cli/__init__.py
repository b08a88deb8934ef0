"""The terminal face of the verbs."""
