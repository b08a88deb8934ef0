"""What a rented machine takes beside its steps: boot, download, load, compile and save."""

from __future__ import annotations

from shardwise.plan.search import Question
from shardwise.plan.work import BFLOAT16_BYTES
from shardwise.spec.plan.forecast import Candidate

#: Nominal, not measured: a machine with an image of the trainer boots in minutes, files come at
#: some 2 Gbit/s, and local disks read and write a gigabyte a second.
BOOT_SECONDS, DOWNLOAD_BYTES_PER_SECOND, DISK_BYTES_PER_SECOND = 300.0, 0.25e9, 1e9
#: As measured of an 8B model (docs/how/measured.md), for what compiles.
COMPILE_SECONDS = 16.0

SENTENCE = (
    "runs and costs include starting: 5 min to boot, the weights at 250 MB/s, loading, compiling and saving; where "
    "your machine is up and has the model, take these off"
)


def start_up_seconds(question: Question, candidate: Candidate) -> float:
    """Of one run on rented hardware, beside its steps; charged as they are."""
    model = question.model
    files = model.published_bytes if model.published else BFLOAT16_BYTES * model.num_parameters
    trained = question.inventory.trained_elements if question.job.adapters else model.num_parameters
    moved = files / DOWNLOAD_BYTES_PER_SECOND + (files + BFLOAT16_BYTES * trained) / DISK_BYTES_PER_SECOND
    return BOOT_SECONDS + moved + COMPILE_SECONDS * candidate.execution.compile
