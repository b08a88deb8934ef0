"""A loop of one's own reads and clips gradients of whole weights by stock calls; optimizers that
would train nothing, or parts unlike wholes, are refused."""

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import torch
from accelerate import Accelerator

import shardwise
from shardwise.errors import UnsupportedError
from shardwise.spec.layout.axes import Layout
from shardwise.train.guards.checks import GuardError
from tests.dist import cells
from tests.dist.compare import TOLERANCE, relative
from tests.dist.loops.test_own_loop import batches, lora, model_of, must_be_saved_the_same
from tests.dist.worlds import run_world, said_by, toy_model

#: To which gradients are clipped: less than any norm here.
MOST, STEPS, EPSILON = 0.5, 3, 1e-5

LAYOUTS = {name: cells.LAYOUTS[name] for name in ("single", "ddp", "zero1", "fsdp", "tp", "pp")}
LAYOUTS |= {"fsdp x pp": Layout(dp_shard=2, pp=2), "tp x fsdp": Layout(dp_shard=2, tp=2)}
CELLS = [
    pytest.param(layout, adapters, id=f"{layout}, {method}", marks=() if quick else pytest.mark.slow)
    for method, adapters in {"full": None, "lora": lora()}.items()
    for layout in LAYOUTS
    for quick in [method == "full" and layout in ("fsdp", "tp")]
]


def scaled(parameters: list[Any], norm: torch.Tensor) -> torch.Tensor:
    for parameter in parameters:
        parameter.grad.mul_((MOST / (norm + 1e-6)).clamp(max=1.0))
    return norm


def in_halves(parameters: list[Any], _: Any) -> torch.Tensor:
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, MOST, norm)
    return norm


def by_fabric(parameters: list[Any], optimizer: Any) -> torch.Tensor:
    from lightning_fabric import Fabric

    norm: Any = Fabric(accelerator="cpu", devices=1).clip_gradients(torch.nn.Identity(), optimizer, max_norm=MOST)
    return norm


by_torch = torch.nn.utils.clip_grad_norm_
WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "torch": lambda held, _: by_torch(held, MOST),
    "torch, one tensor after another": lambda held, _: by_torch(held, MOST, foreach=False),
    "torch, all tensors at once": lambda held, _: by_torch(held, MOST, foreach=True),
    "torch, largest element": lambda held, _: by_torch(held, MOST, norm_type=float("inf")),
    "torch, sum of sizes": lambda held, _: by_torch(held, MOST, norm_type=1),
    "torch, norm and scaling apart": in_halves,
    "squares summed": lambda held, _: scaled(held, sum((p.grad.detach() ** 2).sum() for p in held).sqrt()),  # pyright: ignore
    "squares of items summed": lambda held, _: scaled(
        held, torch.tensor(sum(p.grad.data.norm(2).item() ** 2 for p in held) ** 0.5)
    ),
    "norms stacked": lambda held, _: scaled(held, torch.stack([p.grad.norm() for p in held]).norm()),
    "flattened": lambda held, _: scaled(held, torch.cat([p.grad.flatten() for p in held]).norm()),
    "accelerate": lambda held, _: Accelerator(cpu=True).clip_grad_norm_(held, MOST),
    "fabric": by_fabric,
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_model(tmp_path_factory.mktemp("clips") / "model", tied=True, num_hidden_layers=4)


