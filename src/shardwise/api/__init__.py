"""The program's verbs as functions, which the command line calls. Nothing here imports torch, and
what a verb needs is imported when it is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

# What other packages import from here; `NAMES` has the same.
# pyright: reportUnusedImport=false
if TYPE_CHECKING:
    from shardwise.api.after import chat, export, export_plan, merge, publishing, report, usage, write_export
    from shardwise.api.checks.comparing import Trying, compare
    from shardwise.api.checks.verifying import verify
    from shardwise.api.plans.counting import CountedData, data
    from shardwise.api.plans.planning import (
        generation,
        plan,
        problems,
        timeline,
        usual_hardware,
        write_plan,
        write_plan_page,
    )
    from shardwise.api.plans.probing import Rates, probe
    from shardwise.api.plans.rehearsing import rehearse, rehearsed_plan
    from shardwise.api.runs.nodes import train_on_nodes
    from shardwise.api.runs.opening import Planned, Update
    from shardwise.api.runs.training import TrainResult, train
    from shardwise.catalog.engines import model_lines
    from shardwise.catalog.gpus import known_gpus
    from shardwise.catalog.hub import is_hub_id
    from shardwise.catalog.models import known_models
    from shardwise.catalog.recipes import GENERAL, job_of, recipes
    from shardwise.interop.chosen import as_yaml
    from shardwise.interop.targets import TARGETS
    from shardwise.launch.doctor import Doctor, doctor
    from shardwise.launch.follow import Notice, Phase, StepMetrics
    from shardwise.launch.nodes.meeting import Nodes
    from shardwise.launch.processes.helpers import ReportedError
    from shardwise.report.contents import Comparison, Report
    from shardwise.report.pages.render import report_templates
    from shardwise.report.parity import Agreement, Parity
    from shardwise.report.versus import Contender, Versus
    from shardwise.spec.rehearsal import Rehearsal, Rehearsing
    from shardwise.spec.request import Override

#: The names of each module.
NAMES = {
    "api.after": "chat export export_plan merge publishing report usage write_export",
    "api.checks.comparing": "Trying compare",
    "api.checks.verifying": "verify",
    "api.plans.counting": "CountedData data",
    "api.plans.planning": "generation plan problems timeline usual_hardware write_plan write_plan_page",
    "api.plans.probing": "Rates probe",
    "api.plans.rehearsing": "rehearse rehearsed_plan",
    "api.runs.nodes": "train_on_nodes",
    "api.runs.opening": "Planned Update",
    "api.runs.training": "TrainResult train",
    "catalog.engines": "model_lines",
    "catalog.gpus": "known_gpus",
    "catalog.hub": "is_hub_id",
    "catalog.models": "known_models",
    "catalog.recipes": "GENERAL job_of recipes",
    "interop.chosen": "as_yaml",
    "interop.targets": "TARGETS",
    "launch.doctor": "Doctor doctor",
    "launch.follow": "Notice Phase StepMetrics",
    "launch.nodes.meeting": "Nodes",
    "launch.processes.helpers": "ReportedError",
    "report.contents": "Comparison Report",
    "report.pages.render": "report_templates",
    "report.parity": "Agreement Parity",
    "report.versus": "Contender Versus",
    "spec.rehearsal": "Rehearsal Rehearsing",
    "spec.request": "Override",
}
MODULES = {name: module for module, names in NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shardwise.{MODULES[name]}"), name)
