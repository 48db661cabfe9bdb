"""What is shared by all stores about keeping and deleting: pins, plans, the sweeper, the `Versioned` contract."""

from lakebed.reclaim.model import Deletable, Explanation, Pin, ReclaimPlan, ReclaimReport, Version
from lakebed.reclaim.sweep import Sweeper
from lakebed.reclaim.versioned import Versioned

__all__ = ["Deletable", "Explanation", "Pin", "ReclaimPlan", "ReclaimReport", "Sweeper", "Version", "Versioned"]
