"""The judgement of URLs, without stores: what is inside of what, and what is never allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects.path import parse_url
from lakebed.repo.outside.import_policy import ImportPolicy, Use, parse_allowed_folders, real_url


def allowed(
    policy: ImportPolicy, url: str, *, use: Use = "name", repository: str = "mine", limited: bool = False
) -> bool:
    """Whether a URL is allowed."""
    return policy.refusal(real_url(parse_url(url)), use=use, repository=repository, is_limited=limited) is None


@pytest.fixture(params=["s3://bucket", "memory://bucket", "file://"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the storage and its neighbours are."""
    return f"file://{tmp_path}" if request.param == "file://" else str(request.param)


@pytest.fixture
def policy(base: str) -> ImportPolicy:
    """A storage of which everything is listed by mistake, and its neighbours."""
    return ImportPolicy(
        parse_allowed_folders([f"{base}/lake", f"{base}/open", f"mine={base}/of-mine", base]),
        parse_url(f"{base}/lake"),
        parse_url(f"{base}/records"),
        lambda: ("theirs", "deep/in/Side"),
    )


@pytest.mark.parametrize("use", ["read", "name", "list"])
@pytest.mark.parametrize(
    "path",
    [
        "lake/_repositories", "lake/_repositories/x", "lake/_REPOSITORIES/x", "lake/a.kv/x", "lake/a.db/t/x",
        "lake/A.DB/t/x", "lake/a.repo", "lake/theirs", "lake/theirs/data/x", "lake/Theirs/x", "lake/deep/in/side/x",
        "records", "records/x",
    ],
)  # fmt: skip
def test_stores_and_records_are_never_allowed(base: str, policy: ImportPolicy, path: str, use: Use) -> None:
    """Whatever is listed, in whatever letters."""
    assert not allowed(policy, f"{base}/{path}", use=use)


def test_a_folder_that_contains_what_is_not_allowed_is_not_listed(base: str, policy: ImportPolicy) -> None:
    """Above a namespace, above the storage, above the records: an object there may be named, the folder not listed."""
    for path in ("lake/deep", "lake/deep/in", "lake", ""):
        assert not allowed(policy, f"{base}/{path}".rstrip("/"), use="list")
    for path in ("lake/plain", "lake/deep/at", "open", "lake/theirs2", "lake/x.kvx"):
        assert allowed(policy, f"{base}/{path}", use="list")
    assert allowed(policy, f"{base}/one-object", use="name")


def test_a_folder_of_one_repository_is_for_no_other(base: str) -> None:
    """Nor is a folder for all for a limited key, but to read what an entry names."""
    policy = ImportPolicy(parse_allowed_folders([f"{base}/open", f"mine={base}/of-mine"]), parse_url(f"{base}/lake"))
    assert allowed(policy, f"{base}/of-mine/x", limited=True)
    assert not allowed(policy, f"{base}/of-mine/x", repository="theirs")
    assert not allowed(policy, f"{base}/open/x", limited=True)
    assert allowed(policy, f"{base}/open/x", limited=True, use="read")
    assert not allowed(policy, f"{base}/lake/x")
    assert not allowed(policy, f"{base}/opener/x")
    assert not allowed(policy, f"{base}/open/../lake/x") if base.startswith("file") else True


def test_another_name_of_the_storage_is_the_storage(tmp_path: Path) -> None:
    """A link to the storage, and the storage by way of a link, are judged as what they are."""
    (tmp_path / "lake/theirs").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "open/alias").symlink_to(tmp_path / "lake")
    (tmp_path / "lake-too").symlink_to(tmp_path / "lake")
    for root in ("lake", "lake-too"):
        policy = ImportPolicy(
            parse_allowed_folders([str(tmp_path / "open"), str(tmp_path / root)]),
            root=real_url(parse_url(tmp_path / root)),
            taken=lambda: ("theirs",),
        )
        for path in ("open/alias/theirs/x", "lake/theirs/x", "lake-too/theirs/x", "open/alias/_repositories/x"):
            assert not allowed(policy, str(tmp_path / path), use="read")
        assert allowed(policy, str(tmp_path / "open/alias/plain/x"), use="read")


def test_folders_that_cannot_be_are_refused() -> None:
    """A URL with a wrong scheme or credentials, with and without a repository."""
    for text in ("ftp://x/y", "s3://key@bucket", "mine=ftp://x", ""):
        with pytest.raises(InvalidRequest):
            parse_allowed_folders([text])
    [folder] = parse_allowed_folders(["mine=/a=b"])
    assert (folder.repository, folder.url.prefix) == ("mine", "/a=b")
    [folder] = parse_allowed_folders(["s3://bucket/a=b"])
    assert (folder.repository, str(folder.url)) == (None, "s3://bucket/a=b")
