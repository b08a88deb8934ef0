"""The trainer: composes model, method, layout and data, runs the loop, saves and verifies."""
