"""What is imported is declared, and the pure wing runs where torch is not installed."""

import ast
import re
import sys
import tomllib
from pathlib import Path

from shardwise import api
from tests.unit.house.tree import ROOT, run_python

#: A distribution's name where it is not the module's.
DISTRIBUTIONS = {"ruamel": "ruamel.yaml", "mlflow": "mlflow-skinny"}

#: Imported only by users who have it: transformers needs packaging, and its Trainer accelerate.
WITH_ANOTHER = {"accelerate": {"train/own_loop/hugging_face.py"}, "packaging": {"launch/doctor.py"}}


def declared() -> set[str]:
    """Names of the base install, and of the extras that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_users = [name for extra, names in extras.items() if extra not in ("dev", "peers", "docs") for name in names]
    return {re.match(r"[\w.-]+", name)[0].lower() for name in (*project["dependencies"], *of_users)}


def imported() -> dict[str, set[str]]:
    """Modules of others by the files of the package that import them."""
    found: dict[str, set[str]] = {}
    package = ROOT / "src" / "shardwise"
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"shardwise"}:
                found.setdefault(name, set()).add(str(path.relative_to(package)))
    return found


def test_every_module_that_the_package_imports_is_declared() -> None:
    known = declared()
    found = {name: files for name, files in imported().items() if DISTRIBUTIONS.get(name, name) not in known}
    assert {name: files for name, files in found.items() if files != WITH_ANOTHER.get(name)} == {}


def test_what_is_declared_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text().lower()
    assert not [name for name in declared() - {"wandb", "mlflow-skinny"} if f"\n{name}==" not in pins]


def test_the_pure_wing_imports_without_torch_and_templates_for_pages_only() -> None:
    checked = run_python("tools/check_pure_wing.py")
    assert checked.returncode == 0, checked.stderr
    code = "from shardwise import api; import shardwise.cli.main, sys; [getattr(api, name) for name in api.MODULES]; "
    checked = run_python("-c", code + "assert not {'torch', 'jinja2'} & set(sys.modules)")
    assert checked.returncode == 0, checked.stderr


def test_a_name_of_the_api_is_imported_from_where_checkers_of_types_see_it():
    tree = ast.walk(ast.parse(Path(api.__file__).read_text(encoding="utf-8")))
    seen = [node for node in tree if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise")]
    expected = {name: f"shardwise.{module}" for name, module in api.MODULES.items()}
    assert {one.name: node.module for node in seen for one in node.names} == expected
