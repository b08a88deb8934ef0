"""What a run writes: checkpoints, the trained model, the merged one, and prepared rows."""

from shardwise.plan.search import Question
from shardwise.plan.time import num_steps
from shardwise.plan.work import TYPES
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.beside import Disk, saved_type

_WIDTHS = {"float64": 8, "float32": 4}  # of other types: 2

#: Beside its data, of each tensor in a checkpoint: its line in the header and its entry in the
#: manifest; and of each rank its random state.
_TENSOR_BYTES, _RANK_BYTES = 700, 12_000
#: As data/store.py has them: a token with its mask; the numbers of a document; those of a sequence.
_TOKEN_BYTES, _DOCUMENT_BYTES, _SEQUENCE_BYTES = 5, 24, 18


def disk_of(question: Question, execution: Execution) -> Disk:
    """The bytes that a job writes with an execution."""
    job, model = question.job, question.model
    steps, one = num_steps(job.train, num_rows=question.num_rows), _checkpoint(question, execution)
    saves, limit = _saves(job, steps), job.train.save_total_limit or steps or 1
    elements = question.inventory.trained_elements if job.adapters else model.num_parameters
    final = elements * width_of(saved_type(job, storage=model.storage_dtype, precision=execution.precision))
    frozen = model.wrapper and model.wrapper.frozen_parameters  # beside the language model, where it is counted
    beside = (frozen or 0) * width_of(model.storage_dtype)
    final += 0 if job.adapters else beside
    return Disk(
        checkpoint_bytes=one,
        checkpoints_bytes=min(saves, limit + 1) * one,
        final_bytes=final,
        merged_bytes=model.num_parameters * width_of(model.storage_dtype) + beside if job.adapters else 0,
        data_cache_bytes=_prepared(question),
        total_bytes=max(min(saves, limit + 1) * one, min(saves, limit) * one + final),
    )


def width_of(name: str) -> int:
    """Bytes of an element of a type."""
    return _WIDTHS.get(name, 2)


def _saves(job: Job, steps: int | None) -> int:
    """How many checkpoints a run writes in all; where that is not known, more than are kept. The
    last step's is written where it is small (adapters) or any are asked for."""
    every = job.train.save_steps
    if every and steps is None:
        return (job.train.save_total_limit or 0) + 1
    return -(-(steps or 1) // every) if every else int(job.adapters is not None)


def _checkpoint(question: Question, execution: Execution) -> int:
    """Trained weights and optimizer states as they are stepped, of all ranks together."""
    types, momentum = TYPES[execution.precision], question.job.train.momentum > 0
    total = _RANK_BYTES * execution.layout.world_size
    trained = ((count, t) for count, unit in question.inventory.units for t in unit.tensors if t.trained)
    for count, tensor in trained:
        elements = tensor.rows * tensor.columns
        states = tensor.state_bytes(execution.optimizer, elements, types, momentum=momentum)
        total += count * tensor.count * (elements * types.trainable + states + _TENSOR_BYTES * (3 if states else 1))
    return total


def _prepared(question: Question) -> int | None:
    """Of the training rows; at most, as long as their lengths are not known."""
    rows = question.num_rows
    if rows is None:
        return None
    tokens = rows * question.mean_length * question.filled
    documents = rows if question.document is None else tokens / question.document
    return round(tokens * _TOKEN_BYTES + documents * _DOCUMENT_BYTES + rows * _SEQUENCE_BYTES)
