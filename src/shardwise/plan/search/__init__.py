"""Search: the executions that a job leaves open, what fits, and the best of it for a goal."""
# What other packages import from here:
# pyright: reportUnusedImport=false

from shardwise.plan.search.executions import (
    RECOMPUTE_ORDER,
    considered,
    offloads,
    open_executions,
    sized,
    sizes_on,
    why_eager,
)
from shardwise.plan.search.forecasts import Forecasts, bytes_beyond_host
from shardwise.plan.search.goals import (
    BETTER,
    Found,
    best_first,
    doubt_of,
    ratio,
    simplicity,
    simplicity_of,
    tie_of,
    unmeasured,
)
from shardwise.plan.search.gpu_counts import best_part
from shardwise.plan.search.layouts import Choice
from shardwise.plan.search.question import Memo, Question, ask, changed, of_job, on_attention, on_hardware, work_on
from shardwise.plan.search.search import (
    Admits,
    Search,
    StrategySearch,
    best_alone,
    chosen,
    every_layout,
    search_offloads,
)
