"""Keeping and deleting versions, shared by all stores: pins, plans, the sweeper and the `Versioned` contract."""

from lakebed.reclaim.model import CollectionPlan, CollectionReport, Deletable, Explanation, Pin, Version
from lakebed.reclaim.sweep import Sweeper
from lakebed.reclaim.versioned import Versioned

__all__ = ["CollectionPlan", "CollectionReport", "Deletable", "Explanation", "Pin", "Sweeper", "Version", "Versioned"]
