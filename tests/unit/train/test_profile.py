"""Rules of blocks, and kernels of a GPU, are held to what is measured; and PyTorch's allocator."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import masking_utils

from shardwise.catalog.families.known import FAMILIES
from shardwise.models.built.shape import built_shape
from shardwise.plan.answer import _of_which_code
from shardwise.plan.time.pieces import ran_by
from shardwise.plan.work.block_bytes import profiled_bytes
from shardwise.spec.model.profile import Amount, ModelProfile
from shardwise.train.rehearsing.allocator import reserved_bytes
from shardwise.train.rehearsing.command import lengths_for, narrowed
from shardwise.train.rehearsing.fake_kernels import _KERNELS, _run
from shardwise.train.rehearsing.ledger import Allocation, Change
from shardwise.train.rehearsing.profile import profile_blocks
from shardwise.units import MIB
from tests.dist.worlds import skip_without
from tests.marks import first
from tests.unit.catalog.small import small_config, their_config
from tests.unit.plan.asking import config, execution, job, shape, shape_from_data, work

LENGTH = 32
#: Keys of small configurations. A Falcon of one head of keys writes scores out, and keeps fewer.
OWN_KEYS = {"gptj": {"rotary_dim": 8}, "falcon": {"multi_query": False}}


@pytest.fixture(autouse=True)
def _packed_as_before(monkeypatch) -> None:
    """What a profile tells transformers of packed rows ends with the test."""
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", masking_utils.find_packed_sequence_indices)


DENSE = [kind for kind, family in FAMILIES.items() if family.experts is None]
#: Of them those that look unlike each other go first.
DENSE.sort(key=("gpt2", "gemma2", "qwen3").__contains__, reverse=True)


def rules_and_profile(kind, **keys):
    config = small_config(kind, max_position_embeddings=64) | OWN_KEYS.get(kind, {})
    model = replace(shape_from_data(config, file="-"), layerdrop=0.0)
    asked = job(data={"max_length": LENGTH}, train={"disable_dropout": True})
    attention = "eager" if model.eager_attention or model.attention_softcap else "sdpa"
    chosen = execution(attn_implementation=attention, **keys)
    rules, config = work(asked, model, chosen, hardware="cpu:1"), their_config(config)
    known = {"config": config, "shape": model, "lengths": (8, 16, LENGTH)}
    measured = profile_blocks(asked, chosen, **known, sharded=False, casts=True)
    return rules.of_block, profiled_bytes(model, rules.setting, measured, recompute=chosen.recompute), measured


@pytest.mark.parametrize("kind", first(1, DENSE, ci=2))
def test_rules_keep_what_blocks_were_measured_to_keep(kind) -> None:
    skip_without(kind)
    rules, measured, profile = rules_and_profile(kind, precision="fp32")
    # Some rotations keep tables of each block, which no rule counts: 0.2 % of a block of GLM-4-9B.
    tables = 3 * 16 * 4 if kind in ("ernie4_5", "falcon", "glm", "glm4", "gptj", "helium") else 0
    assert rules.saved * 0.99 <= measured.saved <= rules.saved * 1.01 + tables
    # Code that scales embeddings or adds positions holds a tensor until its backbone returns.
    held = 0 if measured.final_norm > rules.final_norm - rules.stream / 2 else rules.stream
    # Masks and tables of positions, which blocks share, may be gone before the head or behind it.
    tables = 8 + profile.shared.per_token(LENGTH)
    assert measured.final_norm + held == pytest.approx(rules.final_norm, rel=0.02, abs=tables)


def measured_of(config, *, attention="sdpa", **data):
    model, asked = shape_from_data(config, file="-"), job(data={"max_length": LENGTH, **data})
    chosen = execution(attn_implementation=attention, precision="mixed")
    known = {"config": their_config(config), "shape": model, "lengths": (8, 16, LENGTH)}
    return model, profile_blocks(asked, chosen, **known, sharded=False, casts=True).blocks[0]


def products_of(**keys):
    return measured_of(small_config("qwen3_moe", hidden_size=64, moe_intermediate_size=32, head_dim=16, **keys))


def test_seconds_by_a_profile_are_those_by_rules() -> None:
    dims = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = small_config("llama", **dims, max_position_embeddings=4096)
    model, length = shape_from_data(config, file="-"), 2048
    asked, chosen = job(data={"max_length": length}), execution(attn_implementation="sdpa", precision="mixed")
    known = {"config": their_config(config), "shape": model, "lengths": (256, 512, length)}
    rules = work(asked, model, chosen)
    profile = profile_blocks(asked, chosen, **known, sharded=False, casts=False)
    by_rules, measured = ran_by(rules), ran_by(replace(rules, profile=profile))
    assert measured.forward == pytest.approx(by_rules.forward, rel=0.05)
    assert measured.backward == pytest.approx(by_rules.backward, rel=0.05)
    assert measured.operators == pytest.approx(by_rules.operators, rel=0.1)


@pytest.mark.slow
def test_products_of_experts_and_of_attention_are_counted() -> None:
    model, few = products_of(num_experts_per_tok=1)
    _, many = products_of(num_experts_per_tok=3)
    more = 2 * 3 * 2 * 64 * 32  # two more experts, three matrices of 64 x 32 each
    assert many.flops.per_token(LENGTH) - few.flops.per_token(LENGTH) == pytest.approx(more)
    assert many.flops_backward.per_token(LENGTH) - few.flops_backward.per_token(LENGTH) == pytest.approx(2 * more)
    scores = 2 * model.num_attention_heads * 16  # two products with half the keys
    assert few.flops.row[2] == pytest.approx(scores)
    assert few.flops_backward.row[2] == pytest.approx(2.5 * scores)


def test_a_kernel_that_is_told_of_documents_is_measured_too() -> None:
    model, block = measured_of(small_config("llama", max_position_embeddings=64), attention="varlen", packing=True)
    assert block.saved.row[1] > 16 * model.hidden_size  # bytes a token
    scores = 2 * model.num_attention_heads * model.head_dim  # two products with half the keys
    assert block.flops.row[2] == pytest.approx(scores)
    assert block.flops_backward.row[2] == pytest.approx(2.5 * scores)


def test_lengths_are_three_and_go_beyond_windows() -> None:
    assert lengths_for(4096) == (128, 256, 512)
    assert lengths_for(100) == (25, 50, 100)
    assert lengths_for(2) == (2, 3, 4)
    config = their_config(small_config("gemma2", sliding_window=300))
    assert narrowed(config, length=200, lengths=(50, 100, 200)).sliding_window == 300
    assert narrowed(config, length=4096, lengths=(128, 256, 512)).sliding_window == 64


LINEAR = {f"linear_{of}": 2 for of in ("num_key_heads", "num_value_heads")}
LINEAR |= {f"linear_{of}_head_dim": 16 for of in ("key", "value")}
QWEN3_5 = config("qwen3_5_text", 32, 64, 4, 2, 1, vocab=64, head_dim=16, tie_word_embeddings=False, **LINEAR)
NONE = Amount(once=0.0, row=(0.0, 0.0, 0.0))


def profiles(config: dict, packages=("causal_conv1d", "fla", "mamba_ssm")):
    """In PyTorch's own code, and with kernels; in bfloat16."""
    model = built_shape(config, file="-")
    chosen = execution(precision="bf16", attn_implementation="eager" if model.eager_attention else "sdpa")
    asked = job(data={"max_length": 256}, train={"disable_dropout": True})

    known: dict[str, Any] = {"config": their_config(config), "shape": model, "lengths": (64, 128, 256)}
    known |= {"sharded": False, "casts": False}
    return [profile_blocks(asked, chosen, **known, packages=kernels) for kernels in ((), packages)]


