"""Listings: by prefix, behind a path, folded, and of more than one page."""

from concurrent.futures import ThreadPoolExecutor

from flows.expect import refused

COUNT = 2_500


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
    """2,500 objects are listed, uncommitted and committed; pages follow each other without a gap; then all go."""
    made, main, paths = _filled(lake, COUNT)
    assert [one.path for one in main.objects()] == paths
    assert [one.path for one in main.objects(amount=1000)] == paths
    assert [one.path for one in main.uncommitted(amount=1000)] == paths
    assert [one.path for one in main.objects(prefix="3/")] == [path for path in paths if path.startswith("3/")]
    assert [one.path for one in main.objects(after=paths[1_700])] == paths[1_701:]
    assert [one.path for one in main.objects(delimiter="/")] == [f"{number}/" for number in range(5)]
    main.commit("all")
    assert [one.path for one in main.objects(amount=1000)] == paths
    for start in range(0, COUNT, 1000):
        main.delete_objects(paths[start : start + 1000])
    assert list(main.objects()) == []
    assert sum(1 for _ in main.uncommitted(amount=1000)) == COUNT
    dev = made.branch("dev").create("main")
    main.commit("none")
    assert [one.type for one in dev.diff(main, amount=1000)] == ["removed"] * COUNT


def prefixes_are_folded(lake):
    """With a delimiter, what lies deeper is a common prefix, with the fields that clients require."""
    main = lake.repository().branch("main")
    for path in ("a", "b/1", "b/2", "b/c/3", "b-", "d/e"):
        main.object(path).upload(path)
    found = [(one.path, type(one).__name__) for one in main.objects(delimiter="/")]
    assert found == [("a", "ObjectInfo"), ("b-", "ObjectInfo"), ("b/", "CommonPrefix"), ("d/", "CommonPrefix")]
    assert [one.path for one in main.objects(prefix="b/", delimiter="/")] == ["b/1", "b/2", "b/c/"]
    assert [one.path for one in main.objects(prefix="b")] == ["b-", "b/1", "b/2", "b/c/3"]
    assert [one.path for one in main.objects(prefix="none/")] == []
    assert [one.path for one in main.objects(delimiter="/", after="b/")] == ["d/"]
    assert [one.path for one in main.objects(delimiter="/", max_amount=1, after="a")] == ["b-"]


def a_page_says_where_the_next_begins(lake):
    """``has_more``, ``next_offset``, ``results`` and ``max_per_page`` are all there."""
    made = lake.repository()
    main = made.branch("main")
    for path in "abc":
        main.object(path).upload(path)
    api = lake.client.sdk_client.objects_api
    page = api.list_objects(made.id, "main", amount=2).pagination
    assert (page.has_more, page.next_offset, page.results, page.max_per_page) == (True, "b", 2, 1000)
    page = api.list_objects(made.id, "main", amount=2, after="b").pagination
    assert (page.has_more, page.next_offset, page.results) == (False, "", 1)
    with refused(404):
        api.list_objects(made.id, "nowhere")


def listings_are_of_versions(lake):
    """A commit lists what it held, whatever the branch has become."""
    main = lake.repository().branch("main")
    main.object("a").upload(b"1")
    first = main.commit("first")
    main.object("a").delete()
    main.object("b").upload(b"1")
    assert [one.path for one in first.objects()] == ["a"]
    assert [one.path for one in main.objects()] == ["b"]
