"""Test tools for code that uses lakebed: faulty stores, power loss, recorded calls, clocks and a seeded scheduler.

`FaultyStore` and `RecordingStore` show what happens if a given call fails. `Scheduler` finds the order of steps, and
the faults, with which code breaks. `ScheduledCalls` loses, repeats and delays calls between services. All stores here
implement `ObjectStore` and can be nested in any order. Needs the extra ``testing``. Guide: ``docs/guide/testing.md``.
"""

from lakebed.testing.actor_loop import Actor, Deadlock, StepsExceeded
from lakebed.testing.between import Between
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Crashed, Fault, FaultyStore, random_faults
from lakebed.testing.power_loss import PowerLossStore
from lakebed.testing.recording import Recorded, RecordingStore
from lakebed.testing.scheduled_calls import FaultRates, ScheduledCalls
from lakebed.testing.scheduler import ScheduledStore, Scheduler, seed_count
from lakebed.testing.simulated_runtime import SimulatedClock, SimulatedRuntime
from lakebed.testing.wrapper import Call, StoreWrapper

__all__ = [
    "Actor",
    "Between",
    "Call",
    "Crashed",
    "Deadlock",
    "Fault",
    "FaultRates",
    "FaultyStore",
    "ManualClock",
    "PowerLossStore",
    "Recorded",
    "RecordingStore",
    "ScheduledCalls",
    "ScheduledStore",
    "Scheduler",
    "SimulatedClock",
    "SimulatedRuntime",
    "StepsExceeded",
    "StoreWrapper",
    "random_faults",
    "seed_count",
]
