"""`python -m shardwise.programs.parent_death PARENT SIGNAL PROGRAM ARGUMENTS...`: becomes PROGRAM,
to which Linux sends SIGNAL when PARENT ends, however it ends."""

import sys

from shardwise.launch.processes.parent_death import become

if __name__ == "__main__":
    become(sys.argv[3:], parent=int(sys.argv[1]), signal_number=int(sys.argv[2]))
