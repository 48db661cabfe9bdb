"""Random names, from an injected generator, so that a simulation is reproducible."""

from __future__ import annotations

import random
import uuid


def new_uuid(rng: random.Random) -> str:
    """Return a random UUID (version 4) in its canonical lower-case form."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
