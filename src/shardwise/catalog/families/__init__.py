"""The rules of each family of models: from the keys of config.json to matrices and norms."""
