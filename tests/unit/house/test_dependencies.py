"""What the package imports is what pyproject.toml declares."""

import ast
import re
import sys
import tomllib

from tests.unit.house.tree import ROOT

#: A distribution's name where it is not the module's.
DISTRIBUTIONS = {"ruamel": "ruamel.yaml", "mlflow": "mlflow-skinny"}

#: Where a module comes with what the user has then: `shardwise.Trainer` is a `transformers.Trainer`, which needs
#: accelerate; `doctor` says which versions are supported where packaging, which transformers needs, is there.
WITH_ANOTHER = {"accelerate": {"train/own_loop/hugging_face.py"}, "packaging": {"launch/doctor.py"}}


def declared() -> tuple[set[str], set[str]]:
    """Names of the base install, and with those of the extras that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_users = [name for extra, names in extras.items() if extra not in ("dev", "peers", "docs") for name in names]
    base, more = (
        {re.match(r"[\w.-]+", name)[0].lower() for name in names} for names in (project["dependencies"], of_users)
    )
    return base, base | more


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
    _, all_of_them = declared()
    missing = {
        name: files
        for name, files in imported().items()
        if DISTRIBUTIONS.get(name, name) not in all_of_them and files != WITH_ANOTHER.get(name)
    }
    assert not missing


def test_what_is_declared_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text().lower()
    _, all_of_them = declared()
    assert not [name for name in all_of_them - {"wandb", "mlflow-skinny"} if f"\n{name}==" not in pins]
