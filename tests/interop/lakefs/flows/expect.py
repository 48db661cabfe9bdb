"""What flows expect of a refusal."""

from contextlib import contextmanager

import lakefs_sdk
from lakefs.exceptions import ServerException


@contextmanager
def refused(status, *words, kind=Exception):
    """The block must end in an error of this status, whose sentence holds these words."""
    found = None
    try:
        yield
    except (ServerException, lakefs_sdk.ApiException) as error:
        found = error
    assert found is not None, f"nothing was refused; {status} was expected"
    got = getattr(found, "status_code", None) or found.status
    assert got == status, f"{got} instead of {status}: {found}"
    assert isinstance(found, kind), f"{type(found)} instead of {kind}"
    for word in words:
        assert word in str(found), f"{word!r} is not in {found}"


@contextmanager
def raises(kind):
    """The block must end in an error of this kind."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"nothing was raised; {kind} was expected")
