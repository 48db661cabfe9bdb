"""The kinds of steps, one module each; `KINDS` is the registry. A new kind is a module and its entry here."""

from __future__ import annotations

from lakebed.pipeline.keys import StepKind
from lakebed.pipeline.steps import audit, collect, compact, expire, ingest, merge, publish, report, tag

__all__ = ["KINDS"]

KINDS: dict[str, StepKind] = {
    module.KIND.name: module.KIND for module in (ingest, audit, merge, tag, compact, expire, collect, publish, report)
}
