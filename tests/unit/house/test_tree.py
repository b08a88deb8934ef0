"""The tree is the first page of documentation."""

import re

from tests.unit.house.tree import ROOT, tracked_files

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
    named = set(re.findall(r"`(\w+)`", planner.partition("\n\n")[0]))
    assert sorted(costs - ran - named) == []
    assert len(costs & ran) > len(costs) / 2
