"""The shape of a model without a row in the catalogue, read from a build of it."""
