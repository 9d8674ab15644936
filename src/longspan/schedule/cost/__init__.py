"""Models that predict how long one stage takes for one iteration."""

from longspan.schedule.cost.analytic import AnalyticCost
from longspan.schedule.cost.base import CostModel
from longspan.schedule.cost.bucketed import BucketedCost
from longspan.schedule.cost.ema import EmaCost
from longspan.schedule.cost.stages import COST_MODELS, StageCosts, cost_model

__all__ = ["COST_MODELS", "AnalyticCost", "BucketedCost", "CostModel", "EmaCost", "StageCosts", "cost_model"]
