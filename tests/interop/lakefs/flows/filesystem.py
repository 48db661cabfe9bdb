"""lakefs-spec: a branch as a file system of fsspec."""

import hashlib
import os
import tempfile
from pathlib import Path

import fsspec
from flows.expect import raises
from lakefs.exceptions import NotAuthorizedException
from lakefs_spec import LakeFSFileSystem


def _open(lake, **settings):
    return LakeFSFileSystem(
        host=lake.endpoint,
        username=lake.access_key,
        password=lake.secret,
        skip_instance_cache=True,
        use_listings_cache=False,
        **settings,
    )


def _filled(lake, **settings):
    fs, made = _open(lake, **settings), lake.repository()
    root = f"{made.id}/main"
    for path in ("a.txt", "folder/b.txt", "folder/c.csv", "folder/deep/d.txt", "other/e.txt"):
        fs.pipe_file(f"{root}/{path}", path.encode())
    return fs, made, root


def _names(found, root):
    return sorted(name.removeprefix(f"{root}/") for name in found)


def files_are_put_and_got(lake):
    """From the disk and back, whole folders too."""
    fs, made = _open(lake), lake.repository()
    root = f"lakefs://{made.id}/main"
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "tree" / "inner").mkdir(parents=True)
        (here / "tree" / "one").write_bytes(b"1")
        (here / "tree" / "inner" / "two").write_bytes(b"22")
        fs.put(str(here / "tree") + "/", f"{root}/tree/", recursive=True)
        assert [entry.path for entry in made.branch("main").objects()] == ["tree/inner/two", "tree/one"]
        fs.get(f"{root}/tree/", str(here / "back") + "/", recursive=True)
        assert (here / "back" / "inner" / "two").read_bytes() == b"22"
        fs.get_file(f"{root}/tree/one", str(here / "single"))
        assert (here / "single").read_bytes() == b"1"
        with raises(FileNotFoundError):
            fs.get_file(f"{root}/nothing", str(here / "x"))


def what_is_the_same_is_not_sent_again(lake):
    """Checksums are MD5, so uploads and downloads of the same bytes are skipped."""
    fs, made = _open(lake), lake.repository()
    path = f"{made.id}/main/a"
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "a")
        file.write_bytes(b"content")
        fs.put_file(str(file), path)
        assert fs.checksum(path) == hashlib.md5(b"content").hexdigest()
        before = made.branch("main").object("a").stat().physical_address
        fs.put_file(str(file), path)
        assert made.branch("main").object("a").stat().physical_address == before
        stamp = os.stat(file).st_mtime_ns
        fs.get_file(path, str(file))
        assert os.stat(file).st_mtime_ns == stamp
        file.write_bytes(b"changed")
        fs.put_file(str(file), path)
        assert fs.cat_file(path) == b"changed"
        with raises(FileExistsError):
            fs.put_file(str(file), path, mode="create")


def folders_are_listed(lake):
    """``ls``, ``info``, ``exists``, ``isdir``, ``du``: files and folders, and what only looks like one."""
    fs, made, root = _filled(lake)
    assert _names(fs.ls(f"{root}/", detail=False), root) == ["a.txt", "folder/", "other/"]
    assert _names(fs.ls(f"{root}/folder", detail=False), root) == ["folder/b.txt", "folder/c.csv", "folder/deep/"]
    assert _names(fs.ls(f"{root}/folder/", detail=False), root) == ["folder/b.txt", "folder/c.csv", "folder/deep/"]
    result = fs.info(f"{root}/a.txt")
    assert (result["type"], result["size"], result["name"]) == ("file", 5, f"{root}/a.txt")
    assert fs.info(f"{root}/folder")["type"] == "directory"
    assert fs.exists(f"{root}/a.txt")
    assert fs.exists(f"{root}/folder")
    assert fs.exists(f"{root}/")
    assert not fs.exists(f"{root}/nothing")
    assert not fs.exists(f"{made.id}/nowhere/")
    assert not fs.exists(f"{root}/fold")
    assert fs.isdir(f"{root}/folder/deep")
    assert fs.isfile(f"{root}/folder/c.csv")
    with raises(FileNotFoundError):
        fs.info(f"{root}/nothing")
    assert fs.du(f"{root}/folder/") == len("folder/b.txt" + "folder/c.csv" + "folder/deep/d.txt")
    assert fs.modified(f"{root}/a.txt").timestamp() == made.branch("main").object("a.txt").stat().mtime


