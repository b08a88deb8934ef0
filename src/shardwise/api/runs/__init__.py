"""A run: opened, trained on one machine or several, with a micro-batch that is found."""
