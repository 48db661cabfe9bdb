"""The verbs of a repository: one typed message each, with its fields, role, effort, result and `run`.

The facade (`lakebed.repo.reference`, `branch`, `repository`) builds a verb and hands it to a transport, which runs it
in this process or sends it to a server; the server decodes it and runs it. To add a verb: write its class in the module
of its subject, with the decorator `verb`, and the method of the facade that builds it. The endpoint, its description
and the check of roles follow from the class.
"""

from __future__ import annotations

from lakebed.repo.verbs import commits, reading, references, repositories, settings, versions, writing
from lakebed.repo.verbs.message import PAGE_COUNT_MAX, PATHS_MAX, ListVerb, RepositoryFacts, Verb

__all__ = ["HOME_VERBS", "PAGE_COUNT_MAX", "PATHS_MAX", "VERBS", "ListVerb", "RepositoryFacts", "Verb"]

VERBS: dict[str, type[Verb[object]]] = {
    one.verb_name: one
    for subject in (reading, references, settings, versions, writing, commits)
    for one in subject.VERBS
}
"""Of one repository: ``POST /repositories/{repository}/verbs/<name>``."""

HOME_VERBS: dict[str, type[repositories.HomeVerb[object]]] = {one.verb_name: one for one in repositories.VERBS}
"""Of all repositories: ``POST /verbs/<name>``."""
