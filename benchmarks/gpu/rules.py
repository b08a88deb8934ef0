"""What each figure should be, and the verdict on what it is: PASS, FAIL, or none where it is only told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is wanted of one figure.

    Attributes:
        unit: `share` and `difference` are shown in percent.
        low, high: the bounds, both allowed; none where the figure is only told.
        on: part of the name of the GPUs that the bounds are for; None for all devices.
    """

    unit: str = ""
    low: float | None = None
    high: float | None = None
    on: str | None = None

    @property
    def is_bound(self) -> bool:
        """Whether any figure can fail."""
        return self.low is not None or self.high is not None

    @property
    def wanted(self) -> str:
        """In words."""
        if not self.is_bound:
            return ""
        device = f" on {self.on}" if self.on not in (None, "cuda") else ""
        low, high = (None if bound is None else self._shown(bound) for bound in (self.low, self.high))
        if low == high:
            return f"{low}{device}"
        if low is not None and high is not None:
            return f"{low} to {high}{device}"
        return f">= {low}{device}" if high is None else f"<= {high}{device}"

    def _shown(self, bound: float) -> str:
        percent = self.unit in ("share", "difference")
        return f"{100 * bound:g}%" if percent else f"{bound:,g}"


def true(on: str | None = None) -> Rule:
    """A promise that is kept or not."""
    return Rule(unit="yes", low=1, high=1, on=on)


#: Of a figure, by its last name: every run's, unless the table below says otherwise of its full name.
COMMON = {
    "exit": Rule(unit="exit code", low=0, high=0),
    "tokens_per_second": Rule(unit="tokens/s"),
    "peak_gib": Rule(unit="GiB"),
    "reserved_gib": Rule(unit="GiB"),
    "driver_gib": Rule(unit="GiB"),
    "memory_error": Rule(unit="difference", low=-0.02, high=0.02, on="cuda"),
    "time_error": Rule(unit="difference", low=-0.10, high=0.10, on="cuda"),
    "first_step_seconds": Rule(unit="s"),
    "end_seconds": Rule(unit="s"),
    "seconds": Rule(unit="s"),
    "execution": Rule(),
    "said": Rule(),
    "left_out": Rule(),
    "failed": Rule(low=0, high=0),
}

