"""The losses of preferences, each of log-probabilities of pairs [pairs], or of labelled rows
[rows].

`d` is the difference of the log-ratios of chosen and rejected, policy over reference. Sources: DPO
(Rafailov et al., 2023), IPO (Azar et al., 2023), SLiC's hinge (Zhao et al., 2023), robust DPO
(Chowdhury et al., 2024), EXO (Ji et al., 2024), NCA (Chen et al., 2024), BCO (Jung et al., 2024),
SPPO (Wu et al., 2024), APO (D'Oosterlinck et al., 2024), DiscoPOP (Lu et al., 2024), ORPO (Hong et
al., 2024), SimPO (Meng et al., 2024), KTO (Ethayarajh et al., 2024).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shardwise.spec.job.preference import PreferenceSpec

#: Of DiscoPOP's paper.
_TEMPERATURE = 0.05


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Of pairs, float32 [pairs]: log-probabilities of both sides, their ratios to the reference,
    tokens that each sums over; `prompts`: of chosen ones, or 0; `text_weight`: of sums in means."""

    chosen: Tensor
    rejected: Tensor
    chosen_ratio: Tensor
    rejected_ratio: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor
    prompts: Tensor
    text_weight: float


def _difference(pairs: Pairs) -> Tensor:
    return pairs.chosen_ratio - pairs.rejected_ratio


def _per_token(pairs: Pairs) -> Tensor:
    return pairs.chosen_ratio / pairs.chosen_tokens - pairs.rejected_ratio / pairs.rejected_tokens


def _exo(pairs: Pairs, spec: PreferenceSpec) -> Tensor:
    scaled, smoothing = spec.beta * _difference(pairs), spec.label_smoothing
    right = scaled.sigmoid() * (F.logsigmoid(scaled) - math.log1p(-smoothing))
    return right + (-scaled).sigmoid() * (F.logsigmoid(-scaled) - math.log(smoothing))


def _nca(pairs: Pairs, spec: PreferenceSpec) -> Tensor:
    chosen, rejected = spec.beta * pairs.chosen_ratio, spec.beta * pairs.rejected_ratio
    return -F.logsigmoid(chosen) - 0.5 * (F.logsigmoid(-chosen) + F.logsigmoid(-rejected))


def _robust(pairs: Pairs, spec: PreferenceSpec) -> Tensor:
    scaled, flipped = spec.beta * _difference(pairs), spec.label_smoothing
    return (flipped * F.logsigmoid(-scaled) - (1 - flipped) * F.logsigmoid(scaled)) / (1 - 2 * flipped)


def _discopop(pairs: Pairs, spec: PreferenceSpec) -> Tensor:
    scaled = spec.beta * _difference(pairs)
    share = (scaled / _TEMPERATURE).sigmoid()
    return -F.logsigmoid(scaled) * (1 - share) + (-scaled).exp() * share


#: Of `dpo`, by the names of `loss_type`.
OF_PAIRS: dict[str, Callable[[Pairs, PreferenceSpec], Tensor]] = {
    "sigmoid": lambda pairs, spec: -F.logsigmoid(spec.beta * _difference(pairs)),
    "hinge": lambda pairs, spec: (1 - spec.beta * _difference(pairs)).relu(),
    "ipo": lambda pairs, spec: (_per_token(pairs) - 1 / (2 * spec.beta)) ** 2,
    "exo_pair": _exo,
    "nca_pair": _nca,
    "robust": _robust,
    "bco_pair": lambda pairs, spec: (
        -F.logsigmoid(spec.beta * pairs.chosen_ratio) - F.logsigmoid(-spec.beta * pairs.rejected_ratio)
    ),
    "sppo_hard": lambda pairs, spec: (
        (pairs.chosen_ratio - 0.5 / spec.beta) ** 2 + (pairs.rejected_ratio + 0.5 / spec.beta) ** 2
    ),
    "apo_zero": lambda pairs, spec: (
        (-spec.beta * pairs.chosen_ratio).sigmoid() + (spec.beta * pairs.rejected_ratio).sigmoid()
    ),
    "apo_down": lambda pairs, spec: (
        (spec.beta * pairs.chosen_ratio).sigmoid() + (-spec.beta * _difference(pairs)).sigmoid()
    ),
    "discopop": _discopop,
    "sft": lambda pairs, _: -pairs.text_weight * pairs.chosen,  # the token loss of the chosen side
    "sigmoid_norm": lambda pairs, spec: -F.logsigmoid(spec.beta * _per_token(pairs)),
}


def dpo(pairs: Pairs, spec: PreferenceSpec) -> Tensor:
    """The sum of the losses in `loss_type`, [pairs]."""
    weights = spec.loss_weights or [1.0] * len(spec.loss_type)
    return sum(
        (weight * OF_PAIRS[kind](pairs, spec) for kind, weight in zip(spec.loss_type, weights, strict=True)),
        torch.zeros_like(pairs.chosen),
    )


def means(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Log-probabilities per token of both sides."""
    return pairs.chosen / pairs.chosen_tokens, pairs.rejected / pairs.rejected_tokens


def orpo(pairs: Pairs, spec: PreferenceSpec) -> Tensor:
    """The token loss of the whole chosen row, less `beta` log sigmoid of the log odds ratio."""
    chosen, rejected = means(pairs)
    odds = (chosen - rejected) - (_log_of_rest(chosen) - _log_of_rest(rejected))
    return -pairs.text_weight * (pairs.chosen + pairs.prompts) - spec.beta * F.logsigmoid(odds)


def _log_of_rest(log: Tensor) -> Tensor:
    """log(1 - exp(x)) of x < 0, without cancellation at either end (Maechler, 2012)."""
    log = log.clamp(max=-torch.finfo(log.dtype).tiny)
    near = log > -math.log(2)
    small = torch.where(near, log, -torch.ones_like(log))
    large = torch.where(near, -torch.ones_like(log), log)
    return torch.where(near, (-torch.expm1(small)).log(), torch.log1p(-large.exp()))


def simpo(pairs: Pairs, spec: PreferenceSpec) -> Tensor:
    """Of log-probabilities per token, with a margin."""
    chosen, rejected = means(pairs)
    scaled = spec.beta * (chosen - rejected) - spec.simpo_gamma
    smoothing = spec.label_smoothing
    return -F.logsigmoid(scaled) * (1 - smoothing) - F.logsigmoid(-scaled) * smoothing


def kto(ratio: Tensor, good: Tensor, *, divergence: float | Tensor, spec: PreferenceSpec) -> Tensor:
    """Of rows by log-ratios [rows] and labels; `divergence`: of the global batch, >= 0."""
    base = divergence if spec.loss_type == ["kto"] else 0.0
    sign = torch.where(good, 1.0, -1.0)
    weight = torch.where(good, spec.desirable_weight, spec.undesirable_weight)
    return weight * (-spec.beta * sign * (ratio - base)).sigmoid()
