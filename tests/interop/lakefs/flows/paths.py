"""Paths as users have them: spaces, letters of any alphabet, what URLs treat as special."""

import lakefs_sdk
from flows.expect import refused

ODD = [
    "with space",
    " leading and trailing ",
    "plus+plus",
    "percent%20literal",
    "100%",
    "question?mark=1",
    "hash#fragment",
    "amper&sand=x",
    "semi;colon:comma,",
    "quote'double\"",
    "back\\slash",
    "/leading/slash",
    "double//slash",
    "trailing/",
    "dots/./dot",
    "..dots..",
    "...",
    "ünïcödé/日本語/😀",
    "e\u0301 is not \u00e9",
    "\u00e9 is not e\u0301",
    "brackets[0]{1}(2)<3>",
    "tilde~caret^at@dollar$",
    "star*pipe|",
    "tab\there",
    "line\nbreak",
    "x" * 900,
]


def odd_paths_are_paths(lake):
    """Each is written, looked at, read, listed, copied and deleted under exactly its own name."""
    made = lake.repository()
    main = made.branch("main")
    for number, path in enumerate(ODD):
        main.object(path).upload(f"{number}")
    assert [entry.path for entry in main.objects()] == sorted(ODD, key=str.encode)
    for number, path in enumerate(ODD):
        assert main.object(path).exists(), path
        assert main.object(path).stat().path == path
        assert main.object(path).reader(mode="r").read() == f"{number}"
        assert [entry.path for entry in main.objects(prefix=path, max_amount=1)] == [path]
        assert main.object(path).copy("main", f"copy/{path}").reader(mode="r").read() == f"{number}"
    main.commit("all")
    assert sorted(difference.path for difference in made.ref("main~1").diff("main")) == sorted(
        [*ODD, *(f"copy/{path}" for path in ODD)]
    )
    main.object(ODD[0]).upload("changed")
    main.reset_changes("object", ODD[0])
    for path in ODD[:10]:
        main.object(path).delete()
    main.delete_objects(ODD[10:])
    main.delete_objects([f"copy/{path}" for path in ODD])
    assert list(main.objects()) == []


def odd_paths_go_past_the_server_too(lake):
    """Uploads through signed URLs have the same names."""
    main = lake.repository().branch("main")
    for number, path in enumerate(ODD):
        main.object(path).upload(f"{number}", pre_sign=True)
        assert main.object(path).reader(mode="r", pre_sign=True).read() == f"{number}"


def paths_that_cannot_be_are_refused(lake):
    """A step upwards, what is too long, and what belongs to the system; nothing is written."""
    made = lake.repository()
    main = made.branch("main")
    for path in ("..", "../up", "a/../b", "a/..", "x" * 1025, "nul\0inside", "_lakefs/x"):
        with refused(400):
            main.object(path).upload(b"1", pre_sign=False)
        with refused(400):
            main.object(path).upload(b"1", pre_sign=True)
    with refused(400):
        main.object("").upload(b"1", pre_sign=False)
    main.object("a").upload(b"1")
    with refused(400):
        main.object("a").copy("main", "a/../b")
    objects = lake.client.sdk_client.objects_api.delete_objects(
        made.id, "main", lakefs_sdk.PathList(paths=["../a", "a"])
    )
    assert [(error.status_code, error.path) for error in objects.errors] == [(400, "../a")]
    assert list(main.objects()) == []


def messages_and_names_may_be_odd_too(lake):
    """Tags and messages hold what their rules allow, and come back as they were."""
    made = lake.repository()
    main = made.branch("main")
    main.object("a").upload(b"1")
    message = 'Größe & <b>"bold"</b>\n\n100% + ünïcödé 😀'
    assert main.commit(message).get_commit().message == message
    for name in ("v1.0", "release/2026+1", "größe", "a%20b"):
        made.tag(name).create("main")
        assert made.tag(name).get_commit().message == message
    assert sorted(tag.id for tag in made.tags()) == sorted(("v1.0", "release/2026+1", "größe", "a%20b"))
