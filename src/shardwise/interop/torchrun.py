"""torchrun: the command of each node that trains a plan"""

from __future__ import annotations

from shardwise.interop.chosen import Chosen, Exported

#: What a group of nodes shares, beside the commands.
SHARED = (
    "all nodes see one file system at this path: output_dir, the model, the rows and SHARDWISE_CACHE lie on it, and "
    "the commands are run there"
)
PLANNED_AGAIN = "the job file is planned again when it starts; export a plan.json to hold the run to this plan"


def said_of(chosen: Chosen) -> list[str]:
    """What holds for every launcher."""
    said = [SHARED] if chosen.nodes > 1 else []
    return [*said, PLANNED_AGAIN] if not chosen.path.endswith(".json") else said


def to_torchrun(chosen: Chosen) -> Exported:
    """One line for each node."""
    several = chosen.nodes > 1
    how = ["# Run on each node its own line; NODE_0 is the name or the address of the first."] if several else []
    lines = [f"# {chosen.written}", *how, *chosen.torchrun_lines(f"-m shardwise {chosen.train}")]
    theirs = "on each node its line of torchrun.sh; NODE_0 is the name or the address of the first"
    what = theirs if several else lines[1]
    limit = "torchrun gives ranks that it stops 30 s to save; what takes longer is lost back to the last checkpoint"
    return Exported(files={"torchrun.sh": "\n".join(lines) + "\n"}, said=[*said_of(chosen), limit], run=[what])
