"""Every key and every object path of repositories, written and parsed in one place. Pure.

Keys (UTF-8 but for the paths in staging, which are any bytes):

    home                                             CatalogRecord: the identity of this catalog
    repos/<name>                                     RepositoryRecord
    deleted/<uid>                                    DeletedRepository: to be cleaned up
    r/<uid>/branches/<name>                          Branch
    r/<uid>/tags/<name>                              Tag
    r/<uid>/commits/<id>                             Commit
    r/<uid>/staging/<token>/<path>                   encoded entry, or nothing: a tombstone
    r/<uid>/cleanup/<token>                          when it was dropped
    r/<uid>/imports/<id>  settings/<name>  reflog/<branch>/<ulid>  expired/<commit>
    r/<uid>/superseded/<ulid>                        Superseded: a state that was replaced lately
    r/<uid>/pulls/<ulid>                             PullRequest
    r/<uid>/tasks/<id>                               Task: a dump or a restore in lakeFS's interface
    r/<uid>/runs/<id>                                ActionRun: what actions did at an event
    r/<uid>/history/<number>                         a segment of the commit graph, 8 digits
    r/<uid>/boundary                                 uploads with smaller ULIDs may be collected
    r/<uid>/multipart/<ulid>  parts/<ulid>/<number>  Upload, and its Parts: uploads in parts that are not at their end
    keys/<access key>  audit/<ulid>                  of the server
    identity                                         Identity: the users, groups and policies of the server
    user-keys/<access key>                           of the server: an access key of a user, or a token of one

Objects, relative to a repository's storage namespace: ``data/<ulid>``, ``ranges/<hash>-<ulid>``,
``metaranges/<hash>-<ulid>``, ``uploads/<ulid>-<hash of the ulid>``, ``derived/[1-]<digest>-<ulid>.<extension>``, and
the marker `MARKER_PATH`.

DO NOT CHANGE any of them: they are stored.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from lakebed.lsm.file_id import FILE_ID_CHARACTERS, is_file_id

CLOCK_PATH: Final = "_clock"
"""Written by each collection, and before old records are deleted, to learn the store's time."""
DATA_FOLDER: Final = "data"
RANGE_FOLDER: Final = "ranges"
METARANGE_FOLDER: Final = "metaranges"
UPLOAD_FOLDER: Final = "uploads"
"""Folder of bytes that are put with URLs signed by a vendor. While a URL is valid its bytes may be replaced, so linking
copies them."""
NUMBER_OF_METADATA: Final = "1-"
"""What the names of metadata in the next folder begin with."""
DERIVED_FOLDER: Final = "derived"
"""Folder of files that are made from tables in branches for Iceberg's clients. Nothing names them: all can be made
again."""
LAKEFS_FOLDER: Final = "_lakefs"
"""Folder in which lakeFS keeps its ranges and metaranges, in its storage namespaces and in dumps for it."""
MARKER_PATH: Final = "_repository.json"
"""States the owner of a namespace. It is created first, so that no second repository takes the namespace."""

REPOSITORY_PREFIX: Final = b"repos/"
DELETED_PREFIX: Final = b"deleted/"
CATALOG_KEY: Final = b"home"
"""The identity of this catalog. The record changes with each repository that is created."""
IDENTITY_KEY: Final = b"identity"
"""Users, groups and policies of the server."""
RECORD_FOLDERS: Final = frozenset(
    (
        b"boundary", b"branches", b"cleanup", b"commits", b"expired", b"history", b"imports", b"multipart", b"parts",
        b"pulls", b"reflog", b"runs", b"settings", b"staging", b"superseded", b"tags", b"tasks",
    )
)  # fmt: skip
"""The folders below ``r/<uid>/``. If there is another, of a newer lakebed, a collection deletes nothing."""
SETTINGS: Final = frozenset((b"protected_branches", b"retention", b"webhooks"))
"""The settings of a repository. If there is another, a collection deletes nothing."""


_CHECK_BYTES: Final = 8
_MADE: Final = re.compile(
    rf"(?:{DATA_FOLDER}/|(?:{RANGE_FOLDER}|{METARANGE_FOLDER})/[0-9a-f]+-)(?P<file>\w{{{FILE_ID_CHARACTERS}}})"
    rf"|{UPLOAD_FOLDER}/(?P<upload>\w{{{FILE_ID_CHARACTERS}}})-[0-9a-f]+"
    rf"|{DERIVED_FOLDER}/(?:{NUMBER_OF_METADATA})?[0-9a-f]+-(?P<derived>\w{{{FILE_ID_CHARACTERS}}})\.[a-z0-9.]+",
    re.ASCII,
)


def made_ulid(path: str) -> str | None:
    """The ULID in the name of an object of a repository; None: a repository gives no object such a name. Pure.

    An object with another name belongs to a program that had the folder before, or put it there.
    """
    match = _MADE.fullmatch(path)
    if match is None:
        return None
    ulid = match["file"] or match["derived"] or match["upload"]
    if not is_file_id(ulid) or (match["upload"] and path != upload_path(ulid)):
        return None
    return ulid


