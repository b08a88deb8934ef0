"""What is trained: all weights, or adapters beside frozen ones."""
