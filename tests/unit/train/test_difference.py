"""Two folders of weights, tensor by tensor."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shardwise.programs.difference import main
from shardwise.train.saving.difference import TensorDifference, difference

Tensors = dict[str, torch.Tensor]


def folder(path: Path, *files: Tensors) -> Path:
    path.mkdir()
    for index, tensors in enumerate(files):
        save_file(tensors, path / f"part-{index}.safetensors")
    return path


def tensors(dtype: torch.dtype = torch.float32) -> Tensors:
    torch.manual_seed(0)
    return {name: torch.randn(8, 4).to(dtype) for name in ("a.weight", "b.weight", "c.weight")}


def compared(tmp_path: Path, found: Tensors, *, dtype: torch.dtype = torch.float32) -> TensorDifference:
    return difference(folder(tmp_path / "a", tensors(dtype)), folder(tmp_path / "b", found), tolerance=1e-5)


def test_less_than_the_floor_is_told_and_excused(tmp_path: Path) -> None:
    """A tensor that is nothing but rounding is as far from another as it is large."""
    one, other = ({**tensors(), "d.bias": torch.full((4,), value)} for value in (1e-9, -1e-9))
    a, b = folder(tmp_path / "a", one), folder(tmp_path / "b", other)
    assert difference(a, b, tolerance=1e-5).first == "d.bias"
    found = difference(a, b, tolerance=1e-5, floor=5e-9)
    assert (found.first, found.worst, found.relative, found.absolute) == (None, None, 0.0, 0.0)
    told = (found.excused.name, found.excused.relative, found.excused.absolute)
    assert told == ("d.bias", pytest.approx(2.0), pytest.approx(2e-9))
    assert difference(a, b, tolerance=1e-5, floor=3e-9).first == "d.bias"


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    changed = tensors()
    changed["c.weight"] += 1.0
    changed["b.weight"][3, 2] += 0.5
    found = compared(tmp_path, changed)
    assert (found.first, found.worst) == ("b.weight", "c.weight")
    assert found.absolute == pytest.approx(1.0, abs=1e-6)
    assert found.reason.startswith("differs by ")


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        ({}, "is missing in"),
        ({"b.weight": torch.zeros(4, 8)}, "is float32 [8, 4] in"),
        ({"b.weight": torch.zeros(8, 4).half()}, "and float16 [8, 4] in"),
        ({"b.weight": torch.full((8, 4), float("nan"))}, "differs by"),
    ],
)
def test_what_cannot_be_compared_differs(weight: Tensors, reason: str, tmp_path: Path) -> None:
    others = {name: tensor for name, tensor in tensors().items() if name != "b.weight"}
    found = compared(tmp_path, others | weight)
    assert found.first == "b.weight"
    assert reason in (found.reason or "")


def test_a_short_type_may_round_to_its_neighbour_but_not_farther(tmp_path: Path) -> None:
    near = {name: t * (1 + 2**-8) for name, t in tensors(torch.bfloat16).items()}
    assert compared(tmp_path, near, dtype=torch.bfloat16).first is None
    far = {name: t * (1 + 2**-5) for name, t in tensors(torch.bfloat16).items()}
    found = difference(tmp_path / "a", folder(tmp_path / "c", far), tolerance=1e-5)
    assert found.first == "a.weight"


def test_the_program_prints_json_or_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"a": str(one := folder(tmp_path / "a", tensors())), "tolerance": 1e-7}
    assert main(json.dumps({**asked, "b": str(one)})) == 0
    assert json.loads(capsys.readouterr().out)["num_tensors"] == 3
    empty = folder(tmp_path / "b")
    assert main(json.dumps({**asked, "b": str(empty)})) == 2
    assert capsys.readouterr().err == f"the weights cannot be compared: {empty} holds no safetensors\n"
    (empty / "model.safetensors").write_bytes(b"nonsense")
    assert main(json.dumps({**asked, "b": str(empty)})) == 2
    assert "cannot be compared" in capsys.readouterr().err
