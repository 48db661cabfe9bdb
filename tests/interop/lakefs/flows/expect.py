"""What flows expect of a refusal."""

from contextlib import contextmanager

import lakefs_sdk
from lakefs.exceptions import ServerException


@contextmanager
def refused(status, *words, kind=Exception):
    """The block must end in an error of this status, whose sentence holds these words."""
    result = None
    try:
        yield
    except (ServerException, lakefs_sdk.ApiException) as error:
        result = error
    assert result is not None, f"nothing was refused; {status} was expected"
    got = getattr(result, "status_code", None) or result.status
    assert got == status, f"{got} instead of {status}: {result}"
    assert isinstance(result, kind), f"{type(result)} instead of {kind}"
    for word in words:
        assert word in str(result), f"{word!r} is not in {result}"


@contextmanager
def raises(kind):
    """The block must end in an error of this kind."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"nothing was raised; {kind} was expected")
