"""The program's verbs as functions, which the command line calls. Nothing here imports torch."""

from shardwise.api.comparing import compare
from shardwise.api.exporting import export, write_export
from shardwise.api.merging import chat, merge
from shardwise.api.nodes import train_on_nodes
from shardwise.api.planning import generation, plan, timeline, write_plan, write_plan_page
from shardwise.api.probing import Rates, probe
from shardwise.api.reporting import known_gpus, known_models, report
from shardwise.api.training import Planned, Programs, TrainResult, Update, train
from shardwise.api.trials import Trying
from shardwise.api.verifying import verify
from shardwise.launch.doctor import Doctor, doctor
from shardwise.launch.follow import Notice, Phase, Step
from shardwise.launch.nodes.meeting import Nodes
from shardwise.launch.processes.data_preparation import ReportedError
from shardwise.report.contents import Comparison, Report
from shardwise.report.parity import Agreement, Parity
from shardwise.report.versus import Contender, Versus
from shardwise.spec.request import Override

__all__ = [
    "Agreement",
    "Comparison",
    "Contender",
    "Doctor",
    "Nodes",
    "Notice",
    "Override",
    "Parity",
    "Phase",
    "Planned",
    "Programs",
    "Rates",
    "Report",
    "ReportedError",
    "Step",
    "TrainResult",
    "Trying",
    "Update",
    "Versus",
    "chat",
    "compare",
    "doctor",
    "export",
    "generation",
    "known_gpus",
    "known_models",
    "merge",
    "plan",
    "probe",
    "report",
    "timeline",
    "train",
    "train_on_nodes",
    "verify",
    "write_export",
    "write_plan",
    "write_plan_page",
]
