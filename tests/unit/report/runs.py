"""Run directories as the real writers leave them, with figures that are easily recomputed."""

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution, accumulation_steps
from shardwise.spec.model.flops import model_flops_per_token
from shardwise.spec.model.shape import Matrix, ModelShape
from shardwise.spec.plan.forecast import Candidate, MemoryForecast, Plan, RankMemory, TimeForecast
from shardwise.spec.run import RunDirectory, announce, append_line, note_start, write_json, write_text

GIB = 1024**3
KEPT_PARTS = {"weights": 10 * GIB, "gradients": 2 * GIB, "optimizer": 4 * GIB, "context": 1 * GIB}
PASSING_PARTS = {"activations": 3 * GIB, "logits": 1 * GIB, "communication": GIB // 2, "temporary": GIB // 2}
FORECAST_PARTS = KEPT_PARTS | PASSING_PARTS
MEASURED_PARTS = {"weights": 10 * GIB, "optimizer": 4 * GIB, "other": 6 * GIB}
TOKENS_PER_STEP = 4000
STEP_SECONDS = 2.0
TRAIN_SECONDS = 137.5
PEAK_FLOPS = 1.5e9
ROWS = {"num_rows": 1001, "num_samples": 996, "num_truncated": 7, "num_dropped": 5}
COUNTS = {**ROWS, "num_tokens": 99600, "num_trained_tokens": 62003, "longest": 812}
SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 1000}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 2048}
SIZES |= {"norm_parameters_per_layer": 128, "final_norm_parameters": 64}
MATRICES = (Matrix(name="self_attn.q_proj", rows=64, columns=64), Matrix(name="mlp.up_proj", rows=128, columns=64))
SHAPE = ModelShape(family="llama", **SIZES, matrices=MATRICES)


def make_job(**changes: Any) -> Job:
    data = {"model": "example/tiny-llama", "method": "lora", "hardware": "2x H100-SXM", "data": {"path": "chats.jsonl"}}
    return job_from_data({**data, **changes})


def make_plan(job: Job, *, parts: dict[str, int] = FORECAST_PARTS, world_size: int = 2) -> Plan:
    peak = sum(parts.values())
    batch = job.train.global_batch_size
    forwards = accumulation_steps(global_batch_size=batch, micro_batch_size=2, data_world_size=world_size)
    layout = Layout(dp_shard=world_size)
    ranks = (RankMemory(ranks=tuple(range(world_size)), peak_bytes=peak, parts=parts),)
    bytes_of_peak: dict[str, Any] = {"peak_bytes": peak, "peak_reserved_bytes": peak + GIB, "capacity_bytes": 80 * GIB}
    within: dict[str, Any] = {"peak_low_bytes": peak - GIB, "peak_high_bytes": peak + 2 * GIB}
    shares: dict[str, Any] = {"mfu": 0.36, "gpu_utilization": 0.95, "compute_utilization": 0.8}
    candidate = Candidate(
        execution=Execution(layout=layout, micro_batch_size=2, gradient_accumulation_steps=forwards),
        fits=True,
        memory=MemoryForecast(**bytes_of_peak, **within, peak_instant="backward of layer 1", ranks=ranks),
        time=TimeForecast(step_seconds=2.2, tokens_per_second=1800.0, total_seconds=110.0, **shares),
    )
    model = {**SHAPE.to_json(), "num_trainable_parameters": 12_288}
    return Plan(job=job.to_json(), hardware={"name": job.hardware}, model=model, candidates=(candidate,), chosen=0)


def mfu_of(job: Job, *, rate: float, world_size: int) -> float:
    length = COUNTS["num_tokens"] / (COUNTS["num_samples"] * job.sides)
    return model_flops_per_token(SHAPE, length=length, lora=job.adapters) * rate / (world_size * PEAK_FLOPS)


def record(step: int, *, job: Job, world_size: int = 2) -> dict[str, Any]:
    """One optimizer step; the first three are slow, as warm-up steps are."""
    seconds = STEP_SECONDS if step > 3 else 9.0
    rate = TOKENS_PER_STEP / seconds
    noise = 0.15 * math.sin(step * 12.9898) + 0.1 * math.sin(step * 78.233)
    head = {"step": step, "epoch": step / 124.5, "learning_rate": 2e-4 * max(0.0, 1 - step / 200)}
    learnt = {"loss": 1.1 + 1.4 * math.exp(-step / 40) + noise, "grad_norm": 0.8 + 0.3 * math.sin(step)}
    counts = {"tokens": TOKENS_PER_STEP, "trained_tokens": 2500, "peak_memory_bytes": [20 * GIB] * world_size}
    speed = {"step_seconds": seconds, "tokens_per_second": rate, "gpu_utilization": 0.9}
    return {**head, **learnt, **counts, **speed, "mfu": mfu_of(job, rate=rate, world_size=world_size)}


