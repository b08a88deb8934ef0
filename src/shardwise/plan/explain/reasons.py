"""Why the chosen execution is as it is: what its strategy does, and what costs are counted at."""

from dataclasses import replace
from math import prod

from shardwise.catalog.prices import cited, price_of
from shardwise.plan.explain.comparison import doubted, named, percent, with_offload
from shardwise.plan.explain.worth import keys_and_values, why_compiled, worth_parts
from shardwise.plan.search import BETTER, Question, Search, ratio, simplicity, tie_of, work_on
from shardwise.plan.time import masked_share
from shardwise.plan.work import Work
from shardwise.spec.cluster import Cluster, Gpu
from shardwise.spec.job.keys import Goal, LayoutSpec
from shardwise.spec.layout.axes import STRATEGIES
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate, Sentence
from shardwise.spec.plan.offers import format_dollars
from shardwise.spec.support.attention import documents_refusal
from shardwise.units import format_gib

#: Of a block's forward, what is worth a sentence.
_MUCH_OF_A_BLOCK = 0.2
#: What another layout must gain to be named.
_WORTH_NAMING = 0.05


def why(search: Search, chosen: Candidate, *, best: Candidate, without: Candidate | None) -> tuple[str, ...]:
    """Why the chosen candidate is as it is. `search` found it; `best`: the fastest; `without`: what
    would be chosen with the least offload that anything fits with: each perhaps the chosen one."""
    question = search.question
    work, goal = work_on(question, question.cluster, chosen.execution), question.job.goal
    sentences = [
        _fit(chosen),
        what_it_does(chosen.execution),
        _tie(chosen, best, question=question),
        _idle(work, question.cluster),
        _batch(work),
        _offload(search, work, chosen, without or chosen, asked=not question.tries_offload),
        _recompute(search, work),
        why_compiled(search, work),
        _mask(work),
        _precision(work),
        _length(work),
        worth_parts(search, work),
        keys_and_values(work),
        _tiles(work),
        _rates(work),
        price_sentence(work.cluster.gpu, goal=goal),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def _tie(chosen: Candidate, best: Candidate, *, question: Question) -> str | None:
    """Why a simpler candidate was preferred to a better one; None where that is by little."""
    goal = question.job.goal
    share = ratio(best, chosen, goal=goal)
    if share >= 1 - _WORTH_NAMING:
        return None
    if best.execution.layout == chosen.execution.layout and best.execution.offload == chosen.execution.offload:
        kept = best.execution.gradient_checkpointing
        how = "" if kept == chosen.execution.gradient_checkpointing else f" with gradient_checkpointing {kept}"
        more = f"micro-batch {best.execution.micro_batch_size}{how} would be {percent(1 - share)} {BETTER[goal][0]}"
        return Sentence(f"{more}, and leave no room for a screen that the card may drive", "elsewhere")
    doubt = doubted(best, question, beside=chosen)
    why = doubt or f"forecasts within {percent(tie_of(question.cluster.gpu))} of each other are taken as equal"
    simpler = simplicity(chosen.execution) < simplicity(best.execution)
    return (
        f"{named(best, chosen)} would be {percent(1 - share)} {BETTER[goal][0]}; {why}"
        f"{f', and {named(chosen, best)} is simpler' * simpler}{_how_to_take(best, chosen)}"
    )


def _how_to_take(candidate: Candidate, chosen: Candidate) -> str:
    """What a job states for its search to take a strategy, unless that is a product of several."""
    name, offload = candidate.execution.layout.strategy, candidate.execution.offload
    if name not in STRATEGIES:
        return ""
    stated = "" if offload == chosen.execution.offload else f" with train.offload: {offload}"
    return f"; layout: [{name}]{stated} takes the better one"


def _fit(candidate: Candidate) -> str:
    memory = candidate.memory
    most = f"at most {format_gib(memory.peak_high_bytes)}, of {format_gib(memory.capacity_bytes)}"
    return Sentence(f"needs {format_gib(memory.peak_bytes)}, {most}; the peak is at {memory.peak_instant}", "elsewhere")


def _precision(work: Work) -> str | None:
    """What a precision that the user may not expect means for the result."""
    if work.execution.precision == "bf16":
        beta, rule = work.job.train.adam_beta2, work.execution.optimizer_rule
        # From there on a step takes less of a bfloat16 second moment than rounding gives back.
        stays = rule.moments == 2 and not rule.in_8_bits and beta > 0.995
        moments = f"; at adam_beta2 {beta} AdamW's second moments never fall either: 0.99 lets them" if stays else ""
        rounded = "precision bf16 keeps no float32 masters: small updates are rounded away, and that cannot be undone"
        return rounded + moments
    if work.execution.precision == "fp32" and work.job.train.precision == "auto":
        return "precision fp32, because CPU processes gain nothing from mixed; on GPUs auto is mixed"
    if work.execution.precision == "fp16" and work.job.train.precision == "auto":
        return (
            f"precision fp16 with a scale of the loss, because {work.cluster.gpu.name} is older than bfloat16 (compute "
            "capability 8.0); steps whose gradients overflow are skipped, and many of a model that was trained in "
            "bfloat16 may"
        )
    return None


def _length(work: Work) -> str | None:
    length, most = work.job.data.max_length, work.model.max_position_embeddings
    if length <= most:
        return None
    made = f"WARNING: sequences of up to {length} tokens are longer than the {most} positions the model was made for"
    return Sentence(f"{made}: a row of more is refused as the run begins, unless rope_scaling stretches them", "always")


def _tiles(work: Work) -> str | None:
    if not work.setting.tiled:
        return None
    return f"MLPs {'' if work.execution.compile else 'and norms '}are computed {work.mlp_tokens:,} positions at a time"


def _idle(work: Work, cluster: Cluster) -> str | None:
    taken, left = work.execution.layout.world_size, cluster.num_gpus - work.execution.layout.world_size
    if not isinstance(work.job.layout, LayoutSpec) or not left:
        return None
    idle = f"{left} {'is' if left == 1 else 'are'} idle, and not counted in costs and rates"
    return Sentence(f"layout takes {taken} of the {cluster.num_gpus} {cluster.unit}: {idle}", "always")


def _batch(work: Work) -> str:
    execution, ranks = work.execution, work.execution.layout.data_world_size
    factors = (execution.micro_batch_size, execution.gradient_accumulation_steps, ranks)
    product, asked = prod(factors), work.job.train.global_batch_size
    sentence = (
        f"micro-batch {factors[0]} x {factors[1]} accumulated x {factors[2]} ranks = "
        f"{product} {work.job.samples} per step"
    )
    if product == asked:
        return Sentence(sentence, "elsewhere")
    verb = "is" if product - asked == 1 else "are"
    return f"{sentence}; global_batch_size is {asked}, so {product - asked} of them {verb} padding of weight zero"


def _recompute(search: Search, work: Work) -> str | None:
    execution = work.execution
    if execution.gradient_checkpointing == "none":
        return None
    if work.job.train.gradient_checkpointing != "auto":
        asked = f"gradient_checkpointing is {execution.gradient_checkpointing} as asked"
        if not work.saves_on_host:
            return asked
        held, ranks = search.forecasts.memory.bytes_on_host(execution), _on_one_machine(work)
        where = f"what blocks save waits in the host's memory, which holds {format_gib(held)} for each GPU"
        return f"{asked}: {where}" + (f", {format_gib(ranks * held)} on one machine" if ranks > 1 else "")
    high = search.forecasts.memory.high_bytes(replace(execution, gradient_checkpointing="none"))
    kept = f"; without it this micro-batch needs {format_gib(high)}"
    return f"gradient_checkpointing is {execution.gradient_checkpointing}, the fastest that fits here{kept}"


def _on_one_machine(work: Work) -> int:
    return min(work.cluster.node.num_gpus, work.execution.layout.world_size)


def _offload(search: Search, work: Work, chosen: Candidate, without: Candidate, *, asked: bool) -> str | None:
    """What lies in the host's memory, why, and how much of that a machine must have."""
    offload = work.execution.offload
    if offload == "none" or not work.setting.cuda:
        return None
    held = search.forecasts.memory.bytes_on_host(work.execution)
    why = "as asked" if asked else _why_offload(chosen, without, question=search.question)
    machine = held * _on_one_machine(work)
    return (
        f"offload is {offload} {why}: {format_gib(held)} for each GPU lie in the host's memory, {format_gib(machine)} "
        "on one machine; every step waits for the host"
    )


def _why_offload(chosen: Candidate, without: Candidate, *, question: Question) -> str:
    goal = question.job.goal
    alone = "nothing fits so few GPUs without" if goal == "fewest-gpus" else "nothing fits without"
    if without.execution.offload == chosen.execution.offload:
        return f"because {alone}"
    needed = "" if without.execution.offload == "none" else f"{alone}, and "
    share = ratio(without, chosen, goal=goal)
    much = f"{100 * share - 100:.1f} % {BETTER[goal][1]}" if share < 2 else f"{share:.1f} times {BETTER[goal][2]}"
    if share < 1 and (doubt := doubted(without, question, beside=chosen)):
        much = f"no {BETTER[goal][1]}, but {doubt}"
    best = f"the best{with_offload(without, chosen)}{' that leaves room for a screen' * bool(question.screen_bytes)}"
    return f"because {needed}{without.execution.layout.strategy}, {best}, is {much}"


def _mask(work: Work) -> str | None:
    """What a kernel that is handed a mask costs, where that is much."""
    share = 0.0 if work.profile is not None else masked_share(work)
    if share < _MUCH_OF_A_BLOCK:
        return None
    lacking = documents_refusal(work.job, work.model, "varlen") if work.job.data.packing else None
    unless = f"; varlen {lacking}" if lacking else ""
    what = "packed documents" if work.job.data.packing else f"windows of {work.model.sliding_window} tokens"
    return (
        f"for {what} {work.execution.attn_implementation} is handed a mask and computes all scores, "
        f"{percent(share)} of a block's forward; flex_attention computes those that count{unless}"
    )


def _rates(work: Work) -> str | None:
    gpu, compute = work.cluster.gpu, work.types.compute_name
    if gpu.kind == "cpu":
        nominal = Sentence("times of CPU processes are nominal, not measured on this machine", "always")
        return None if gpu.measured else nominal
    if compute not in gpu.dense_flops:
        return f"{gpu.name} has no {compute} units; times are counted at its float32 rate"
    return None


def price_sentence(gpu: Gpu, *, goal: Goal) -> str | None:
    """A sentence for the reasons of a choice; None for CPU processes, which have no price."""
    if gpu.kind == "cpu":
        return None
    typical = gpu.typical_usd_per_hour
    if typical is not None:
        citation = cited([gpu.name])
        dated = "" if citation is None or citation.date in citation.source or " to " in citation.date else citation.date
        where = f" ({citation.source}{dated and ', '}{dated})" if citation else ""
        said = f"costs are at {_kind_of(gpu)} the {gpu.name}, {format_dollars(typical)} an hour{where}"
        return Sentence(said, "price")
    ranked = "; cheapest takes the fewest GPU hours" if goal == "cheapest" else ""
    if gpu.usd_per_hour is None:
        return f"no price is known for the {gpu.name}, so no cost is forecast{ranked}"
    lowest = format_dollars(gpu.usd_per_hour[0])
    return f"only a lowest offer is known for the {gpu.name}, {lowest} an hour, which costs begin at{ranked}"


def _kind_of(gpu: Gpu) -> str:
    price = price_of(gpu.name)
    if price is None or price.typical != gpu.typical_usd_per_hour:
        return "the price of"
    several = f"the median of {price.providers} providers' prices for"
    return "the one price known for" if price.providers == 1 else several


_ONE_AT_A_TIME = "layers lie on different GPUs, in stages of which one works at a time"

#: What a strategy does, for the reasons of a choice.
_DOES = {
    "single": "everything fits on one GPU",
    "ddp": "copies of the model work on different samples, and their gradients are added up",
    "zero1": "optimizer states are sharded; gradients are added up as whole ones, and new weights handed round",
    "zero2": "optimizer states and gradients are sharded; weights gathered for a forward stay for its backward",
    "fsdp": "weights, gradients and optimizer states are sharded; weights are gathered as they are used",
    "hsdp": "sharded inside groups of GPUs, and replicated between the groups",
    "mp": _ONE_AT_A_TIME,
    "pp": "layers lie on different GPUs, in stages that work on different micro-batches at once",
    "tp": "each GPU has a slice of each matrix",
    "cp": "each GPU has two parts of each sequence, and gathers the keys and values of all",
    "ep": "experts lie on different GPUs, and tokens travel to them and back",
}

#: Of those that are the whole strategy: nothing else travels.
_ALONE = {"ddp": "a whole copy fits on every GPU, so only gradients travel"}

#: The same where they would say too much, as something lies in the host's memory.
_ALONE_WITH_HOST = {
    "single": "one GPU is enough, with the host's memory beside it",
    "ddp": "each GPU works on its own, with the host's memory beside it, so only gradients travel between GPUs",
}

#: Where a backward is cut in two, and what it gathers and makes waits for the end of a step.
_POSTPONED = {"zero2": "optimizer states are sharded; gathered weights and whole gradients stay until a step ends"}


def what_it_does(execution: Execution) -> str:
    """What each part of the strategy does here."""
    parts = execution.layout.strategy.split(" x ")
    does = dict(_DOES)
    if len(parts) == 1:
        does |= _ALONE_WITH_HOST if execution.optimizer_on_host else _ALONE
    if execution.postpones_reduction:
        does |= _POSTPONED
    if execution.gradient_accumulation_steps == 1:
        does["pp"] = _ONE_AT_A_TIME
    return "; ".join(f"{name}: {does[name]}" for name in parts)
