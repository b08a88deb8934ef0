"""Work: the job as bytes, for all forecasts: tensors, holders, saved activations, in flight."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.work.activations import made_again
from shardwise.plan.work.block_bytes import BlockBytes
from shardwise.plan.work.in_flight import Alive, Flight, Scene, flights, longest_round, pairs_in_flight
from shardwise.plan.work.inventory import Inventory, Outer, Unit, take_inventory
from shardwise.plan.work.margins import context_bytes, ends, workspace_bytes
from shardwise.plan.work.parts import RankPart, parts
from shardwise.plan.work.persistent import Holding, holdings, page_locked_bytes
from shardwise.plan.work.tensors import BFLOAT16_BYTES, FLOAT32_BYTES, REDUCTION_BYTES, TYPES, DtypeBytes
from shardwise.plan.work.work import Work, work_of, work_of_plan
