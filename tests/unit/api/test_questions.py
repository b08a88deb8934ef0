"""Questions as practitioners ask them, and what must hold for them to believe the answer."""

from collections.abc import Callable

import pytest

from shardwise.api import plan
from shardwise.spec.plan.forecast import Plan, verdict
from tests.marks import first

LONG = "data.max_length=2048 train.global_batch_size=16 data.num_rows=20000"
CHEAP = "goal=cheapest data.num_rows=20000"
LITTLE = "none optimizer"
MANY = "data.num_rows=100000 data.max_length=4096 train.global_batch_size=64"
DATA_PARALLEL = {"ddp", "zero1", "zero2", "fsdp", "hsdp"}


def _said(made: Plan) -> str:
    reasons = made.best.reasons if made.best else ()
    return " ".join([*reasons, *made.advice, *made.notes, *(one.sentence for one in made.changes)])


def _is(strategies: str, *, offload: str = "none") -> Callable[[Plan], bool]:
    def holds(made: Plan) -> bool:
        best = made.best
        is_so = best is not None and best.execution.layout.strategy in strategies.split()
        return is_so and best is not None and best.execution.offload in offload.split()

    return holds


def _precision(name: str) -> Callable[[Plan], bool]:
    return lambda made: made.best is not None and made.best.execution.precision == name


def _says(*words: str) -> Callable[[Plan], bool]:
    return lambda made: all(word in _said(made) for word in words)


def _smallest_is_said(made: Plan) -> bool:
    return made.hardware["num_gpus"] == 1 and "adamw_8bit, precision: bf16 on 1x " in _said(made)


def _is_floor(made: Plan) -> bool:
    cost, hours = made.best.cost, made.best.time.total_seconds / 3600
    return cost.at_least and cost.usd == pytest.approx(cost.usd_per_hour * hours)


def _surely(made: Plan) -> bool:
    return made.chance is not None and made.chance.in_100 >= 95


def _host_is_said_first(made: Plan) -> bool:
    reasons = made.best.reasons if made.best else ()
    found = [n for n, one in enumerate(reasons) if one.startswith(("offload is", "gradient_checkpointing is"))]
    return reasons[found[0]].startswith("offload is")


def _costs_less_than(usd: float) -> Callable[[Plan], bool]:
    def holds(made: Plan) -> bool:
        return made.offers is not None and (made.offers.options[0].typical_usd or usd) < usd

    return holds


def _shows(*gpus: str) -> Callable[[Plan], bool]:
    def holds(made: Plan) -> bool:
        rows = [one.hardware for one in made.offers.shown] if made.offers else []
        return all(any(row in (f"1x {gpu}", f"2x {gpu}") for row in rows) for gpu in gpus)

    return holds


def _has_row(hardware: str, written: str) -> Callable[[Plan], bool]:
    return lambda made: (hardware, written) in [row.cells()[::2][:2] for row in made.offers.shown]


def _says_the_whole_run(made: Plan) -> bool:
    row = made.offers.options[0] if made.offers else None
    return row is not None and f"{row.duration} and {row.cost} for the run, its start included" in verdict(made)


def _advises_no_other_gpu(made: Plan) -> bool:
    return not any(" on 1x " in one.name for one in made.changes)


def _does_not_fit(made: Plan) -> bool:
    return made.best is None and bool(made.advice)


