"""The planner: pure functions from a job, a model and a cluster to a choice. No I/O, no torch."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.answer import make_plan
from shardwise.plan.explain import timeline_of_plan
from shardwise.plan.generation import plan_generation
from shardwise.plan.hardware_options import MOST_GPUS_OFFERED, best_of_catalogue, best_of_list
from shardwise.plan.on_stack import on_stack
from shardwise.plan.run_forecast import bytes_on_host, forecast_seen, memory_of, run_of
from shardwise.plan.search import open_executions
from shardwise.plan.solve import solve
from shardwise.plan.unknowns import find_unknown
