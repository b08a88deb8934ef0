"""Memory: what each rank of an execution has alive at every instant of a step, and the peak of that."""

from shardwise.plan.memory.forecast import forecast_memory, holdings_of, moments
from shardwise.plan.memory.inventory import Inventory, Unit, take_inventory
from shardwise.plan.memory.persistent import Holding
from shardwise.plan.memory.work import Work, work_of

__all__ = [
    "Holding",
    "Inventory",
    "Unit",
    "Work",
    "forecast_memory",
    "holdings_of",
    "moments",
    "take_inventory",
    "work_of",
]
