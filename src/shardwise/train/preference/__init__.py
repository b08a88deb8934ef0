"""Learning from preferences: losses, the reference, and what is recorded."""
