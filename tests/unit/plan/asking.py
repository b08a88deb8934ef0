"""Short ways to ask the planner, for its tests."""

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.answer import make_plan
from shardwise.plan.memory.forecast import forecast_memory, holdings_of
from shardwise.plan.work.inventory import take_inventory
from shardwise.plan.work.work import work_of
from shardwise.spec.job.file import parse_job
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from tests.unit.configs import config

TINY = config("llama", 128, 352, 6, 8, 4, vocab=2000)


def job(**keys) -> Job:
    return Job.model_validate({"model": "m", **keys})


def shape(config=None, **changes):
    return shape_from_data({**(config or TINY), **changes}, file="config.json")


def work(asked, model, execution, hardware="1x H100-SXM"):
    cluster = parse_hardware(hardware)
    return work_of(asked, model=model, cluster=cluster, execution=execution, inventory=take_inventory(asked, model))


def elements(inventory):
    return inventory.over_blocks(lambda unit: unit.elements) + inventory.root.elements


def execution(layout=None, **keys):
    return Execution(layout=layout or Layout(), **{"micro_batch_size": 1, "gradient_accumulation_steps": 1, **keys})


def held(asked, model, layout=None, **keys):
    return holdings_of(work(asked, model, execution(layout, **keys)))


def memory(asked, model, layout=None, hardware="1x H100-SXM", **keys):
    return forecast_memory(work(asked, model, execution(layout, **keys), hardware))


def plan(model, hardware, text="", num_rows=None, **keys):
    asked = parse_job(f"model: {model}\n{text}")
    cluster, found = parse_hardware(hardware), find_model(model, offline=True)
    return make_plan(asked, model=found, cluster=cluster, num_rows=num_rows, **keys)
