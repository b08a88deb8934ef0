"""A job file: its keys, its reader, and errors with the line they stand on."""
