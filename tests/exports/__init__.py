"""What `export` writes, put to the released tools themselves: `make test-exports`."""
