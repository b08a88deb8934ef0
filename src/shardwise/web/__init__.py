"""The browser face of the verbs."""