def trees_are_walked(lake):
    """``find``, ``glob``, ``walk``."""
    fs, _, root = _filled(lake)
    every = ["a.txt", "folder/b.txt", "folder/c.csv", "folder/deep/d.txt", "other/e.txt"]
    assert _names(fs.find(f"{root}/"), root) == every
    assert _names(fs.find(f"{root}/folder"), root) == every[1:4]
    assert _names(fs.glob(f"{root}/**/*.txt"), root) == [path for path in every if path.endswith(".txt")]
    assert _names(fs.glob(f"{root}/o*/*.txt"), root) == ["other/e.txt"]
    files = [name for _, _, names in fs.walk(f"{root}/") for name in names]
    assert sorted(files) == ["a.txt", "b.txt", "c.csv", "d.txt", "e.txt"]


def files_are_removed(lake):
    """One, several, and a whole tree."""
    fs, _, root = _filled(lake)
    fs.rm(f"{root}/a.txt")
    fs.rm_file(f"{root}/folder/b.txt")
    fs.rm(f"{root}/folder/", recursive=True)
    assert _names(fs.find(f"{root}/"), root) == ["other/e.txt"]
    source = f"{root}/other/e.txt"
    for number in range(30):
        fs.cp_file(source, f"{root}/many/{number // 10}/{number}")
    assert len(fs.find(f"{root}/many/")) == 30
    fs.rm(f"{root}/many/", recursive=True)
    assert _names(fs.find(f"{root}/"), root) == ["other/e.txt"]


def files_are_copied_and_moved(lake):
    """``cp``, ``mv``, between branches too."""
    fs, made, root = _filled(lake)
    fs.cp(f"{root}/a.txt", f"{root}/copy.txt")
    assert fs.cat_file(f"{root}/copy.txt") == b"a.txt"
    fs.mv(f"{root}/copy.txt", f"{root}/moved.txt")
    assert not fs.exists(f"{root}/copy.txt")
    assert fs.cat_file(f"{root}/moved.txt") == b"a.txt"
    fs.cp(f"{root}/folder/", f"{root}/folder3/", recursive=True)
    assert _names(fs.find(f"{root}/folder3"), root) == ["folder3/b.txt", "folder3/c.csv", "folder3/deep/d.txt"]
    made.branch("dev").create("main")
    fs.cp_file(f"{root}/a.txt", f"{made.id}/dev/a.txt")
    assert fs.cat_file(f"{made.id}/dev/a.txt") == b"a.txt"
    with raises(FileNotFoundError):
        fs.cp_file(f"{root}/nothing", f"{root}/x")


def files_are_opened(lake):
    """Every mode of reading and writing; text and bytes; ranges; a branch that is made by writing to it."""
    fs, made = _open(lake), lake.repository()
    root = f"{made.id}/main"
    with fs.open(f"{root}/text", "w", content_type="text/plain", metadata={"k": "v"}) as file:
        file.write("first\nsecond\n")
    assert made.branch("main").object("text").stat().metadata == {"k": "v"}
    assert made.branch("main").object("text").stat().content_type == "text/plain"
    with fs.open(f"{root}/text", "r") as file:
        assert list(file) == ["first\n", "second\n"]
    with fs.open(f"{root}/bytes", "wb") as file:
        file.write(b"0123456789")
    with fs.open(f"{root}/bytes", "rb") as file:
        file.seek(4)
        assert file.read(3) == b"456"
    assert fs.tail(f"{root}/bytes", 3) == b"789"
    assert fs.cat_file(f"{root}/bytes") == b"0123456789"
    assert fs.cat_file(f"{root}/bytes", start=2, end=4) == b"23"
    assert fs.head(f"{root}/bytes", 2) == b"01"
    with fs.open(f"{root}/once", "xb") as file:
        file.write(b"1")
    with raises(FileExistsError), fs.open(f"{root}/once", "xb") as file:
        file.write(b"2")
    with raises(NotImplementedError):
        fs.open(f"{root}/bytes", "ab")
    with raises(FileNotFoundError):
        fs.open(f"{root}/nothing", "rb")
    fs.touch(f"{root}/empty")
    assert fs.info(f"{root}/empty")["size"] == 0
    with fs.open(f"{made.id}/made-by-writing/a", "wb") as file:
        file.write(b"1")
    assert [branch.id for branch in made.branches()] == ["made-by-writing", "main"]
    strict = _open(lake, create_branch_ok=False)
    with raises(FileNotFoundError), strict.open(f"{made.id}/nowhere/a", "wb") as file:
        file.write(b"1")


