"""Made-up rows of the published tables, and the measured runs of our own trainer."""

from functools import cache
from pathlib import Path

from accuracy.grid.compare import CELLS, Compared, compared, read_cells
from accuracy.rows import Published

PLAIN = {"row_id": "made-up-001", "source_id": "made-up", "spec_grade": "A", "framework": "somebody's trainer"}
PLAIN |= {"model": "Llama-3.2-1B", "method": "full", "optimizer": "AdamW", "precision": "bf16"}
PLAIN |= {"gpu_type": "A100-80GB", "n_gpus": "2", "n_nodes": "1", "shard_strategy": "FULL_SHARD (FSDP1, BACKWARD_PRE)"}
PLAIN |= {"micro_batch": "2", "grad_accum": "1", "seq_len": "1024", "packing": "fixed length"}
PLAIN |= {"activation_checkpointing": "full", "master_weights": "fp32", "offload": "none", "outcome": "ok"}
PLAIN |= {"mem_kind": "allocated_peak (torch)", "mem_scope": "per_gpu", "peak_mem_gib_derived": "20"}
PLAIN |= {"tokens_per_s_per_gpu": "9000"}
LORA = {"method": "lora", "lora_rank": "16", "lora_alpha": "32", "lora_targets": "q_proj,v_proj", "master_weights": ""}


def row(**cells: str) -> Published:
    return Published(cells={**PLAIN, **cells})


@cache
def measured_runs(path: Path = CELLS) -> list[Compared]:
    """Each rank of our own trainer's runs in a file beside its forecast."""
    return [one for cell, ranks in read_cells(path) for one in compared(cell, ranks)]
