"""Kernels of a GPU, in profiles of hybrids: what runs is said, and keeps what its source keeps."""

from dataclasses import replace

import pytest
import torch

from shardwise.models.built.shape import built_shape
from shardwise.plan.answer import _of_which_code
from shardwise.spec.model.profile import Amount, ModelProfile
from shardwise.train.rehearsing.kernels import _KERNELS, _run
from shardwise.train.rehearsing.profile import profile_blocks
from tests.dist.worlds import installed
from tests.unit.catalog.small import their_config
from tests.unit.configs import config
from tests.unit.plan.asking import execution, job, shape
from tests.unit.train.test_profile import _packed_as_before  # noqa: F401 - a fixture

LINEAR = {f"linear_{of}": 2 for of in ("num_key_heads", "num_value_heads")}
LINEAR |= {f"linear_{of}_head_dim": 16 for of in ("key", "value")}
QWEN3_5 = config("qwen3_5_text", 32, 64, 4, 2, 1, vocab=64, head_dim=16, tie_word_embeddings=False, **LINEAR)
NONE = Amount(once=0.0, row=(0.0, 0.0, 0.0))
PACKAGES = ("causal_conv1d", "fla", "mamba_ssm")


def profiles(config: dict, packages=PACKAGES):
    """In PyTorch's own code, and with kernels; in bfloat16."""
    model = built_shape(config, file="-")
    attention = "eager" if model.eager_attention else "sdpa"
    chosen = execution(precision="bf16", attn_implementation=attention)
    asked = job(data={"max_length": 256}, train={"disable_dropout": True})

    known = {"config": their_config(config), "shape": model, "lengths": (64, 128, 256)}
    return tuple(
        profile_blocks(asked, chosen, **known, sharded=False, casts=False, packages=some) for some in ((), packages)
    )


def test_kernels_keep_less_than_pytorchs_own_code() -> None:
    if not installed(["qwen3_5_text"]):
        pytest.skip("the installed transformers has no qwen3_5_text")
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
        rule = _KERNELS["torch_chunk_gated_delta_rule"][1:]
        made, state = _run([], "fla", *rule, query, key, value, g=g, beta=beta)
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
