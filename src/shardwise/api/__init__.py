"""The program's verbs as functions, which the command line calls. Nothing here imports torch."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.api.after.exporting import export, export_plan, export_targets, job_yaml, write_export
from shardwise.api.after.merging import chat, merge, publishing, usage
from shardwise.api.after.reporting import known_gpus, known_models, report, usual_machines
from shardwise.api.checks.comparing import compare
from shardwise.api.checks.trials import Trying
from shardwise.api.checks.verifying import verify
from shardwise.api.learn.pages import (
    GOES_ON,
    is_run,
    is_running,
    page_file,
    plan_as_file,
    plan_as_part,
    plan_of_run,
    read_config,
    read_report,
    report_as_part,
    runs_as_part,
    step_chart,
)
from shardwise.api.learn.toy import SIZES, STRATEGIES, frames, frames_of, timeline_of
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
from shardwise.api.plans.rehearsed_plan import rehearsed_plan
from shardwise.api.plans.rehearsing import rehearse
from shardwise.api.runs.nodes import train_on_nodes
from shardwise.api.runs.opening import Planned, Programs, Update
from shardwise.api.runs.training import TrainResult, train
from shardwise.catalog.engines import model_lines
from shardwise.catalog.hub import is_hub_id
from shardwise.catalog.recipes import GENERAL, job_of, recipes
from shardwise.launch.doctor import Doctor, doctor
from shardwise.launch.follow import Notice, Phase, StepMetrics
from shardwise.launch.nodes.meeting import Nodes
from shardwise.launch.processes.data_preparation import ReportedError
from shardwise.plan import main_reason
from shardwise.report.contents import Comparison, Report
from shardwise.report.pages.render import report_templates
from shardwise.report.parity import Agreement, Parity
from shardwise.report.versus import Contender, Versus
from shardwise.spec.rehearsal import Rehearsal, Rehearsing
from shardwise.spec.request import Override
