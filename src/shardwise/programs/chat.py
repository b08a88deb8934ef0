"""`python -m shardwise.programs.chat JSON`: answers with what a run trained, on stdin, stdout."""

from shardwise.train.chatting import chat
from shardwise.train.result import run_program

if __name__ == "__main__":
    run_program(chat)
