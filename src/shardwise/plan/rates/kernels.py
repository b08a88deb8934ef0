"""Seconds of work on one GPU: matrix products by shape, attention, memory-bound operators by bytes.

The rates stand here and in `links.py`, and a probe replaces them; passes over memory stand with
what makes them, in `plan/costs` and `time/pieces.py`. Where they come from: shares of A100 and
H100, for products, from the rows of llm-foundry (one source, all model sizes and lengths at once;
`attention.py` has attention's); bytes around adapters and of 4-bit weights from those of
fms-acceleration. The other sources of `docs/accuracy.md` are the check, and no constant was fitted
to a single row. Shares of other GPUs are those of their generation, lowered where the power limit
is low for the peak.

The H20 is a Hopper with a seventh of its rate of products and all of its memory, so that little
keeps these from their peak of 148 TFLOP/s: cuBLAS reaches 134 (github.com/nideyongbao/CUDA_GEMM,
docs/README.md), attention 66 to 84 forward, and 96 to 126 in kernels of the third generation
(Dao-AILab/flash-attention, issue 1310). That is the share which those of the second reach on
Ampere, and the H20 has Ampere's where there is no figure.
"""

from dataclasses import dataclass
from functools import cached_property

from shardwise.plan.rates.attention_rates import PROBED, attention_share, share_of
from shardwise.spec.cluster import Gpu

#: Share of the dense peak that large, well-shaped products reach, by how the GPU's name begins.
#: What a data sheet calls peak holds at the highest clock; the power limit decides how much of it
#: is left.
_CEILINGS = (
    *(("A100", 0.80), ("A800", 0.80), ("A10", 0.62)),
    *(("H20", 0.90), ("H", 0.68), ("GH", 0.68), ("B", 0.68), ("GB", 0.68)),
    # The RTX 5000 Ada has the L40S's watts for each FLOP/s of its peak, the RTX 4000 Ada the A10's.
    *(("L4", 0.60), ("L40", 0.60), ("RTX-6000-Ada", 0.60), ("RTX-5000-Ada", 0.60)),
    *(("RTX-4500-Ada", 0.65), ("RTX-4000-Ada", 0.62)),
    *(("RTX-PRO", 0.60), ("MI", 0.55), ("RTX", 0.90), ("cpu", 1.0), ("", 0.75)),
)
#: A dim of this size halves the efficiency: tiles are filled badly and the pipeline is short.
_HALF_SIZE = {"cuda": 96, "cpu": 8}
#: Attention's backward has five products for two in forward, at a rate somewhat below.
ATTENTION_BACKWARD = 3.0
_BANDWIDTH_SHARE = 0.8

#: A collective takes multiprocessors and bandwidth from computation: this share of its own time.
CONTENTION = 0.1
#: The host's time to launch one operator of eager PyTorch, through autograd and Python; compiled,
#: most are fused and the rest launched from generated code.
HOST_SECONDS_PER_OPERATOR = 12e-6
COMPILED_OPERATORS_SHARE = 0.25
#: An operator of a model takes the host so many times what the probe's chain of products with a
#: number does: modules, arguments and views are Python.
OPERATOR_OVER_MEASURED = 2.0


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU and the type it computes in. `share`: of a CPU process's rates, by its cores."""

    gpu: Gpu
    compute: str
    element_bytes: int
    share: float = 1.0

    @cached_property
    def slower(self) -> float:
        """Times as long as by its rates a CPU process was measured to take for a step."""
        alone = self.gpu.alone_over_rates if self.share > 1 else 1.0
        known = self.gpu.step_over_rates
        return alone * known.get(self.compute, known.get("float32", 1.0))

    @cached_property
    def peak(self) -> float:
        """Dense FLOP/s; a type the GPU has no units for runs at float32's rate."""
        return self.share * self.gpu.dense_flops.get(self.compute, self.gpu.dense_flops["float32"])

    @cached_property
    def ceiling(self) -> float:
        """FLOP/s of the best products."""
        if self.compute in self.gpu.product_flops:
            return self.share * self.gpu.product_flops[self.compute]
        if self.gpu.measured:
            return self.peak / self.slower
        return self.peak * share_of(_CEILINGS, self.gpu.name)

    @cached_property
    def _bytes_per_second(self) -> float:
        reached = 1.0 if self.gpu.measured else _BANDWIDTH_SHARE
        return self.share / self.slower * self.gpu.memory_bytes_per_second * reached

    def product(self, m: float, n: float, k: float) -> float:
        """Seconds of an (m x k) times (k x n) product: by FLOPs or bytes, whichever is longer."""
        half = _HALF_SIZE[self.gpu.kind]
        # The FLOPs over an efficiency of m / (m + half) for each dim.
        flops = 2.0 * (m + half) * (n + half) * (k + half) / self.ceiling
        moved = self.element_bytes * (m * k + k * n + m * n) / self._bytes_per_second
        return flops if flops > moved else moved

    def attention(self, flops: float, *, kind: str, length: float, head: int = 128) -> tuple[float, float]:
        """Seconds of attention by one kernel over rows of a length, with heads of a width, forward
        and backward, by its FLOPs in forward."""
        if not flops:
            return 0.0, 0.0
        if self.gpu.attention_seconds and kind in PROBED:
            known = self.gpu.attention_seconds[self.compute]
            forward, backward = (read_between(known[way], flops) for way in ("forward", "backward"))
            return forward * self.slower / self.share, backward * self.slower / self.share
        forward = flops / (self.peak * attention_share(self.gpu, kind, length=length, head=head))
        return forward, ATTENTION_BACKWARD * forward

    @property
    def operator_seconds(self) -> float:
        """Of the host, to launch one operator."""
        measured = OPERATOR_OVER_MEASURED * self.slower * self.gpu.operator_seconds
        return measured or HOST_SECONDS_PER_OPERATOR

    def bytes_moved(self, count: float) -> float:
        """Seconds of operators that only move so many bytes."""
        return count / self._bytes_per_second


def read_between(known: dict[str, float], count: float, *, times: float = 1.0) -> float:
    """Seconds of a count between those that were measured, or beyond the largest of them at its
    rate; the smallest, which is all latency, takes as many `times` as long."""
    points = sorted((int(size), seconds) for size, seconds in known.items())
    latency = points[0][1]
    above = next((at for at in range(1, len(points)) if count <= points[at][0]), len(points) - 1)
    (small, fast), (large, slow) = points[above - 1], points[above]
    return times * latency + max(fast + (slow - fast) * (count - small) / (large - small) - latency, 0.0)
