"""Modules that are read by their path: of scripts and tools, and of tests that run again on one more kind of store.

Owns: `load_module`, and which tests of object stores are about other kinds of them.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

TESTS: Final = Path(__file__).parents[1]

_NUMBERS: Final = itertools.count()

_OF_OTHER_STORES: Final = {
    "test_a_url_is_the_root_and_the_name",  # a branch's object is where its bytes are
    "test_an_abandoned_upload_is_aborted",
    "test_an_object_of_too_many_parts_is_refused",
    "test_a_large_stream_takes_little_memory",
    "test_faults_of_a_stream",
    "test_wrappers_count_record_and_forget_streams",
}


def load_module(path: str | Path) -> ModuleType:
    """A module, given below `TESTS` or as a whole path, executed anew: a change of it is its caller's alone."""
    spec = importlib.util.spec_from_file_location(f"{Path(path).stem}_{next(_NUMBERS)}", TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def object_store_tests() -> dict[str, Any]:
    """The tests that every kind of object store keeps; they take the fixture `opened` of the module that has them."""
    tests: dict[str, Any] = {}
    for name in ("test_port", "test_streaming"):
        module = vars(load_module(f"behaviour/objects/{name}.py"))
        tests |= {name: test for name, test in module.items() if name.startswith("test_")}
    for test in tests.values():
        # Which of the other stores a test takes would stand in the place of that fixture, or run it once for each.
        test.pytestmark = [mark for mark in getattr(test, "pytestmark", ()) if mark.args[:1] != ("opened",)]
    return {name: test for name, test in tests.items() if name not in _OF_OTHER_STORES}
