"""Targets that start Shardwise on machines that are there: torchrun and Slurm"""

from __future__ import annotations

import math

from shardwise.interop.chosen import CORES, Chosen, Exported

#: What a group of nodes shares, beside the commands.
SHARED = (
    "all nodes see one file system at this path: output_dir, the model, the rows and SHARDWISE_CACHE lie on it, and "
    "the commands are run there"
)
PLANNED_AGAIN = "the job file is planned again when it starts; export a plan.json to hold the run to this plan"


def launcher_notes(chosen: Chosen, *, shared: bool = True) -> list[str]:
    """What holds for every launcher; `shared`: that nodes share a file system is left to be said."""
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
    """A batch script with one task for each rank. What asks it to stop is passed on, and a run that has saved is put
    back in the queue."""
    gpus, place = chosen.processes, "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID"
    cores = "--cpus-per-task=1" if chosen.on_cpu else f"--gpus-per-node={gpus}\n#SBATCH --cpus-per-task={CORES}"
    asked, left = _asked(chosen)
    text = _SLURM.format(
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
    """The time limit and the host's memory: a line each, which counts where the plan knows them; and
    why one does not, as sentences."""
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


_SLURM = """\
#!/bin/bash
# {written}
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
#SBATCH {resources}
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
{asked}
##SBATCH --partition=NAME --account=NAME
# With one # less the lines with two count.
# Slurm starts this where sbatch was called, on a file system that all nodes see.

export SHARDWISE_CACHE="${{SHARDWISE_CACHE:-$PWD/.shardwise-cache}}"
export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
# Another port at each start: ranks know by it that a start is not the one before.
export MASTER_PORT=$((20000 + (SLURM_JOB_ID * 16 + ${{SLURM_RESTART_COUNT:-0}}) % 10000))
# Since 22.05 srun does not take this over from sbatch, and would leave each rank one core.
[ -z "${{SLURM_CPUS_PER_TASK:-}}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# Two minutes before the time limit, or when the job is pre-empted: the ranks save and end.
trap 'stopped=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

# Rank 0 reports when the others have ended; after that none is waited for.
srun --kill-on-bad-exit=0 --wait=120 bash -c 'exec env {ranks} python -m shardwise {train}' &
wait $!
code=$?
if [ -n "$stopped" ]; then  # the first wait ended with the signal
  wait $!
  code=$?
fi
# 143: stopped by SIGTERM after saving. The same script goes on from there, unless `scancel` ended the job: then Slurm
# no longer counts it as running.
if [ "$code" -ne 0 ] && {{ [ -n "$stopped" ] || [ "$code" -eq 143 ]; }}; then
  scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING && scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
