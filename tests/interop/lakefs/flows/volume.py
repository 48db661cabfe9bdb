"""Much of everything: more objects than a page holds, and a large one."""

import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor

from lakefs_spec import LakeFSFileSystem

COUNT = 1_100
MB = 1 << 20


def _filled(lake, count):
    made = lake.repository()
    main = made.branch("main")
    place = f"/api/v1/repositories/{made.id}/branches/main/objects?path="
    paths = [f"{number % 5}/{number:05}" for number in range(count)]

    def put(path):
        headers = lake.headers()
        reply = lake.http.request("POST", f"{lake.endpoint}{place}{path}", body=path.encode(), headers=headers)
        assert reply.status == 201, reply.data

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, paths))
    return made, main, sorted(paths)


def more_than_a_page_is_listed(lake):
    """1,100 objects are listed, uncommitted and committed; pages follow each other without a gap; then all go."""
    made, main, paths = _filled(lake, COUNT)
    assert [entry.path for entry in main.objects()] == paths
    assert [entry.path for entry in main.objects(amount=1000)] == paths
    assert [change.path for change in main.uncommitted(amount=1000)] == paths
    assert [entry.path for entry in main.objects(prefix="3/")] == [path for path in paths if path.startswith("3/")]
    assert [entry.path for entry in main.objects(after=paths[300])] == paths[301:]
    assert [entry.path for entry in main.objects(delimiter="/")] == [f"{number}/" for number in range(5)]
    main.commit("all")
    assert [entry.path for entry in main.objects(amount=1000)] == paths
    for start in range(0, COUNT, 1000):
        main.delete_objects(paths[start : start + 1000])
    assert list(main.objects()) == []
    assert sum(1 for _ in main.uncommitted(amount=1000)) == COUNT
    dev = made.branch("dev").create("main")
    main.commit("none")
    assert [difference.type for difference in dev.diff(main, amount=1000)] == ["removed"] * COUNT


def a_tree_of_more_than_a_thousand_is_removed(lake):
    """lakefs-spec deletes in batches of a thousand, while it lists what it deletes."""
    made, main, paths = _filled(lake, 1_300)
    fs = LakeFSFileSystem(host=lake.endpoint, username=lake.access_key, password=lake.secret, skip_instance_cache=True)
    fs.rm(f"{made.id}/main/3/", recursive=True)
    assert [entry.path for entry in main.objects(amount=1000)] == [path for path in paths if not path.startswith("3/")]
    fs.rm(f"{made.id}/main/", recursive=True)
    assert list(main.objects()) == []


def a_large_object_goes_through(lake):
    """100 MB, each way through the server, and from the middle."""
    main = lake.repository().branch("main")
    piece = os.urandom(MB)
    body = io.BytesIO()
    for number in range(100):
        body.write(number.to_bytes(8, "big"))
        body.write(piece[8:])
    data = body.getvalue()
    main.object("large").upload(data, pre_sign=False)
    entry = main.object("large").stat()
    assert (entry.size_bytes, entry.checksum) == (100 * MB, hashlib.md5(data).hexdigest())
    with main.object("large").reader(pre_sign=False) as reader:
        assert hashlib.md5(reader.read()).hexdigest() == entry.checksum
        reader.seek(50 * MB)
        assert reader.read(8) == (50).to_bytes(8, "big")
