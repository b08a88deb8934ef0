"""A batch as collators of Hugging Face make it becomes this rank's share of a global batch."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from shardwise.data.micro_batches import FILLER, GlobalBatch, MicroBatch
from shardwise.data.store import IGNORED
from shardwise.errors import DataError
from shardwise.parallel.mesh import World
from shardwise.spec.model.shape import ModelShape
from shardwise.train.guards.checks import gather

_KEYS = ("input_ids", "labels", "attention_mask")


def global_batch(
    batch: Mapping[str, Any], *, world: World, micro_batch_size: int | None, shape: ModelShape
) -> GlobalBatch:
    """This rank's share of whole rows [rows, length]. `micro_batch_size`: rows of a forward, or
    None; `shape`: of the model. Raises DataError: no batch, or not on all."""
    rows = _checked(batch, steady=shape.steady_positions, vocabulary=shape.vocab_size)
    _agree(world, rows)
    ids, labels = rows["input_ids"], F.pad(rows["labels"][:, 1:], (0, 1), value=IGNORED)
    trained = int((labels != IGNORED).sum())
    if not trained:
        raise DataError("the batch trains no token: of labels, all but those of a row's first token are -100")
    count, length = ids.shape
    pad = -length % world.layout.sequence_multiple
    real = rows.get("attention_mask", torch.ones_like(ids)).bool()
    ids, labels, real = F.pad(ids, (0, pad)), F.pad(labels, (0, pad), value=IGNORED), F.pad(real, (0, pad))
    ranks = world.layout.data_world_size
    share, pp = -(-count // ranks), world.layout.pp
    # Under a pipeline, where stages work at different micro-batches, two for each rank.
    size = micro_batch_size or (share if pp == 1 else max(1, share // (2 * pp)))
    micros = -(-count // (ranks * size))
    slots = torch.full((micros * ranks * size,), FILLER)
    slots[:count] = torch.arange(count)
    positions = torch.arange(length + pad).expand(size, -1)
    made: list[MicroBatch] = []
    for samples in slots.view(micros, ranks, size)[:, world.data_rank]:
        rows_of, filler = samples.clamp(min=0), (samples == FILLER).unsqueeze(1)
        made.append(
            MicroBatch(
                input_ids=ids[rows_of],
                position_ids=positions,
                labels=labels[rows_of].masked_fill(filler, IGNORED),
                sample_ids=tuple(samples.tolist()),
                real=real[rows_of].masked_fill(filler, False),
                owners=torch.arange(size).unsqueeze(1).expand_as(positions),
            )
        )
    counts: dict[str, Any] = {"tokens": count * length, "trained_tokens": trained}
    return GlobalBatch(step=0, epoch=0.0, sample_ids=tuple(range(count)), micro_batches=tuple(made), **counts)


def _checked(batch: Mapping[str, Any], *, steady: int | None, vocabulary: int) -> dict[str, torch.Tensor]:
    """The batch on the CPU. Its mask is only checked: no padding is trained or precedes a row."""
    if lacking := [key for key in _KEYS[:2] if not isinstance(batch.get(key), torch.Tensor)]:
        raise DataError(f"the batch has no tensor {lacking[0]}; expected {', '.join(_KEYS)}, each [rows, length]")
    if others := [key for key in batch if key not in _KEYS]:
        raise DataError(f"the batch holds {', '.join(others)}, which is not trained with; leave it out of the collator")
    rows = {key: value.to("cpu") for key, value in batch.items() if value is not None}
    ids, labels = rows["input_ids"], rows["labels"]
    if any(value.shape != ids.shape or value.ndim != 2 or not value.numel() for value in rows.values()):
        shapes = ", ".join(f"{key} {list(value.shape)}" for key, value in rows.items())
        raise DataError(f"the batch holds {shapes}; expected one shape [rows, length], not empty")
    for key, beside in (("input_ids", 0), ("labels", IGNORED)):
        strange = rows[key][(rows[key] != beside) & ((rows[key] < 0) | (rows[key] >= vocabulary))]
        if len(strange):  # a slice of the vocabulary would take it for another slice's
            raise DataError(f"{key} hold {int(strange[0])}, and the model's vocabulary is of 0 to {vocabulary - 1}")
    if steady is not None and ids.shape[1] > steady:
        raise DataError(
            f"the batch is {ids.shape[1]} tokens long: beyond {steady} this model's rotary positions follow the "
            f"longest row, so that the result would depend on the layout; use rows of {steady} tokens or less"
        )
    mask = rows.get("attention_mask")
    if mask is not None:
        if bool((mask[:, 1:] > mask[:, :-1]).any()):
            raise DataError("the batch is padded on the left; write tokenizer.padding_side = 'right'")
        if bool((labels[mask == 0] != IGNORED).any()):
            raise DataError("labels train padding (where attention_mask is 0); write -100 there")
    return rows


def _agree(world: World, rows: dict[str, torch.Tensor]) -> None:
    if world.size == 1:
        return
    digest = hashlib.sha256()
    for key, value in sorted(rows.items()):
        digest.update(f"{key}{tuple(value.shape)}".encode() + value.long().contiguous().numpy().tobytes())
    everyone = gather(world, digest.hexdigest())
    other = next((rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]), None)
    if other is not None:
        raise DataError(
            f"rank 0 and rank {other} were given different batches; each rank takes its share of one whole batch: seed "
            "the loader alike on all ranks (torch.manual_seed before it), and use no DistributedSampler"
        )