def signed_urls_are_used_when_asked(lake):
    """``pre_sign`` of the whole file system, up and down."""
    for pre_sign in (True, False):
        fs, made = _open(lake, pre_sign=pre_sign), lake.repository()
        fs.pipe_file(f"{made.id}/main/a", b"signed")
        assert fs.cat_file(f"{made.id}/main/a") == b"signed"


def a_transaction_is_one_merge(lake):
    """Commits inside it, one merge at its end, and no branch after it."""
    fs, made = _open(lake), lake.repository()
    main = made.branch("main")
    with fs.transaction(made.id, "main") as transaction:
        fs.pipe_file(f"{made.id}/{transaction.branch.id}/a", b"1")
        first = transaction.commit("first", metadata={"by": "test"})
        fs.pipe_file(f"{made.id}/{transaction.branch.id}/b", b"2")
        transaction.commit("second")
        transaction.tag(first, "v1")
        assert transaction.rev_parse(first).message == "first"
        assert list(main.objects()) == []
    assert [entry.path for entry in main.objects()] == ["a", "b"]
    assert [branch.id for branch in made.branches(show_hidden=True)] == ["main"]
    assert {"first", "second"} <= {commit.message for commit in main.log()}
    assert made.tag("v1").get_commit().metadata["by"] == "test"


def an_error_in_a_transaction_merges_nothing(lake):
    """With ``delete="always"`` nothing is left of it."""
    fs, made = _open(lake), lake.repository()
    with raises(KeyError), fs.transaction(made.id, "main", delete="always") as transaction:
        with fs.open(f"{made.id}/{transaction.branch.id}/a", "wb") as file:
            file.write(b"1")
        raise KeyError
    assert list(made.branch("main").objects()) == []
    assert [branch.id for branch in made.branches(show_hidden=True)] == ["main"]


def a_transaction_reverts_and_merges(lake):
    """The versioning that a transaction offers in addition to files."""
    fs, made = _open(lake), lake.repository()
    main = made.branch("main")
    main.object("a").upload(b"1")
    main.commit("first")
    main.object("a").upload(b"2")
    main.commit("second")
    with fs.transaction(made.id, "main") as transaction:
        assert transaction.revert(transaction.branch, transaction.branch.head.id).message.startswith("Revert")
    assert main.object("a").reader().read() == b"1"
    made.branch("dev").create("main").object("b").upload(b"3")
    made.branch("dev").commit("on dev")
    with fs.transaction(made.id, "main") as transaction:
        transaction.merge("dev", transaction.branch)
    assert main.object("b").reader().read() == b"3"


def wrong_secrets_are_errors_of_permission(lake):
    """What fsspec's users expect of 401 and 403."""
    made = lake.repository()
    fs = LakeFSFileSystem(host=lake.endpoint, username=lake.access_key, password="wrong", skip_instance_cache=True)
    with raises(PermissionError):
        fs.ls(f"{made.id}/main/")
    with raises(NotAuthorizedException):  # lakefs-spec lets the SDK's own error through here
        fs.pipe_file(f"{made.id}/main/a", b"1")


def urls_are_opened_by_fsspec(lake):
    """``lakefs://`` URLs work everywhere in fsspec, odd names included."""
    made = lake.repository()
    options = {"host": lake.endpoint, "username": lake.access_key, "password": lake.secret}
    for name in ("plain", "with space", "größe", "a%20b", "a+b"):
        url = f"lakefs://{made.id}/main/{name}"
        with fsspec.open(url, "wb", **options) as file:
            file.write(name.encode())
        with fsspec.open(url, "rb", **options) as file:
            assert file.read() == name.encode()
    fs, path = fsspec.url_to_fs(f"lakefs://{made.id}/main/", **options)
    assert len(fs.ls(path)) == 5