@dataclass(kw_only=True)
class RunMaker:
    """Builds a run directory file by file, so that a test can leave one out or spoil one."""

    root: Path
    job: Job = field(default_factory=make_job)
    world_size: int = 2
    num_steps: int = 50

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.root)

    def planned(self, **plan: Any) -> Self:
        write_text(self.run.job, "model: example/tiny-llama\n")
        write_text(self.run.resolved, json.dumps(self.job.to_json()))
        write_json(self.run.plan, make_plan(self.job, world_size=self.world_size, **plan).to_json())
        return self

    def prepared(self, *, preview: list[Any] | None = None) -> Self:
        sources = [{"path": "chats.jsonl", "format": "messages", "num_rows": 1001}]
        train = {**COUNTS, "folder": "/cache/1", "sources": sources}
        shown = preview or [{"where": "chats.jsonl:1", "text": [["user: what is 2+2?\n", False], ["4", True]]}]
        held_out = {**train, "num_rows": 20, "num_samples": 20, "num_truncated": 0, "num_dropped": 0}
        head = {"version": 1, "fingerprint": "0" * 64, "padding_id": 0}
        write_json(self.run.data, {**head, "train": train, "eval": held_out, "preview": shown})
        return self

    def started(self) -> Self:
        versions = {"python": "3.11.9", "torch": "2.13.0", "peft": None, "device": "NVIDIA H100"}
        peak = {"peak_flops": PEAK_FLOPS, "peak_flops_source": "catalogue entry H100-SXM"}
        write_json(self.run.environment, {**versions, **peak, "world_size": self.world_size})
        announce(self.run, "loading")
        announce(self.run, "training", total_steps=self.num_steps, first_step=1)
        return self

    def began(self, first_step: int, execution: Execution | None = None, **noted: Any) -> Self:
        """A start that its worker noted: the plan's execution, or another."""
        ran = execution or make_plan(self.job, world_size=self.world_size).candidates[0].execution
        line = {"first_step": first_step, "world_size": self.world_size, "peak_flops": PEAK_FLOPS}
        note_start(self.run, {**line, "hardware": self.job.hardware, "execution": ran.to_json(), **noted})
        announce(self.run, "loading")
        announce(self.run, "training", total_steps=self.num_steps, first_step=first_step)
        return self

    def stepped(self, steps: range | None = None) -> Self:
        for step in steps or range(1, self.num_steps + 1):
            found = record(step, job=self.job, world_size=self.world_size)
            if step % 10 == 0:
                found["eval_loss"] = 1.2 + 1.3 * math.exp(-step / 40)
            append_line(self.run.metrics, found)
        return self

    def measured(self, outcome="finished", parts=MEASURED_PARTS, execution: Execution | None = None) -> Self:
        peak = sum(parts.values())
        ranks = [{"rank": rank, "peak_memory_bytes": peak, **parts} for rank in range(self.world_size)]
        dtypes = {"weights": "float32", "compute": "bfloat16", "reduction": "float32", "optimizer": "float32"}
        of = {} if execution is None else {"execution": execution.to_json()}
        head = {"version": 1, "kind": "cuda_allocated", "train_seconds": TRAIN_SECONDS, "outcome": outcome}
        write_json(self.run.measured, {**head, "ranks": ranks, "dtypes": dtypes, **of})
        return self

    def ended(self, outcome: str = "finished", *, signal: int | None = None, step: int | None = None) -> Self:
        announce(self.run, "done", outcome=outcome)
        step = self.num_steps if step is None else step
        write_json(self.run.logs / "outcome.json", {"outcome": outcome, "signal": signal, "step": step})
        if outcome == "finished":
            write_result(self.run.final)
        return self


def write_result(final: Path, content: bytes = b"weights") -> None:
    final.mkdir(exist_ok=True)
    (final / "model.safetensors").write_bytes(content)
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    write_json(final / "manifest.json", {"files": {"model.safetensors": entry}})


def finished_run(root: Path, **changes: Any) -> RunDirectory:
    return RunMaker(root=root, **changes).planned().prepared().started().stepped().measured().ended().run
