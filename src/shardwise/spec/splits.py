"""Whether blocks are cut in stages, or sliced: by family, or by what was seen of a build."""

from __future__ import annotations

from dataclasses import replace

from shardwise.spec.job import Job
from shardwise.spec.model import ModelShape, Split


def splits(model: ModelShape, split: Split, *, proven: tuple[str, ...]) -> bool:
    """Whether a model's blocks are split in a way.

    Args:
        proven: the families of the catalogue that are.
    """
    return model.family in proven if model.built is None else split in model.built


def unseen(model: ModelShape, split: Split) -> str | None:
    """Why a model that was read off its build is not split; None where its family is in the catalogue."""
    if model.built is None:
        return None
    if split == "stages" and "stages without dropout" in model.built:
        return (
            f"{model.family} drops something out at random, perhaps between its embedding and its blocks, which each "
            "pipeline stage would do again; set train.disable_dropout: true, or use fsdp"
        )
    how = "cut in pipeline stages" if split == "stages" else "sliced by tensor parallel (tp)"
    return (
        f"this {model.family} has no row in the catalogue, and its build was not seen to work when it is {how}; the "
        "nearest layout that trains it: fsdp"
    )


def as_trained(job: Job, model: ModelShape) -> ModelShape:
    """A model as a job trains it: what that switches off is no reason to refuse it."""
    if not job.train.disable_dropout:
        return model
    if model.built is not None and "stages without dropout" in model.built:
        model = replace(model, built=("stages", *model.built))
    return replace(model, layerdrop=0.0) if model.layerdrop else model
