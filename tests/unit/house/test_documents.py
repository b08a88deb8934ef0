"""What documents and the demo promise is there, pages are what tools write, names are in place."""

import re

import pytest

from shardwise.cli.main import VERBS
from shardwise.spec.job.file import read_job
from tests.unit.house.tree import ROOT, run_python, text_of, tracked_files

TARGETS = re.findall(r"^([a-z][a-z-]*):.*## ", text_of("Makefile"), flags=re.MULTILINE)
DEMO = ROOT / "examples/demo"
ROWS = ("basics.jsonl", "yaml_answers.jsonl", "preferences.jsonl")


def test_the_readme_and_continuous_integration_name_the_commands_there_are() -> None:
    readme, verbs = text_of("README.md"), {verb.__name__ for verb in VERBS}
    assert [verb for verb in verbs if f"shardwise {verb}" not in readme] == []
    assert set(re.findall(r"(?:^|`)shardwise ([a-z]+)", readme, flags=re.MULTILINE)) <= verbs
    script = text_of(".ci/run")
    assert "set -euo pipefail" in script
    for command in ("make check", "make test", "make demo", "make docs"):
        assert re.search(rf"^step {command}\b", script, flags=re.MULTILINE)


def test_documents_name_the_make_targets_that_there_are() -> None:
    assert {"help", "demo", "test", "test-all", "check", "docs", "bench", "clean"} <= set(TARGETS)
    assert [target for target in TARGETS if f"`make {target}`" not in text_of("CONTRIBUTING.md")] == []
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    documents = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", ".ci/run", *pages)
    texts = "\n".join(map(text_of, documents))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)\b", texts, flags=re.MULTILINE)) <= set(TARGETS)


def test_the_constraints_pin_torch_without_a_build_and_every_other_version_exactly():
    lines = [line for line in text_of("constraints.txt").splitlines() if not line.startswith("#")]
    assert "torch==2.13.0" in lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+", line)] == []


def test_the_rows_are_what_the_generator_writes(tmp_path):
    written = run_python("examples/demo/make_data.py", tmp_path)
    assert written.returncode == 0, written.stderr
    for name in ROWS:
        assert (tmp_path / name).read_bytes() == (DEMO / "data" / name).read_bytes()


def test_the_job_files_are_valid_and_the_second_starts_from_the_result_of_the_first():
    jobs = [read_job(DEMO / name) for name in ("pretrain.yaml", "lora.yaml", "qlora.yaml", "prefer.yaml")]
    assert all((ROOT / source.path).is_file() for job in jobs for source in job.data.path)
    assert jobs[1].model == jobs[2].model == jobs[3].model == f"{jobs[0].output_dir}/final"


#: Tool -> the pages that it writes; `tree.py` writes the list of files in ARCHITECTURE.md.
PAGES = {
    "tools/tree.py": (),
    "tools/matrix.py": ("support.md",),
    "tools/seeds.py": ("seeds.md",),
    "tools/reference.py": ("reference/cli.md", "reference/job.md", "reference/plan.md", "reference/run.md"),
    "tools/gpu.py": ("how/measured.md",),
    "tools/toy.py": ("learn/parallelism.md",),
}


@pytest.mark.parametrize("tool", PAGES)
def test_a_page_is_what_its_tool_writes(tool):
    compared = run_python(tool)
    assert compared.returncode == 0, compared.stderr
    assert [page for page in PAGES[tool] if f": {page}\n" not in text_of("mkdocs.yml")] == []


#: In pieces, so that this file does not hold what it forbids.
PLACES_OF_ONE_MACHINE = ("/wo" + "rk/", "/ro" + "ot/", "/op" + "t/pypi", "/op" + "t/wheels")
REGISTRY_HOSTS = ("py" + "pi.org", "python" + "hosted.org", *("npm" + "js." + end for end in ("org", "com")))
REGISTRY_HOSTS += ("download.py" + "torch.org",)


def test_no_tracked_file_names_a_place_of_one_machine_or_a_registry():
    # Behind a letter a place is a folder of ours, as in the planner's tree.
    places = [rf"(?<![a-z]){place}" for place in PLACES_OF_ONE_MACHINE]
    forbidden = re.compile("|".join([*places, *map(re.escape, REGISTRY_HOSTS)]).encode())
    assert [str(path.relative_to(ROOT)) for path in tracked_files() if forbidden.search(path.read_bytes())] == []


def test_each_part_of_the_planner_is_imported_through_its_door():
    past = re.compile(r"from shardwise\.plan\.(work|rates|memory|time|search|explain)\.")
    source = ROOT / "src/shardwise"
    found = {(file, part) for file in source.rglob("*.py") for part in past.findall(file.read_text())}
    assert [file for file, part in found if source / "plan" / part not in file.parents] == []


def test_what_a_technique_costs_has_the_name_of_what_runs_it_or_stands_in_the_architecture():
    source, planner = ROOT / "src/shardwise", (ROOT / "ARCHITECTURE.md").read_text().partition("**The planner**")[2]
    ran = {path.stem for path in (source / "parallel").rglob("*")}
    costs = {path.stem for path in (source / "plan/costs").glob("*.py")} - {"__init__"}
    assert sorted(costs - ran - set(re.findall(r"`(\w+)`", planner.partition("\n\n")[0]))) == []
    assert len(costs & ran) > len(costs) / 2
