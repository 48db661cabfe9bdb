"""Counters, gauges and histograms, and their text."""

from __future__ import annotations

import pytest

from lakebed.metrics import Registry


def test_numbers_are_exported_by_family_and_label() -> None:
    """What was counted and set is in the text, and what was removed is not."""
    registry = Registry()
    registry.counter("reads_total", help_text="Reads.", label_names=("kind",)).add(2, "hot")
    sealed = registry.gauge("sealed", help_text="Sealed tokens.", label_names=("branch",))
    sealed.set(3, "main")
    sealed.set(1, "dev")
    sealed.set(2, "main")
    sealed.remove("dev")
    text = registry.render()
    assert 'reads_total{kind="hot"} 2' in text
    assert "# TYPE sealed gauge" in text
    assert 'sealed{branch="main"} 2' in text
    assert "dev" not in text
    assert registry.gauge("sealed", help_text="", label_names=("branch",)) is sealed


def test_one_name_is_one_kind() -> None:
    """A gauge cannot be asked for as a counter."""
    registry = Registry()
    registry.gauge("sealed", help_text="")
    with pytest.raises(TypeError, match="already a gauge"):
        registry.counter("sealed", help_text="")
