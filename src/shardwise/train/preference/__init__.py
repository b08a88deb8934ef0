"""Learning from preferences: losses, the coefficients of log-probabilities, the reference, and what
is recorded."""
