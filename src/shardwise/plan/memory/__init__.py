"""Memory: what each rank of an execution has alive at every instant of a step, and the peak of that."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.memory.activations import made_again
from shardwise.plan.memory.forecast import Peaks, forecast_memory, holdings_of, moments
from shardwise.plan.memory.inventory import Inventory, Unit, take_inventory
from shardwise.plan.memory.margins import workspace_bytes
from shardwise.plan.memory.persistent import Holding, shard_degree, weight_degree
from shardwise.plan.memory.saved import Alive
from shardwise.plan.memory.tensors import BFLOAT16_BYTES, FLOAT32_BYTES, REDUCTION_BYTES, TYPES, state_bytes
from shardwise.plan.memory.work import Work, work_of