def test_kernels_keep_less_than_pytorchs_own_code() -> None:
    skip_without("qwen3_5_text")
    plain, with_kernels = profiles(QWEN3_5)
    assert (plain.code, with_kernels.code) == ("torch", "torch, causal_conv1d, fla")
    of_plain, of_kernels = plain.blocks[0], with_kernels.blocks[0]
    for length in (128, 256):
        assert of_kernels.saved.per_token(length) < 0.8 * of_plain.saved.per_token(length)
        assert of_kernels.forward.per_token(length) <= of_plain.forward.per_token(length)
    assert of_kernels.saved.row[2] == pytest.approx(0, abs=1e-3)


@pytest.mark.slow
def test_packages_that_are_not_installed_change_nothing() -> None:
    plain, others = profiles(QWEN3_5, packages=("mamba_ssm",))
    assert others == plain


def test_the_delta_rule_keeps_what_its_source_keeps() -> None:
    query, key = (torch.zeros(2, 128, 4, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    value = torch.zeros(2, 128, 4, 32, dtype=torch.bfloat16, requires_grad=True)
    g, beta = torch.zeros(2, 128, 4), torch.zeros(2, 128, 4, dtype=torch.bfloat16)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        made, state = _run([], "fla", *_KERNELS["torch_chunk_gated_delta_rule"][1:], query, key, value, g=g, beta=beta)
    # 2 bytes for queries, keys, values, beta, a row of the inverse; 4 for two norms and the decay.
    assert sum(one.nbytes for one in kept) == 2 * 128 * 4 * (2 * (16 + 16 + 32 + 1 + 64) + 4 * 3)
    assert (made.shape, made.dtype, state) == (value.shape, value.dtype, None)
    made.sum().backward()
    assert query.grad.shape == query.shape


def test_a_plan_says_of_which_code_it_is() -> None:
    model = replace(shape(), profiles=())
    assert "reckoned as of other families" in _of_which_code(model)
    settings = {"precision": "bf16", "attention": "sdpa", "recompute": "none", "sharded": False}
    profile = ModelProfile(**settings, shared=NONE, final=NONE, blocks=())
    assert "PyTorch's own code" in _of_which_code(replace(model, profiles=(profile,)))
    said = _of_which_code(replace(model, profiles=(replace(profile, code="torch, causal_conv1d, fla"),)))
    assert said.endswith("with the kernels of causal_conv1d and fla, which are installed here")


def _changes(*sizes: float) -> list[Change]:
    """Allocations of MiB, in order; a negative number frees the oldest of that size."""
    alive: list[tuple[int, Allocation]] = []
    changes: list[Change] = []
    for size in sizes:
        count = round(abs(size) * MIB)
        if size > 0:
            alive.append((count, Allocation("activations", "", (count,), "uint8")))
            one = alive[-1]
        else:
            one = next(known for known in alive if known[0] == count)
            alive.remove(one)
        changes.append(Change(one[1], count if size > 0 else -count, "forward"))
    return changes


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ((0.001,), 2),  # small pieces share segments of 2 MiB
        ((1, 1), 2),
        ((1, 1, 0.001), 4),
        ((1.5,), 20),  # larger ones those of 20 MiB
        ((9, 9, 1.5), 20),
        ((9, 9, 2.5), 40),
        ((12.5,), 14),  # from 10 MiB on each has its own, in multiples of 2 MiB
        ((12.5, -12.5, 12.1), 14),  # what is free is used again
        ((40, -40, 15, 20), 40),  # and cut where more than 1 MiB is left
        ((40, -40, 15, 20, 10), 50),
        ((40, -40, 15, 20, -15, -20, 39), 40),  # neighbours are joined
        ((40, -40, 15, 20, -15, 39), 80),
        ((14, 12, -12, -14, 11), 26),  # the smallest that is large enough
    ],
)
def test_segments_are_reserved_as_on_a_gpu(sizes: tuple[float, ...], reserved: int) -> None:
    assert reserved_bytes(_changes(*sizes)) == reserved * MIB
