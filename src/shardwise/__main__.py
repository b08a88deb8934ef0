"""`python -m shardwise`: the program, where its command is not on the path."""

from shardwise.cli.main import main

if __name__ == "__main__":
    main()
