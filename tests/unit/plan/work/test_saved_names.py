"""Names in `lora.modules_to_save`: each is counted as PEFT copies it here, or refused."""

import copy

import pytest

from shardwise.catalog.families.known import FAMILIES
from shardwise.errors import UnsupportedError
from shardwise.methods.lora import add_adapters
from shardwise.models.built.shape import built_shape
from shardwise.spec.adapters.targets import adapter_refusals
from tests.marks import every
from tests.unit.catalog.small import build, small_config
from tests.unit.models.test_shape import stranger
from tests.unit.plan.asking import elements, job, take_inventory
from tests.unit.plan.asking import shape as small
from tests.unit.plan.memory.test_against_torch import shape

TIED = ("llama", "gemma3_text", "gpt2", "bloom", "mixtral")
LLAMA = small()
COPIED = "embed_tokens, lm_head, norm, input_layernorm, post_attention_layernorm, self_attn.q_proj"
GPTJ = shape(small_config("gptj"))
GPT2 = shape(small_config("gpt2"))
OPT = shape(small_config("opt", word_embed_proj_dim=32))
MIXTRAL = shape(small_config("mixtral"))


def asking(*saved, targets="all-linear"):
    return job(method="lora", lora={"r": 3, "target_modules": targets, "modules_to_save": list(saved)})


def ours(model, asked):
    """Trained elements and all, or the sentence of the plan's refusal."""
    try:
        inventory = take_inventory(asked, model)
    except UnsupportedError as error:
        return str(error)
    return inventory.trained_elements, elements(inventory)


def theirs(model, asked):
    adapted = copy.deepcopy(model)
    adapted.tie_weights()
    add_adapters(adapted, asked.adapters, base_model="base")
    parameters = [*adapted.parameters()]
    return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)


def own_names(model):
    """Of embedding, head and last norm: whole, and their last words."""
    whole = [name for name in [model.names.embedding, model.names.head, model.names.final_norm] if name is not None]
    return list(dict.fromkeys([*whole, *(name.rpartition(".")[2] for name in whole)]))


@pytest.mark.filterwarnings("ignore")  # PEFT warns of adapters on tied ends
@pytest.mark.parametrize(
    ("kind", "tied"),
    every(8, [(kind, tied) for kind in FAMILIES for tied in (False, True) if not tied or kind in TIED], ci=4),
)
def test_every_name_of_a_family_is_counted_as_the_real_adapters_have_it(kind, tied):
    config = small_config(kind, tie_word_embeddings=tied)
    model, built = shape(config), build(config)
    names = own_names(model)
    for saved in (*([name] for name in names), names):
        assert ours(model, asking(*saved)) == theirs(built, asking(*saved)), saved


@pytest.mark.parametrize("kind", ["ctrl", "nanochat", "persimmon"])
def test_every_name_of_a_family_without_a_row_is_read_off_its_build(kind):
    config = stranger(kind)
    model, built = built_shape(config, file="-"), build(config)
    names = own_names(model)
    for saved in (*([name] for name in names), names):
        assert ours(model, asking(*saved)) == theirs(built, asking(*saved)), saved
    for name in {"embed_tokens", "w", "final_layernorm"} - set(names):
        assert f"names {name}; of {kind} this version copies " in ours(model, asking(name))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_name_of_another_family_is_refused_with_the_names_of_this_one(kind):
    model = shape(small_config(kind))
    own = (model.names.embedding, model.names.head, model.names.final_norm or "")
    for name in ("embed_tokens", "wte", "embed_in", "word_embeddings", "embed_out", "final_layernorm", "norm_f", "w"):
        parts = [part.name for each in model.kinds for part in (*each.norms, *each.matrices)]
        if any(there == name or there.endswith(f".{name}") for there in (*own, *parts)):
            continue
        (said,) = adapter_refusals(model, asking(name).adapters)
        embedding = own[0].rpartition(".")[2]
        assert said.startswith(f"lora.modules_to_save names {name}; of {kind} this version copies {embedding}, lm_head")
        assert ours(model, asking(name)) == said


@pytest.mark.parametrize(
    ("model", "saved", "says"),
    [
        (LLAMA, ["wte", "norm", "typo"], f"wte, typo; of llama this version copies {COPIED}"),
        *(
            (LLAMA, [name], f"{name}; of llama")
            for name in ("proj", "model.layers.1.mlp", "layers", ".1", "1", "model")
        ),
        (LLAMA, [""], "''; of llama"),
        (LLAMA, ["mlp", "down_proj"], "mlp and mlp.down_proj inside it; name one of them"),
        (GPTJ, ["out"], "out; of gptj"),
        (GPT2, ["wpe"], "wpe; of gpt2 this version copies wte, lm_head, ln_f"),
        (OPT, ["project_in"], "project_in; of opt"),
        (MIXTRAL, ["norm", "q_proj"], "q_proj; of mixtral this version copies embed_tokens, lm_head, norm"),
    ],
)
def test_what_would_not_be_copied_as_counted_is_refused_in_a_sentence(model, saved, says):
    said = ours(model, asking(*saved))
    assert said.startswith(f"lora.modules_to_save names {says}")
    assert adapter_refusals(model, asking(*saved).adapters) == [said]
