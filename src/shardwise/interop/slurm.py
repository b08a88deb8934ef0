"""Slurm: the batch script that trains a plan, saves when it is asked to stop, and is queued again"""

from __future__ import annotations

import math

from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.torchrun import said_of


def to_slurm(chosen: Chosen) -> Exported:
    """A batch script with one task for each rank. What asks it to stop is passed on, and a run that has saved is put
    back in the queue."""
    size, gpus = chosen.layout.world_size, chosen.processes
    resources = "#SBATCH --cpus-per-task=1\n" if chosen.on_cpu else f"#SBATCH --gpus-per-node={gpus}\n"
    place = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID"
    text = _SLURM.format(
        written=chosen.written,
        name=chosen.name,
        nodes=chosen.nodes,
        tasks=gpus,
        resources=resources,
        time=_time_limit(chosen.seconds),
        ranks=f"{place} WORLD_SIZE={size} LOCAL_WORLD_SIZE={gpus}",
        train=chosen.train.replace("'", "'\\''"),
    )
    return Exported(files={"train.sbatch": text}, said=said_of(chosen), run=["sbatch train.sbatch"])


def _time_limit(seconds: float | None) -> str:
    """A line to make use of, where the duration is forecast: half as long again, in whole hours."""
    if seconds is None:
        return "##SBATCH --time=HH:MM:SS"
    hours = math.ceil(seconds * 1.5 / 3600)
    return f"##SBATCH --time={hours}:00:00"


_SLURM = """\
#!/bin/bash
# {written}
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
{resources}#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
{time}
##SBATCH --partition=NAME --account=NAME
##SBATCH --cpus-per-task=8 --mem=0
# With one # less the lines above count; clusters that do not give whole nodes need the last.
# Slurm starts this where sbatch was called, on a file system that all nodes see.

export SHARDWISE_CACHE="${{SHARDWISE_CACHE:-$PWD/.shardwise-cache}}"
export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
# Another port at each start: ranks know by it that a start is not the one before.
export MASTER_PORT=$((20000 + (SLURM_JOB_ID * 16 + ${{SLURM_RESTART_COUNT:-0}}) % 10000))

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
