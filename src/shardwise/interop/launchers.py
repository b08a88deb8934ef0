"""Targets that start Shardwise on machines that are there: torchrun and Slurm"""

import math

from shardwise.interop.chosen import CORES, Chosen, Exported, script

#: What a group of nodes shares, beside the commands.
SHARED = (
    "all nodes see one file system at this path: output_dir, the model, the rows and SHARDWISE_CACHE lie on it, and "
    "the commands are run there"
)
PLANNED_AGAIN = "the job file is planned again when it starts; export a plan.json to hold the run to this plan"


def launcher_notes(chosen: Chosen, *, shared: bool = True) -> list[str]:
    """What holds for every launcher; `shared`: to say that nodes must share a file system."""
    said = [SHARED] if shared and chosen.nodes > 1 else []
    return [*said, PLANNED_AGAIN] if not chosen.path.endswith(".json") else said


def to_torchrun(chosen: Chosen) -> Exported:
    """One line for each node."""
    where = "NODE_0 is the name or the address of the first"
    several = chosen.nodes > 1
    how = [f"# Run on each node its own line; {where}."] if several else []
    lines = [f"# {chosen.written}", *how, *chosen.torchrun_lines(f"-m shardwise {chosen.train}")]
    what = f"on each node its line of torchrun.sh; {where}" if several else lines[1]
    limit = "torchrun gives ranks that it stops 30 s to save; what takes longer is lost back to the last checkpoint"
    return Exported(files={"torchrun.sh": "\n".join(lines) + "\n"}, said=[*launcher_notes(chosen), limit], run=[what])


def to_slurm(chosen: Chosen) -> Exported:
    """A batch script with a task for each rank; a run that has saved is put back in the queue."""
    gpus, place = chosen.processes, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID"
    cores = "--cpus-per-task=1" if chosen.on_cpu else f"--gpus-per-node={gpus}\n#SBATCH --cpus-per-task={CORES}"
    asked, left = _asked(chosen)
    text = script("train.sbatch", mark="@").substitute(
        written=chosen.written,
        name=chosen.name,
        nodes=chosen.nodes,
        tasks=gpus,
        resources=cores,
        asked="\n".join(asked),
        ranks=f"{place} WORLD_SIZE={chosen.layout.world_size} LOCAL_WORLD_SIZE={gpus}",
        train=chosen.train.replace("'", "'\\''"),
    )
    said = [*left, *launcher_notes(chosen)]
    return Exported(files={"train.sbatch": text}, said=said, run=["sbatch train.sbatch"])


def _asked(chosen: Chosen) -> tuple[list[str], list[str]]:
    """Time limit and host's memory, a line each where known; and why one is not, as sentences."""
    lines, said = ["##SBATCH --time=HH:MM:SS", "##SBATCH --mem=0"], list[str]()
    if chosen.seconds is not None:
        # Half as long again as forecast, in whole hours.
        lines[0] = f"#SBATCH --time={math.ceil(chosen.seconds * 1.5 / 3600)}:00:00"
    else:
        said.append("--time is not in force: how long the run takes is not known; state train.max_steps")
    if chosen.takes_machine:
        lines[1] = "#SBATCH --mem=0"  # all that the machines have
    elif chosen.host_bytes:
        lines[1] = f"#SBATCH --mem={chosen.gib_of_host}G"
    else:
        said.append(
            "--mem is not in force: the job takes part of a machine, whose memory the plan does not know; what the "
            "cluster gives with the cores holds"
        )
    return lines, said