#: (model, method, hardware, other keys) -> what holds. The first eleven were believed by nobody.
ASKED: list[tuple[str, str, str, str, tuple[Callable[[Plan], bool], ...]]] = [
    ("llama-3.2-3b", "qlora", "1x T4", LONG, (_precision("fp16"), _is("single"))),
    ("llama-3.2-3b", "qlora", "1x V100-32GB", LONG, (_precision("fp16"),)),
    ("llama-3.1-8b", "lora", "2x RTX-3090", LONG, (_is("ddp zero1 fsdp"),)),
    *(("llama-3.1-405b", "lora", "8x H200", keys, (_is("fsdp", offload=LITTLE),)) for keys in ("", LONG)),
    ("llama-3.1-8b", "lora", "2x RTX-3090", "", (_is("ddp zero1 fsdp", offload=LITTLE),)),
    ("llama-3-70b", "full", "2 x 8x H100-SXM", LONG, (_is("ddp zero1 fsdp", offload=LITTLE),)),
    ("llama-3-70b", "qlora", "4x RTX-3090", LONG, (_is("ddp zero1 fsdp", offload=LITTLE),)),
    *(
        ("llama-3-70b", "qlora", "2x RTX-3090", keys, (_is("fsdp", offload=f"{LITTLE} parameters all"),))
        for keys in ("", LONG, "data.max_length=512")
    ),
    ("llama-3-70b", "full", "2 x 8x H100-SXM", MANY, (_says("adamw_8bit", "rounds the moments"),)),
    ("llama-3.1-8b", "lora", "any", CHEAP, (lambda made: made.offers.options[0].hardware == "1x RTX-4090",)),
    ("llama-3-70b", "full", "8x MI300X", "", (_says("nothing was tried on ROCm"),)),
    ("llama-3.2-1b", "full", "1x RTX-4060-Ti-16GB", "", (_says("adamw_8bit"),)),
    ("llama-3.1-8b", "qlora", "1x RTX-3060", LONG, (_is_floor,)),
    ("llama-3.1-8b", "full", "1x H100-SXM", "", (_says("adamw_8bit", "drawback"),)),
    # Twenty of the same kind.
    ("qwen3-8b", "qlora", "1x RTX-4090", "data.max_length=8192 train.global_batch_size=16", (_is("single"),)),
    ("qwen3-8b", "lora", "2x RTX-4090", LONG, (_is("ddp fsdp"),)),
    ("qwen2.5-32b", "qlora", "1x RTX-5090", LONG, (_is("single"),)),
    ("mistral-7b", "qlora", "1x T4", "train.global_batch_size=16", (_is("single"), _precision("fp16"))),
    ("llama-3.1-8b", "full", "8x A100-80GB", LONG, (_is("ddp zero1 zero2 fsdp"),)),
    ("llama-3.1-70b", "lora", "8x A100-80GB", LONG, (_is("fsdp"),)),
    ("qwen3-32b", "full", "8x B200", LONG, (_is("fsdp zero2 zero1"),)),
    ("llama-3.1-8b", "lora", "1x L4", "", (_is("single"), _precision("mixed"))),
    ("llama-3.1-8b", "full", "1x RTX-4090", "train.offload=none", (_does_not_fit,)),
    ("llama-3.1-70b", "lora", "1x RTX-4090", "train.offload=none", (_does_not_fit, _says("qlora"))),
    ("gpt-oss-20b", "lora", "1x H100-SXM", "", (_is("single"),)),
    ("qwen3-30b-a3b", "qlora", "1x A100-80GB", LONG, (_is("single"),)),
    ("llama-3.1-8b", "lora", "1x A100-80GB", "objective=dpo", (_is("single"),)),
    ("llama-3.1-8b", "lora", "8x H100-SXM", "data.max_length=131072", (lambda made: made.best is not None,)),
    ("smollm2-135m", "lora", "cpu:1", "data.max_length=256", (_is("single"),)),
    ("llama-3.1-8b", "lora", "1x MI300X", LONG, (_is("single"), _says("ROCm"))),
    # And more, of cards at desks, of mixtures and of what there is to rent.
    ("llama-3.1-8b", "lora", "1x 4090", "", (_is("single"), _surely)),
    ("qwen2.5-7b", "qlora", "1x RTX-3090", "data.max_length=4096 train.global_batch_size=16", (_surely,)),
    ("qwen3-14b", "qlora", "1x RTX-4090", LONG, (_is("single"), _surely)),
    ("llama-3.1-70b", "qlora", "1x RTX-4090", "data.max_length=1024", (_host_is_said_first,)),
    ("gpt-oss-20b", "lora", "1x RTX-5090", LONG, (_host_is_said_first,)),
    ("gpt-oss-120b", "lora", "8x H100-SXM", LONG, (_is("fsdp"),)),
    ("deepseek-v3", "lora", "8x H200", "data.max_length=2048", (_host_is_said_first, _says("method: qlora"))),
    ("qwen3-30b-a3b", "lora", "8x H100-SXM", LONG, (_is("zero1 fsdp hsdp"), _says("experts stay as they are"))),
    ("qwen2.5-32b", "qlora", "2x RTX-3090", LONG, (_is("fsdp"), _surely)),
    ("llama-3.1-8b", "qlora", "1x T4", "data.max_length=1024", (_precision("fp16"), _surely)),
    ("llama-3.1-8b", "full", "2x RTX-4090", "", (_is("fsdp", offload="parameters"), _surely)),
    ("llama-2-70b", "qlora", "2x RTX-3090", "", (_surely, _says("screen, is no slower, but no GPU has measured"))),
    ("mistral-7b", "qlora", "1x RTX-3060", "", (_surely, _says("would be 19 % faster, and leave no room"))),
    ("mistral-7b", "full", "4x RTX-3090", LONG, (_is("fsdp", offload="optimizer"), _surely)),
    ("llama-3.1-70b", "qlora", "1x H100-SXM", LONG, (_is("single"), _surely)),
    # Those that take longest, for CI.
    ("llama-3.1-8b", "full", "any", CHEAP, (_smallest_is_said,)),
    ("llama-3.1-70b", "full", "4 x 8x H100-SXM", "train.global_batch_size=128", (_is(" ".join(DATA_PARALLEL)),)),
    ("qwen3-32b", "lora", "8x H100-SXM", LONG, (_is("fsdp ddp"),)),
    ("qwen3-8b", "lora", "any", "goal=fastest data.num_rows=3", (_costs_less_than(0.1), _says_the_whole_run)),
    ("llama-3.1-8b", "lora", "any", CHEAP, (_shows("RTX-3090", "RTX-4090", "RTX-5090"), _says_the_whole_run)),
    ("llama-3-70b", "qlora", "any", CHEAP, (_has_row("2x RTX-3090", "dp_shard=2 + offload"),)),
    ("qwen3-0.6b", "full", "any", "goal=fastest data.num_rows=100000", (_advises_no_other_gpu,)),
]


@pytest.mark.parametrize(("model", "method", "hardware", "keys", "holds"), first(len(ASKED) - 7, ASKED, ci=7))
def test_an_answer_is_one_that_people_with_experience_believe(model, method, hardware, keys, holds):
    made = plan(overrides=[f"model={model}", f"method={method}", f"hardware={hardware}", *keys.split()])
    for one in holds:
        assert one(made), (made.best and (made.best.execution, made.best.cost), _said(made))