def loop(model: Any, way: str) -> list[float]:
    """Norms of some steps, and a trained model. Nothing of ours but `step`."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer, norms = torch.optim.AdamW(parameters, lr=5e-4, eps=EPSILON), []
    for batch in batches()[:STEPS]:
        model.step(batch) if hasattr(model, "step") else model(**batch).loss.backward()
        norms.append(WAYS[way](parameters, optimizer).item())
        optimizer.step()
        optimizer.zero_grad()
    return norms


def trained(folder: Path, layout: Layout | None, ways: list[str], adapters: Any, saved: Path) -> dict[str, list[float]]:
    """By each way of clipping; without a layout by nothing of ours."""
    found: dict[str, list[float]] = {}
    for way in ways:
        model = model_of(folder, adapters, layout)
        found[way] = loop(model, way)
        model.save_pretrained(saved / way)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "adapters"), CELLS)
def test_every_usual_way_to_clip_is_that_of_one_process(folder, tmp_path, layout, adapters) -> None:
    ways = list(WAYS) if importlib.util.find_spec("lightning_fabric") else [way for way in WAYS if way != "fabric"]
    ways = ways if adapters is None else ways[:1]
    (expected,) = run_world(1, trained, folder, None, ways, adapters, tmp_path / "plain")
    ranks = run_world(LAYOUTS[layout].world_size, trained, folder, LAYOUTS[layout], ways, adapters, tmp_path / "spread")
    for way, norms in expected.items():
        for found in ranks:
            assert relative(norms, found[way]) <= TOLERANCE, way
        must_be_saved_the_same(folder, tmp_path, adapters, inside=way)


def _other_readings(folder: Path, layout: Layout | None) -> dict[str, Any]:
    """What people log of gradients, beside the norm."""
    model = model_of(folder, layout=layout)
    batch = batches()[0]
    model.step(batch) if layout else model(**batch).loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    picked = [grads["model.layers.3.mlp.down_proj.weight"], grads["model.layers.0.input_layernorm.weight"]]
    return {
        "norms": [g.norm().item() for g in picked],
        "means": [g.mean().item() * 1e3 for g in picked],
        "sizes": [g.abs().mean().item() for g in picked],
        "largest": [g.abs().max().item() for g in picked],
        "smallest": [g.min().item() for g in picked],
        "products": [torch.dot(g.flatten(), g.flatten()).item() for g in picked],
        "in 16 bits": [g.bfloat16().norm().item() for g in picked],
        "finite": [bool(torch.isfinite(g).all()) for g in picked],
        "not a number": [bool(g.isnan().any()) for g in picked],
        "zeros": [int(torch.count_nonzero(g)) for g in picked],
        "by value": [float(torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3) or g.norm()) for g in picked],
    }


@pytest.mark.parametrize("layout", ["fsdp", "pp"])
def test_what_is_read_of_one_gradient_is_that_of_the_whole_weight(folder, layout) -> None:
    (expected,) = run_world(1, _other_readings, folder, None)
    for found in run_world(2, _other_readings, folder, LAYOUTS[layout]):
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=1e-2 if name == "in 16 bits" else TOLERANCE), name


def _wrong_readings(folder: Path) -> list[str]:
    model = model_of(folder, layout="fsdp")
    model.step(batches()[0])
    (first, *_others) = [p.grad for p in model.parameters() if p.grad is not None]
    assert repr(first).startswith("Gradient(part of this rank: tensor(")
    assert first.to_local().std().item() > 0
    reads = [first.std, partial(first.norm, dim=1), partial(torch.linalg.vector_norm, first, 0)]
    reads += [partial(first.__getitem__, 0), partial(torch.cat, [first] * 2)]
    return [said_by(UnsupportedError, read) for read in reads]


def test_what_a_part_cannot_answer_is_refused_in_a_sentence_that_names_the_right_call(folder) -> None:
    for said in run_world(2, _wrong_readings, folder):
        assert said[0].startswith("std of a gradient")
        for sentence in said:
            assert "each rank holds a part of it" in sentence
            assert "model.clip_grad_norm_(max_norm)" in sentence


def _drifting(folder: Path, saved: Path) -> tuple[str, str]:
    """Copies of norms, which ranks scale by other factors."""
    model = model_of(folder, layout={"tp": 2})
    optimizer, rank = torch.optim.SGD(model.parameters(), lr=0.1), torch.distributed.get_rank()
    model.step(batches()[0])
    for parameter in model.parameters():
        parameter.grad = parameter.grad.to_local() * (1 + rank)
    optimizer.step()
    optimizer.zero_grad()
    return said_by(GuardError, model.save_pretrained, saved), said_by(GuardError, model.step, batches()[1])


def test_copies_that_drifted_apart_are_neither_saved_nor_trained_on(folder, tmp_path) -> None:
    for saving, stepping in run_world(2, _drifting, folder, tmp_path / "saved"):
        assert saving.startswith("before saving: rank 0 and rank 1 hold different trained weights in model.")
        assert stepping.startswith("before step 2: rank 0 and rank 1 hold different trained weights in model.")
    assert not (tmp_path / "saved").exists()


def _averaged(folder: Path, layout: Layout) -> list[float]:
    """Losses of steps, and of evaluations with weights of before, copied there and back."""
    model = model_of(folder, layout=layout)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), list[float]()
    for batch in batches()[:2]:
        before = [p.detach().clone() for p in model.parameters()]
        losses.append(model.step(batch).item())
        optimizer.step()
        optimizer.zero_grad()
        after = [p.detach().clone() for p in model.parameters()]
        torch._foreach_copy_([p.data for p in model.parameters()], before)
        losses.append(model.evaluate(batch))
        torch._foreach_copy_([p.data for p in model.parameters()], after)
    return losses


def test_weights_that_are_set_by_hand_are_those_of_every_rank(folder) -> None:
    first, again, second, same = run_world(2, _averaged, folder, LAYOUTS["zero1"])[0]
    assert (again, same) == pytest.approx((first, second))
    assert run_world(1, _averaged, folder, Layout())[0] == pytest.approx([first, again, second, same])


def _of_nothing(folder: Path) -> dict[str, str]:
    """Optimizers that hold no parameter of the parallelized model."""
    given = model_of(folder, None)
    before = torch.optim.AdamW(given.parameters())
    model = shardwise.parallelize(given, "fsdp")
    emptied = torch.optim.SGD(given.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    first, second = batches()[:2]
    model.step(first)
    said = {"before": said_by(UnsupportedError, before.step), "emptied": said_by(UnsupportedError, emptied.step)}
    model.zero_grad()
    model.step(first)  # a loop may leave an update out
    other.step()
    model.zero_grad()
    said["other"] = said_by(UnsupportedError, model.step, second)
    with torch.no_grad():
        next(model.parameters()).add_(0.1)  # as an optimizer of copies does, which are written back by hand
    model.step(second)
    return said


def test_an_optimizer_that_holds_nothing_of_the_model_is_refused_with_the_cause(folder) -> None:
    for said in run_world(2, _of_nothing, folder):
        assert said["before"].startswith("AdamW holds parameters of the model that parallelize was given")
        assert said["emptied"].startswith("SGD holds parameters of the model that parallelize was given")
        assert "make the optimizer after parallelize, over model.parameters()" in said["before"]
        assert said["other"].startswith("SGD was stepped, but it holds no parameter of the parallelized model")


#: By name; each may hold matrices alone.
BY_WEIGHT: dict[str, Any] = {
    "Adafactor": lambda matrices: torch.optim.Adafactor(matrices, lr=0.01),
    "Muon": lambda matrices: torch.optim.Muon(matrices, lr=0.01),
    "AdamW8bit": lambda matrices: bitsandbytes.optim.AdamW8bit(matrices, lr=0.01, eps=1e-5),
}


def _refused(folder: Path, layout: Layout) -> list[str]:
    model = model_of(folder, layout=layout)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    before = [p.detach().clone() for p in matrices]
    model.step(batches()[0])
    said = [said_by(UnsupportedError, make(matrices).step) for make in BY_WEIGHT.values()]
    assert all(torch.equal(*pair) for pair in zip(before, matrices, strict=True))
    return said


@pytest.mark.parametrize("layout", ["fsdp", "tp", "zero1"])
def test_an_optimizer_that_steps_whole_weights_is_refused_before_it_steps_parts(folder, layout) -> None:
    for found in run_world(2, _refused, folder, LAYOUTS[layout]):
        for name, said in zip(BY_WEIGHT, found, strict=True):
            assert said.startswith(f"{name} does not step element by element")
            assert f"which other ranks hold here ({layout})" in said


def _by_adafactor(folder: Path, saved: Path, layout: Layout | None) -> None:
    model = model_of(folder, layout=layout)
    matrices = BY_WEIGHT["Adafactor"]([p for p in model.parameters() if p.ndim == 2])
    others = torch.optim.SGD([p for p in model.parameters() if p.ndim < 2], lr=0.01)
    for batch in batches()[:2]:
        model.step(batch) if layout else model(**batch).loss.backward()
        for optimizer in (matrices, others):
            by_torch(optimizer.param_groups[0]["params"], MOST)
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(saved)


@pytest.mark.parametrize("layout", ["pp", "ddp"])
def test_where_ranks_hold_whole_weights_it_trains_as_on_one_process(folder, tmp_path, layout) -> None:
    run_world(1, _by_adafactor, folder, tmp_path / "plain", None)
    run_world(2, _by_adafactor, folder, tmp_path / "spread", LAYOUTS[layout])
    must_be_saved_the_same(folder, tmp_path)
