"""What is shared by all stores about keeping and deleting: pins, plans, the sweeper, the `Versioned` contract."""

from lakebed.reclaim.model import Doomed, Pin, ReclaimPlan, ReclaimReport, Verdict, Version
from lakebed.reclaim.sweep import Sweeper
from lakebed.reclaim.versioned import Versioned

__all__ = ["Doomed", "Pin", "ReclaimPlan", "ReclaimReport", "Sweeper", "Verdict", "Version", "Versioned"]
