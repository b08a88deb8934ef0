"""Forwards without gradients that preferences add to a step: of the reference, of `kto`'s KL."""

from shardwise.plan.work import Work
from shardwise.spec.job.preference import WITH_REFERENCE


def forwards_of_reference(work: Work) -> int:
    """Forwards of all of a step's micro-batches. `kto` takes answers behind the prompts of others,
    too, under what is trained and, where it is compared with itself, under the reference."""
    job = work.job
    mismatched = job.preference is not None and job.preference.loss_type == ["kto"]
    return (1 + mismatched) * job.compares_with_itself + mismatched


def knows_reference(work: Work) -> bool:
    """Whether log-probabilities under the reference are computed before the first step."""
    job = work.job
    stated = job.preference is not None and job.preference.reference != "none"
    return stated and job.objective in WITH_REFERENCE and not job.compares_with_itself