RULES = {
    "machine.known": true("cuda"),
    "machine.can_train": true(),
    "machine.memory_of_catalogue": Rule(low=0.98, high=1.02, on="cuda"),
    "machine.matmul_tflops": Rule(unit="TFLOP/s"),
    "machine.copy_tb_per_second": Rule(unit="TB/s"),
    "machine.host_gb_per_second": Rule(unit="GB/s"),
    "lora_8b.tokens_per_second": Rule(unit="tokens/s", low=16_000, on="H100"),
    "lora_8b.peak_gib": Rule(unit="GiB", high=31, on="H100"),
    "lora_8b.end_seconds": Rule(unit="s", high=5, on="cuda"),
    "lora_8b_recompute.tokens_per_second": Rule(unit="tokens/s", low=13_000, on="H100"),
    "lora_8b_recompute.peak_gib": Rule(unit="GiB", high=17, on="H100"),
    "full_1b.tokens_per_second": Rule(unit="tokens/s", low=60_000, on="H100"),
    "full_1b.end_above_disk_seconds": Rule(unit="s", high=2, on="cuda"),
    "start.first_step_of_trainer": Rule(high=1.15, on="cuda"),
    "start.shardwise.end_seconds": Rule(unit="s", high=1, on="cuda"),
    "memory.losses_apart": Rule(unit="difference", high=0.02),
    "numbers.fp32.loss_apart": Rule(unit="difference", high=1e-4),
    "numbers.fp32.grad_norm_apart": Rule(unit="difference", high=1e-4),
    "numbers.mixed.loss_apart": Rule(unit="difference", high=2e-2),
    "final.loss_apart": Rule(unit="difference", high=1e-4),
    "resume.stopped_exit": Rule(unit="exit code", low=143, high=143),
    "resume.steps_not_saved": Rule(unit="steps", low=0, high=0),
    "resume.stop_seconds": Rule(unit="s", high=5),
    "resume.same_bytes": true(),
    "failures.killed.exit": Rule(unit="exit code", low=1, high=1),
    "failures.killed.names_cause": true(),
    "failures.killed.processes_left": Rule(unit="processes", low=0, high=0),
    "failures.wrong_key.exit": Rule(unit="exit code", low=2, high=2),
    "failures.too_large.exit": Rule(unit="exit code", low=1, high=1),
    "failures.out_of_memory.exit": Rule(unit="exit code", low=1, high=1, on="cuda"),
    "failures.out_of_memory.sentence": true("cuda"),
    "codellama.answered": true(),
    "choice.of_best_by_hand": Rule(low=0.97, on="cuda"),
    "packed.of_unpacked": Rule(low=0.97, on="cuda"),
    "recompute.selective_attention": Rule(unit="for each block and micro-batch", low=1, high=1),
    "recompute.full_attention": Rule(unit="for each block and micro-batch", low=2, high=2),
    "offload.losses_apart": Rule(unit="difference", high=0.02),
    "syncs.each_step": Rule(unit="each step", high=1, on="cuda"),
    "peers.of_best": Rule(low=1, on="cuda"),
    "links.shared_memory_gib": Rule(unit="GiB", low=1),
    "orders.losses_apart": Rule(unit="difference", high=0.02),
    "layouts.losses_apart": Rule(unit="difference", high=0.02),
    "rank_killed.names_rank": true(),
    "rank_killed.exit": Rule(unit="exit code", low=1, high=1),
    "rank_killed.processes_left": Rule(unit="processes", low=0, high=0),
    "rank_stopped.names_rank": true(),
    "rank_stopped.exit": Rule(unit="exit code", low=1, high=1),
    "rank_stopped.processes_left": Rule(unit="processes", low=0, high=0),
    "moved.stopped_exit": Rule(unit="exit code", low=143, high=143),
    "moved.losses_apart": Rule(unit="difference", high=1e-4),
    "starts.good_exits": Rule(unit="share", low=1, high=1),
    "starts.slowest_stop_seconds": Rule(unit="s", high=5),
    "torchrun.losses_apart": Rule(unit="difference", high=1e-4),
}


def rule_of(name: str) -> Rule:
    """The rule of a figure by its full name, or by its last."""
    return RULES.get(name) or COMMON.get(name.rpartition(".")[2]) or Rule()


def verdict(figure: object, rule: Rule, *, device: str) -> str:
    """PASS, FAIL or nothing.

    Args:
        device: `cpu`, or the GPU's name.
    """
    for_here = rule.on is None or (rule.on == "cuda" and device != "cpu") or rule.on in device
    if not rule.is_bound or not for_here:
        return ""
    if not isinstance(figure, (bool, int, float)):
        return "FAIL"
    low = rule.low if rule.low is not None else float("-inf")
    high = rule.high if rule.high is not None else float("inf")
    return "PASS" if low <= figure <= high else "FAIL"


def lines(section: str, found: Figures, *, device: str) -> list[Figures]:
    """One object for each figure of a section, and for each that it should have measured and has not."""
    told = {f"{section}.{name}": figure for name, figure in found.items()}
    if not any(name.endswith(("left_out", "failed")) for name in found):
        due = [
            name
            for name, rule in RULES.items()
            if name.startswith(f"{section}.") and verdict(None, rule, device=device)
        ]
        told |= {name: "not measured" for name in due if name not in told}
    return [
        {"what": name, "figure": figure, "unit": rule.unit, "wanted": rule.wanted}
        | {"verdict": verdict(figure, rule, device=device)}
        for name, figure in told.items()
        for rule in [rule_of(name)]
    ]
