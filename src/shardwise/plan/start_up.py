"""What a rented machine takes beside its steps: boot, download, load, compile and save."""

from shardwise.plan.search.question import Question
from shardwise.plan.work import BFLOAT16_BYTES
from shardwise.spec.plan.forecast import Candidate

#: As measured of an 8B model (docs/how/measured.md), for what compiles.
COMPILE_SECONDS = 16.0


def start_up_seconds(question: Question, candidate: Candidate) -> float:
    """Of one run on rented hardware, beside its steps; charged as they are."""
    model, rent = question.model, question.job.rent
    files = model.published_bytes if model.published else BFLOAT16_BYTES * model.num_parameters
    trained = question.inventory.trained_elements if question.job.adapters else model.num_parameters
    moved = files / rent.download_mb_per_second + (files + BFLOAT16_BYTES * trained) / rent.disk_mb_per_second
    return 60 * rent.boot_minutes + moved / 1e6 + COMPILE_SECONDS * candidate.execution.compile
