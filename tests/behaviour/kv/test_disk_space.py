"""What a database has deleted is free on the disk, though its process runs on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lakebed import kv

MAPS = Path("/proc/self/maps")
OPTIONS = kv.DatabaseOptions(background=False, l0_compaction_count=2, run_file_bytes=20_000)


def count_mapped(folder: Path) -> int:
    """Files of a database that are mapped and deleted: their bytes are not free."""
    return sum(str(folder) in line and line.endswith("(deleted)") for line in MAPS.read_text().splitlines())


@pytest.mark.skipif(not MAPS.exists(), reason="only Linux tells what is mapped")
@pytest.mark.parametrize("compacts", ["writer", "another process"])
def test_files_that_were_replaced_are_not_kept(tmp_path: Path, compacts: str) -> None:
    """Neither after a compaction of the writer nor after another one's; a snapshot reads its files until it ends."""
    with kv.open(tmp_path, options=OPTIONS) as db:
        for number in range(4):
            for key in range(300):
                db.put(b"%03d" % key, b"%d" % number * 200, await_durable=False)
            db.flush(memtable=True)
            assert db.get(b"007") == b"%d" % number * 200
        with db.snapshot() as before:
            db.delete(b"007")
            db.flush(memtable=True)
            if compacts == "writer":
                db.compact()
            else:
                kv.admin.compact(tmp_path)
                db.poll_once()
            assert (before.get(b"007"), db.get(b"007")) == (b"3" * 200, None)
            assert len(list(before.scan())) == 300
            replaced_count = len(list((tmp_path / "sst").iterdir()))
        for _ in range(2):  # the first ends the checkpoint of the snapshot
            db.put(b"other", b"1")
            db.flush(memtable=True)
            db.compact() if compacts == "writer" else (kv.admin.compact(tmp_path), db.poll_once())
            kv.admin.collect(tmp_path, options=kv.CollectorOptions(grace=timedelta(0)))
        assert len(list((tmp_path / "sst").iterdir())) < replaced_count
        assert len(list(db.scan())) == 300
        assert count_mapped(tmp_path) == 0


@pytest.mark.skipif(not MAPS.exists(), reason="only Linux tells what is mapped")
@pytest.mark.parametrize("follow_latest", [True, False])
def test_files_that_were_replaced_are_not_kept_by_a_reader(tmp_path: Path, follow_latest: bool) -> None:
    """A reader gives back what was collected once it shows a newer version; a scan reads its version to the end."""
    options = kv.ReaderOptions(background=False, follow_latest=follow_latest, cache_bytes=1 << 24)  # its own cache
    with kv.open(tmp_path, options=OPTIONS) as db:
        for number in range(4):
            for key in range(300):
                db.put(b"%03d" % key, b"%d" % number * 200, await_durable=False)
            db.flush(memtable=True)
        with kv.open_reader(tmp_path, options=options) as reader:
            scan = reader.scan()
            assert next(scan) == (b"000", b"3" * 200)
            assert reader.get(b"007") == b"3" * 200
            db.delete(b"007")
            db.flush(memtable=True)
            db.compact()
            assert reader.poll_once()
            assert reader.get(b"007") is None
            if not follow_latest:
                assert len(list(scan)) == 299  # with 007: the scan has its own version
            del scan
            for _ in range(2):  # the first ends the checkpoint of the scan
                db.put(b"other", b"1")
                db.flush(memtable=True)
                db.compact()
                assert reader.poll_once()
                kv.admin.collect(tmp_path, options=kv.CollectorOptions(grace=timedelta(0)))
            assert len(list(reader.scan())) == 300
            assert count_mapped(tmp_path) == 0
