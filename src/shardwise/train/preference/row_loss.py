"""The loss of a micro-batch by log-probabilities of its rows, and its slope in each."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from shardwise.spec.job.preference import PreferenceSpec
from shardwise.train.preference import losses
from shardwise.train.preference.losses import Pairs

#: What is recorded of a step, by TRL's names: sums over pairs or rows, then how many each is of.
CHOSEN, REJECTED, RIGHT, CHOSEN_LOG, REJECTED_LOG, DIVERGENCE, NUM_CHOSEN, NUM_REJECTED = range(8)
NUM_FIGURES = 8

#: Of two rewards that are nearer than this share of the log-probabilities that they are differences
#: of, none is the higher one: which it is would depend on how the work is spread.
ROUNDING = 2.0**-21


def named(figures: list[float], *, pairs: bool) -> dict[str, float]:
    """The means of a global batch; without a row of a kind nothing of it."""
    good, bad = figures[NUM_CHOSEN], figures[NUM_REJECTED]
    found: dict[str, float] = {}
    if good:
        found |= {"rewards/chosen": figures[CHOSEN] / good, "logps/chosen": figures[CHOSEN_LOG] / good}
    if bad:
        found |= {"rewards/rejected": figures[REJECTED] / bad, "logps/rejected": figures[REJECTED_LOG] / bad}
    if good and bad:
        found["rewards/margins"] = found["rewards/chosen"] - found["rewards/rejected"]
    if pairs and good:
        found["rewards/accuracies"] = figures[RIGHT] / good
    if not pairs:
        found["kl"] = figures[DIVERGENCE]
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class PreferenceLoss:
    """Of one micro-batch on this rank. Of rows, float32 [rows], `tokens`: trained ones of all
    parts, 1 at the least, and `reference`: log-probabilities under it, 0 without one; `counts`:
    float32 [samples], 0 for what fills up a batch; `figures`: float64 [NUM_FIGURES], to which it
    adds; `good`: bool [rows] of labelled rows, None for pairs; `divergence`: the KL of the global
    batch; `text_weight`: as in `Pairs`; `group`: ranks with the other parts of rows, if any."""

    spec: PreferenceSpec
    objective: str
    tokens: Tensor
    counts: Tensor
    reference: Tensor
    figures: Tensor
    good: Tensor | None = None
    divergence: float | Tensor = 0.0
    text_weight: float = 0.0
    group: dist.ProcessGroup | None = None

    @property
    def parts(self) -> int:
        """In how many parts rows are."""
        return 1 if self.group is None else self.group.size()

    @property
    def num_sums(self) -> int:
        """How many sums it reads: of rows, and of prompts where those are trained too."""
        return len(self.tokens) * (2 if self.objective == "orpo" else 1)

    def __call__(self, sums: Tensor, *, learns: bool) -> tuple[Tensor, Tensor]:
        """This rank's part of the loss, a scalar, and the whole's slope in its sums [num_sums]."""
        sums = whole_rows(sums, group=self.group)
        with torch.enable_grad():
            given = sums.detach().requires_grad_(learns)
            each = self._pairs(given) if self.good is None else self._labelled(given, self.good)
            loss = (torch.where(self.counts > 0, each, 0)).sum()
        slopes = torch.autograd.grad(loss, given)[0] if learns else torch.zeros_like(given)
        return loss.detach() / self.parts, slopes

    def _pairs(self, sums: Tensor) -> Tensor:
        rows = len(self.tokens)
        chosen, rejected = sums[:rows].view(-1, 2).unbind(1)
        ratios = (sums[:rows] - self.reference).view(-1, 2)
        tokens = self.tokens.view(-1, 2)
        prompts = sums[rows:].view(-1, 2)[:, 0] if len(sums) > rows else torch.zeros_like(chosen)
        pairs = Pairs(
            chosen=chosen,
            rejected=rejected,
            chosen_ratio=ratios[:, 0],
            rejected_ratio=ratios[:, 1],
            chosen_tokens=tokens[:, 0],
            rejected_tokens=tokens[:, 1],
            prompts=prompts,
            text_weight=self.text_weight,
        )
        each = {"dpo": losses.dpo, "orpo": losses.orpo, "simpo": losses.simpo}[self.objective](pairs, self.spec)
        self._note_pairs(pairs)
        return each

    @torch.no_grad()
    def _note_pairs(self, pairs: Pairs) -> None:
        log_chosen, log_rejected = pairs.chosen, pairs.rejected
        if self.objective == "dpo":
            chosen, rejected = pairs.chosen_ratio, pairs.rejected_ratio
        else:
            chosen, rejected = log_chosen, log_rejected = losses.means(pairs)
        near = ROUNDING * (log_chosen.abs() + log_rejected.abs())
        right = (chosen - rejected > near).float()
        ones, none = torch.ones_like(chosen), torch.zeros_like(chosen)
        beta = self.spec.beta
        self._note(beta * chosen, beta * rejected, right, log_chosen, log_rejected, none, ones, ones)

    def _labelled(self, sums: Tensor, is_good: Tensor) -> Tensor:
        ratio = sums - self.reference
        with torch.no_grad():
            good, none = is_good.float(), torch.zeros_like(ratio)
            bad, reward = 1 - good, self.spec.beta * ratio
            self._note(good * reward, bad * reward, none, good * sums, bad * sums, none, good, bad)
        return losses.kto(ratio, is_good, divergence=self.divergence, spec=self.spec)

    def _note(self, *each: Tensor) -> None:
        counted = torch.where(self.counts > 0, torch.stack(each).detach(), 0)
        self.figures.add_(counted.double().sum(1) / self.parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowLogProbs:
    """In the place of a loss, what asks for log-probabilities of rows, and learns nothing."""

    num_sums: int
    group: dist.ProcessGroup | None = None

    def __call__(self, sums: Tensor, *, learns: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The log-probabilities."""
        return whole_rows(sums, group=self.group), torch.zeros_like(sums)


def whole_rows(sums: Tensor, *, group: dist.ProcessGroup | None) -> Tensor:
    """Sums over the parts of rows that other ranks hold, too."""
    if group is not None:
        sums = sums.clone()
        dist.all_reduce(sums, group=group)
    return sums
