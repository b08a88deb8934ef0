"""Names in `lora.target_modules`: each is counted as PEFT hangs it, or refused."""

import copy

import peft
import pytest

from shardwise.catalog.families.known import FAMILIES
from shardwise.errors import UnsupportedError
from shardwise.spec.adapters.targets import adapter_refusals
from tests.marks import every
from tests.refusals import said_by
from tests.unit.catalog.small import build, small_config
from tests.unit.plan.asking import job, take_inventory
from tests.unit.plan.asking import shape as small
from tests.unit.plan.memory.test_against_torch import shape

DENSE = [kind for kind, family in FAMILIES.items() if family.experts is None]
RANK = 4
LLAMA = small()
ADAPTED = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head"


def theirs(model, named, **also):
    """Trained elements, or None where PEFT refuses."""
    lora = peft.LoraConfig(r=RANK, target_modules=named, task_type="CAUSAL_LM", **also)
    try:
        adapted = peft.get_peft_model(copy.deepcopy(model), lora, low_cpu_mem_usage=True)
    except (ValueError, TypeError):
        return None
    return sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def ours(config, named, **also):
    """Trained elements, or None where the plan refuses."""
    asked = job(method="lora", lora={"r": RANK, "target_modules": named, **also})
    try:
        return take_inventory(asked, shape(config)).trained_elements
    except UnsupportedError:
        return None


@pytest.mark.filterwarnings("ignore")  # PEFT warns of adapters on tied ends
@pytest.mark.parametrize("kind", every(4, DENSE))
def test_whatever_module_a_target_names_is_counted_as_peft_hangs_it_or_refused(kind):
    """Ends of all names of the model, beside one that is known."""
    config = small_config(kind, tie_word_embeddings=False)
    model, matrices = build(config), shape(config).matrices
    known = next(m.name for m in matrices if m.adaptable)
    names = [name for name, _ in model.named_modules() if name]
    ends = {".".join(name.split(".")[-count:]) for name in names for count in (1, 2, 3, 9)}
    ends = sorted({end for end in ends if "1" in end.split(".") or not any(part.isdigit() for part in end.split("."))})
    counted = {end: ours(config, [known, end]) for end in ends}
    assert all(theirs(model, [known, end]) == count for end, count in counted.items() if count is not None)
    reached = [name for name, count in counted.items() if count is not None]
    assert {m.name for m in matrices if m.adaptable} <= set(reached)
    assert "lm_head" in reached
    assert not any(part.isdigit() for name in reached for part in name.split("."))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", every(4, DENSE))
def test_whatever_end_of_a_name_is_saved_is_counted_as_peft_copies_it_or_refused(kind):
    """PEFT takes every module whose name ends so, whole words or not."""
    config = small_config(kind, tie_word_embeddings=False)
    model, matrices = build(config), shape(config).matrices
    known = next(m.name for m in matrices if m.adaptable)
    last = {name.rpartition(".")[2] for name, _ in model.named_modules() if name}
    words = {"_".join(name.split("_")[count:]) for name in last for count in range(3)} - {""}
    ends = sorted(words | {name[-4:] for name in last} | {"0", "1"})
    counted = {end: ours(config, [known], modules_to_save=[end]) for end in ends}
    reached = {end: count for end, count in counted.items() if count is not None}
    wrong = {end: (count, theirs(model, [known], modules_to_save=[end])) for end, count in reached.items()}
    assert {end: pair for end, pair in wrong.items() if pair[1] != pair[0]} == {}
    assert reached


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (["q_proj", "nonsense", "wpe"], f"names nonsense, wpe; of llama this version adapts {ADAPTED}"),
        (["q_proj", "model.layers.7.mlp.down_proj"], "names model.layers.7.mlp.down_proj; of llama"),
        (["q_proj", "model.embed_tokens"], "names model.embed_tokens; of llama"),
        (["q_proj", "input_layernorm"], "names input_layernorm; of llama this version adapts"),
        (["q_proj", "embed_out"], "names embed_out; of llama"),
        (["q_proj", "self_attn"], "names self_attn; of llama"),
        (["q_proj", ".*v_proj"], "names .*v_proj; of llama"),
        (["q_proj", "all-linear"], "names all-linear; of llama"),
        (["q_proj", ""], "names ''; of llama"),
    ],
)
@pytest.mark.parametrize("saved", [[], ["lm_head"]])
def test_a_target_that_is_not_counted_is_refused_in_a_sentence(named, says, saved):
    asked = job(method="lora", lora={"target_modules": named, "modules_to_save": saved})
    said = said_by(UnsupportedError, take_inventory, asked, LLAMA)
    assert said.startswith(f"lora.target_modules {says}")
    copied = "an embedding is trained as a copy, by lora.modules_to_save" in said
    assert copied == ("model.embed_tokens" in named)
    assert adapter_refusals(LLAMA, asked.adapters) == [said]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("named", "saved", "left"),
    [
        (["q_proj"], ["q_proj", "lm_head"], False),
        (["lm_head"], ["lm_head"], False),
        (["up_proj", "down_proj"], ["mlp", "norm"], False),
        (["lm_head", "q_proj"], ["lm_head"], True),
        (["q_proj", "v_proj"], ["q_proj"], True),
    ],
)
def test_what_is_trained_as_a_copy_has_no_adapter_and_one_adapter_at_least_is_left(named, saved, left):
    config = small_config("llama", tie_word_embeddings=False)
    count = ours(config, named, modules_to_save=saved)
    assert count == theirs(build(config), named, modules_to_save=saved)
    assert (count is not None) == left
