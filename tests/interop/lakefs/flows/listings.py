"""Listings: by prefix, behind a path, folded, in pages."""

from flows.expect import refused


def prefixes_are_folded(lake):
    """With a delimiter, what lies deeper is a common prefix, with the fields that clients require."""
    main = lake.repository().branch("main")
    for path in ("a", "b/1", "b/2", "b/c/3", "b-", "d/e"):
        main.object(path).upload(path)
    pairs = [(entry.path, type(entry).__name__) for entry in main.objects(delimiter="/")]
    assert pairs == [("a", "ObjectInfo"), ("b-", "ObjectInfo"), ("b/", "CommonPrefix"), ("d/", "CommonPrefix")]
    assert [entry.path for entry in main.objects(prefix="b/", delimiter="/")] == ["b/1", "b/2", "b/c/"]
    assert [entry.path for entry in main.objects(prefix="b")] == ["b-", "b/1", "b/2", "b/c/3"]
    assert [entry.path for entry in main.objects(prefix="none/")] == []
    assert [entry.path for entry in main.objects(delimiter="/", after="b/")] == ["d/"]
    assert [entry.path for entry in main.objects(delimiter="/", max_amount=1, after="a")] == ["b-"]


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
    """A commit lists what it held, even when the branch has changed."""
    main = lake.repository().branch("main")
    main.object("a").upload(b"1")
    first = main.commit("first")
    main.object("a").delete()
    main.object("b").upload(b"1")
    assert [entry.path for entry in first.objects()] == ["a"]
    assert [entry.path for entry in main.objects()] == ["b"]