def upload_path(ulid: str) -> str:
    """The path of bytes that are put with a URL signed by a vendor. Pure.

    It has a hash because users' programs name files by bare ids, too.
    """
    check = hashlib.blake2b(ulid.encode(), digest_size=_CHECK_BYTES, person=b"lakebed upload").hexdigest()
    return f"{UPLOAD_FOLDER}/{ulid}-{check}"


def name_ulid(path: str) -> str:
    """The end of an object's name, before the extension: for a repository's objects, the ULID with their time. Pure."""
    return path.rpartition("/")[2].partition(".")[0][-FILE_ID_CHARACTERS:]


def repository_key(name: str) -> bytes:
    """The record of a repository."""
    return REPOSITORY_PREFIX + name.encode()


def deletion_key(uid: str) -> bytes:
    """The record of a deleted repository, until its objects and records are gone."""
    return DELETED_PREFIX + uid.encode()


def access_key_key(access_key: str) -> bytes:
    """An access key of the server."""
    return b"keys/" + access_key.encode()


def user_key_key(access_key: str) -> bytes:
    """An access key of a user. It is not below ``keys/``: an older server would find it there, and knows no users."""
    return b"user-keys/" + access_key.encode()


def audit_key(ulid: str) -> bytes:
    """A line of the server's audit log."""
    return b"audit/" + ulid.encode()


def range_path(file_id: str) -> str:
    """The object of a range, by its file's id ``<hash>-<ulid>``."""
    return f"{RANGE_FOLDER}/{file_id}"


def metarange_path(file_id: str) -> str:
    """The object of a metarange."""
    return f"{METARANGE_FOLDER}/{file_id}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one repository. Methods without an argument are prefixes, which end with a slash."""

    uid: str

    @property
    def root(self) -> bytes:
        """The prefix of all records of this repository."""
        return b"r/" + self.uid.encode() + b"/"

    @property
    def deleted(self) -> bytes:
        """The note that the repository was deleted. While it exists, no branch or tag is created."""
        return deletion_key(self.uid)

    def branch(self, name: str = "") -> bytes:
        """A branch; without a name the prefix of all."""
        return self.root + b"branches/" + name.encode()

    def tag(self, name: str = "") -> bytes:
        """A tag; without a name the prefix of all."""
        return self.root + b"tags/" + name.encode()

    def commit(self, commit_id: str = "") -> bytes:
        """A commit; without an id the prefix of all, with the beginning of an id the prefix of those that have it."""
        return self.root + b"commits/" + commit_id.encode()

    def token(self, token_id: str) -> bytes:
        """The prefix of everything staged under a token."""
        return self.staging() + token_id.encode() + b"/"

    def staging(self) -> bytes:
        """The prefix of all tokens."""
        return self.root + b"staging/"

    def cleanup(self, token_id: str = "") -> bytes:
        """A token that was dropped; without an id the prefix of all."""
        return self.root + b"cleanup/" + token_id.encode()

    def import_record(self, import_id: str = "") -> bytes:
        """The state of an import."""
        return self.root + b"imports/" + import_id.encode()

    def task(self, id: str = "") -> bytes:
        """A task of lakeFS's interface; without an id the prefix of all."""
        return self.root + b"tasks/" + id.encode()

    def setting(self, name: str = "") -> bytes:
        """A setting, such as the protected branches or the rules of retention."""
        return self.root + b"settings/" + name.encode()

    def reflog(self, branch: str = "", ulid: str = "") -> bytes:
        """A line of the reference log. No branch name ends with a slash, so ``<branch>/`` is one branch's prefix."""
        return self.root + b"reflog/" + (f"{branch}/{ulid}".encode() if branch else b"")

    def expired(self, commit_id: str = "") -> bytes:
        """A commit whose objects are being deleted, or are deleted. Nothing new may refer to it."""
        return self.root + b"expired/" + commit_id.encode()

    def supersession(self, ulid: str = "") -> bytes:
        """A state that was replaced; without a ULID the prefix of all."""
        return self.root + b"superseded/" + ulid.encode()

    def upload(self, ulid: str = "") -> bytes:
        """An upload in parts; without a ULID the prefix of all."""
        return self.root + b"multipart/" + ulid.encode()

    def parts(self, ulid: str) -> bytes:
        """The prefix of the parts of an upload."""
        return self.root + b"parts/" + ulid.encode() + b"/"

    def part(self, ulid: str, number: int) -> bytes:
        """A part of an upload; five digits, so that parts are in order."""
        return self.parts(ulid) + b"%05d" % number

    def pull(self, id: str = "") -> bytes:
        """A pull request; without an id the prefix of all."""
        return self.root + b"pulls/" + id.encode()

    def run(self, id: str = "") -> bytes:
        """A run of actions; without an id the prefix of all. Ids of newer runs sort first."""
        return self.root + b"runs/" + id.encode()

    def history(self, number: int | None = None) -> bytes:
        """A segment of the commit graph; without a number the prefix of all."""
        return self.root + b"history/" + (b"" if number is None else b"%08d" % number)

    @property
    def boundary(self) -> bytes:
        """The ULID (text) below which uploads may be collected; absent: there was no collection yet."""
        return self.root + b"boundary"
