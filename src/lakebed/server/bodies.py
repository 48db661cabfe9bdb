"""The bodies of requests and replies of the REST interface.

Owns: the structs that JSON is decoded to and encoded from, and so the schemas of the OpenAPI description. Their names
and fields are those of lakeFS's clients: DO NOT CHANGE them. Numbers are bounded: accepted values can be stored.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lakebed.http.declaration import Role

Seconds = Annotated[int, Meta(ge=0, le=253_402_300_799, description="Unix time in seconds, UTC.")]
Size = Annotated[int, Meta(ge=0, le=(1 << 53) - 1, description="Bytes.")]
Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Metadata = dict[str, str]
PATHS_MAX: Final = 1_000
"""Most paths of one ``objects/delete``."""


class RepositoryCreation(msgspec.Struct, frozen=True):
    """``POST /repositories``."""

    name: str
    storage_namespace: str
    default_branch: str | None = None
    sample_data: bool | None = None
    read_only: bool | None = None
    storage_id: str | None = None


class RepositoryRow(msgspec.Struct, frozen=True):
    """A repository."""

    id: str
    creation_date: int
    default_branch: str
    storage_namespace: str
    storage_id: str
    read_only: bool


class RepositoryMetadataSet(msgspec.Struct, frozen=True):
    """``POST /repositories/{repository}/metadata``."""

    metadata: Metadata


class RepositoryMetadataKeys(msgspec.Struct, frozen=True):
    """``DELETE /repositories/{repository}/metadata``."""

    keys: Annotated[list[str], Meta(max_length=PATHS_MAX)]


class RefsDumpBody(msgspec.Struct, frozen=True):
    """The ids of a dump's metaranges."""

    commits_meta_range_id: str
    tags_meta_range_id: str
    branches_meta_range_id: str


class RefsRestoreBody(RefsDumpBody, frozen=True):
    """``POST /repositories/{repository}/restore``."""

    force: bool | None = None


class TaskInfo(msgspec.Struct, frozen=True):
    """A task that was started."""

    id: str


class RestoreStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a restore is."""

    id: str
    done: bool
    update_time: str
    error: str | UnsetType = UNSET


class DumpStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a dump is."""

    id: str
    done: bool
    update_time: str
    error: str | UnsetType = UNSET
    refs: RefsDumpBody | UnsetType = UNSET


class BranchCreation(msgspec.Struct, frozen=True):
    """``POST /branches``."""

    name: str
    source: str
    hidden: bool | None = None
    force: bool | None = None


class TagCreation(msgspec.Struct, frozen=True):
    """``POST /tags``."""

    id: str
    ref: str
    force: bool | None = None


class Ref(msgspec.Struct, frozen=True):
    """A branch or tag, and the commit it names."""

    id: str
    commit_id: str


class ResetCreation(msgspec.Struct, frozen=True):
    """``PUT /branches/{branch}``."""

    type: Literal["object", "common_prefix", "reset"]
    path: str | None = None
    force: bool | None = None


class CommitCreation(msgspec.Struct, frozen=True):
    """``POST /branches/{branch}/commits``."""

    message: str
    metadata: Metadata | None = None
    date: Seconds | None = None
    allow_empty: bool | None = None
    force: bool | None = None
    paths: list[str] | None = None
    """Only these paths, and everything below those that end with a slash; absent: all. An extension of lakeFS."""


class CommitOverrides(msgspec.Struct, frozen=True):
    """Message and metadata that replace the defaults of a revert or cherry-pick."""

    message: str | None = None
    metadata: Metadata | None = None


class CommitRow(msgspec.Struct, frozen=True):
    """A commit."""

    id: str
    parents: list[str]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: Metadata
    generation: int
    version: int = 1


class MergeCreation(msgspec.Struct, frozen=True):
    """``POST /refs/{source}/merge/{branch}``."""

    message: str | None = None
    metadata: Metadata | None = None
    strategy: Literal["", "source-wins", "dest-wins"] | None = None
    squash_merge: bool | None = None
    allow_empty: bool | None = None
    force: bool | None = None
    prefix: str | None = None
    """Merge only paths with this prefix. An extension of lakeFS."""


class MergeResult(msgspec.Struct, frozen=True):
    """The commit that a merge made."""

    reference: str


class MergeBaseResult(msgspec.Struct, frozen=True):
    """``GET /refs/{source}/merge/{branch}``."""

    source_commit_id: str
    destination_commit_id: str
    base_commit_id: str


class RevertCreation(msgspec.Struct, frozen=True):
    """``POST /branches/{branch}/revert``."""

    ref: str
    parent_number: Count
    commit_overrides: CommitOverrides | None = None
    allow_empty: bool | None = None
    force: bool | None = None


class CherryPickCreation(msgspec.Struct, frozen=True):
    """``POST /branches/{branch}/cherry-pick``."""

    ref: str
    parent_number: Count | None = None
    commit_overrides: CommitOverrides | None = None
    force: bool | None = None


class DiffObjectStat(msgspec.Struct, frozen=True):
    """What the right side of a difference has at a path."""

    checksum: str
    mtime: int
    content_type: str
    metadata: Metadata


class DiffRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path that differs."""

    type: Literal["added", "removed", "changed", "conflict", "prefix_changed"]
    path: str
    path_type: Literal["object", "common_prefix"]
    size_bytes: int | UnsetType = UNSET
    right: DiffObjectStat | UnsetType = UNSET


class ObjectStats(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An object or, in listings with a delimiter, a common prefix.

    Nothing leads back to it, so the garbage collector need not look: a page has a thousand.
    """

    path: str
    path_type: Literal["object", "common_prefix"]
    physical_address: str
    checksum: str
    mtime: int
    size_bytes: int | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    physical_address_expiry: int | UnsetType = UNSET


class PathList(msgspec.Struct, frozen=True):
    """``POST /branches/{branch}/objects/delete``."""

    paths: Annotated[list[str], Meta(max_length=PATHS_MAX)]


class ObjectError(msgspec.Struct, frozen=True):
    """A path that could not be deleted."""

    status_code: int
    message: str
    path: str


class ObjectErrorList(msgspec.Struct, frozen=True):
    """The paths that could not be deleted."""

    errors: list[ObjectError]


class ObjectCopyCreation(msgspec.Struct, frozen=True):
    """``POST /branches/{branch}/objects/copy``."""

    src_path: str
    src_ref: str | None = None
    force: bool | None = None
    shallow: bool | None = None


class ObjectStageCreation(msgspec.Struct, frozen=True):
    """``PUT /branches/{branch}/objects``: stage an object whose bytes are already on a store."""

    physical_address: str
    checksum: str
    size_bytes: Size
    mtime: Seconds | None = None
    metadata: Metadata | None = None
    content_type: str | None = None
    force: bool | None = None


class StagingLocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a client may put an object's bytes itself."""

    physical_address: str | None = None
    presigned_url: str | None = None
    presigned_url_expiry: int | None = None


class StagingMetadata(msgspec.Struct, frozen=True):
    """``PUT /branches/{branch}/staging/backing``: link uploaded bytes."""

    staging: StagingLocation
    checksum: str
    size_bytes: Size
    user_metadata: Metadata | None = None
    content_type: str | None = None
    mtime: Seconds | None = None
    force: bool | None = None


class PresignMultipartUpload(msgspec.Struct, frozen=True, omit_defaults=True):
    """An upload in parts to signed URLs."""

    upload_id: str
    physical_address: str
    presigned_urls: list[str] | None = None


class PhysicalAddress(msgspec.Struct, frozen=True):
    """Of which upload: the address that its creation has replied."""

    physical_address: str


class UploadTo(msgspec.Struct, frozen=True):
    """Where to put a part."""

    presigned_url: str


class CopyPartSource(msgspec.Struct, frozen=True):
    """What a part is copied from."""

    repository: str
    ref: str
    path: str
    range: str | None = None


class UploadPartCopyFrom(msgspec.Struct, frozen=True):
    """``PUT .../pmpu/{upload_id}/parts/{part_number}/copy``."""

    physical_address: str
    copy_source: CopyPartSource


class UploadedPart(msgspec.Struct, frozen=True):
    """A part that was uploaded."""

    part_number: Annotated[int, Meta(ge=1, le=10_000)]
    etag: str


class CompletePresignMultipartUpload(msgspec.Struct, frozen=True):
    """``PUT .../pmpu/{upload_id}``."""

    physical_address: str
    parts: Annotated[list[UploadedPart], Meta(max_length=10_000)]
    user_metadata: Metadata | None = None
    content_type: str | None = None


class ImportLocation(msgspec.Struct, frozen=True):
    """Objects to import, without copying their bytes."""

    type: Literal["object", "common_prefix"]
    path: str
    destination: str


class ImportCreation(msgspec.Struct, frozen=True):
    """``POST /branches/{branch}/import``."""

    paths: Annotated[list[ImportLocation], Meta(min_length=1, max_length=PATHS_MAX)]
    commit: CommitCreation
    force: bool | None = None


class ImportStarted(msgspec.Struct, frozen=True):
    """The import's id."""

    id: str


class Message(msgspec.Struct, frozen=True):
    """A message."""

    message: str


class ImportStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of an import."""

    completed: Annotated[bool, Meta(description="Whether it has committed.")]
    update_time: str
    ingested_objects: int | UnsetType = UNSET
    metarange_id: str | UnsetType = UNSET
    commit: CommitRow | UnsetType = UNSET
    error: Message | UnsetType = UNSET


class BranchProtectionRule(msgspec.Struct, frozen=True):
    """Branches whose names match are changed by merges only."""

    pattern: Annotated[str, Meta(min_length=1, max_length=256)]


class GarbageCollectionRule(msgspec.Struct, frozen=True):
    """How long objects of a branch's old commits are kept."""

    branch_id: str
    retention_days: Annotated[int, Meta(ge=0, le=36_500)]


class GarbageCollectionRules(msgspec.Struct, frozen=True):
    """How long objects of old commits are kept."""

    default_retention_days: Annotated[int, Meta(ge=0, le=36_500)]
    branches: list[GarbageCollectionRule]


class BranchProtectionPattern(msgspec.Struct, frozen=True):
    """``POST`` and ``DELETE /branch_protection``."""

    pattern: Annotated[str, Meta(min_length=1, max_length=256)]


class GarbageCollectionConfig(msgspec.Struct, frozen=True):
    """``GET /config/garbage-collection``."""

    grace_period: Annotated[int, Meta(description="Seconds: younger objects are not collected.")]


class UserMetadataUpdate(msgspec.Struct, frozen=True):
    """``PUT /branches/{branch}/objects/stat/user_metadata``."""

    set: Metadata


class UnderlyingProperties(msgspec.Struct, frozen=True, omit_defaults=True):
    """``GET /refs/{ref}/objects/underlyingProperties``."""

    storage_class: str | UnsetType = UNSET


class StorageLocation(msgspec.Struct, frozen=True):
    """The URL of a file of the repository."""

    location: str


class PullRequestCreation(msgspec.Struct, frozen=True):
    """``POST /pulls``."""

    title: str
    source_branch: str
    destination_branch: str
    description: str | None = None


class PullRequestCreationResponse(msgspec.Struct, frozen=True):
    """The pull request's id."""

    id: str


class PullRequestUpdate(msgspec.Struct, frozen=True):
    """``PATCH /pulls/{pull_request}``."""

    title: str | None = None
    description: str | None = None
    status: Literal["open", "closed", "merged"] | None = None


class PullRequestRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pull request."""

    id: str
    status: Literal["open", "closed", "merged"]
    title: str
    description: str
    creation_date: str
    author: str
    source_branch: str
    destination_branch: str
    merged_commit_id: str | UnsetType = UNSET
    closed_date: str | UnsetType = UNSET


class LoginConfig(msgspec.Struct, frozen=True, rename={"rbac": "RBAC"}):
    """How callers log in: with access keys; there are no web pages."""

    rbac: Literal["internal"] = "internal"
    """Users, groups and policies are kept by the server itself."""
    login_url: str = ""
    login_cookie_names: tuple[str, ...] = ()
    logout_url: str = ""


class SetupState(msgspec.Struct, frozen=True):
    """``GET /setup_lakefs``."""

    state: Literal["initialized"]
    comm_prefs_missing: bool = False
    login_config: LoginConfig = LoginConfig()


class Setup(msgspec.Struct, frozen=True):
    """``POST /setup_lakefs``: there is nothing left to set up."""

    username: str


class StatisticsEvent(msgspec.Struct, frozen=True, rename={"kind": "class"}):
    """How often a client has used something."""

    kind: str
    name: str
    count: int


class StatisticsEvents(msgspec.Struct, frozen=True):
    """``POST /statistics``."""

    events: list[StatisticsEvent]


class AuthCapabilities(msgspec.Struct, frozen=True):
    """``GET /auth/capabilities``: what is sent by e-mail, which is nothing."""

    invite_user: bool = False
    forgot_password: bool = False


class VersionConfig(msgspec.Struct, frozen=True):
    """The version that clients compare with what they need."""

    version: str


_RENAMED: Final = {"blockstore_namespace_validity_regex": "blockstore_namespace_ValidityRegex"}


class StorageConfig(msgspec.Struct, frozen=True, rename=_RENAMED):
    """What clients may do with the storage themselves."""

    blockstore_type: str
    blockstore_namespace_example: str
    blockstore_namespace_validity_regex: str
    default_namespace_prefix: str
    pre_sign_support: bool
    pre_sign_support_ui: bool
    import_support: bool
    import_validity_regex: str


class Config(msgspec.Struct, frozen=True):
    """``GET /config``."""

    version_config: VersionConfig
    storage_config: StorageConfig
    storage_config_list: list[StorageConfig]


class User(msgspec.Struct, frozen=True):
    """The user of an access key. It has no e-mail address; clients show the field anyway."""

    id: str
    creation_date: int
    friendly_name: str
    email: str = ""


class CurrentUser(msgspec.Struct, frozen=True):
    """``GET /user``."""

    user: User


class LoginInformation(msgspec.Struct, frozen=True):
    """``POST /auth/login``."""

    access_key_id: str
    secret_access_key: str


class AuthenticationToken(msgspec.Struct, frozen=True):
    """A token for ``Authorization: Bearer``."""

    token: str
    token_expiration: int


class AccessKeyCreation(msgspec.Struct, frozen=True):
    """``POST /auth/keys``."""

    role: Role
    repositories: Annotated[list[str], Meta(max_length=PATHS_MAX)] | None = None
    """The only repositories it may use; absent: all, or none if there are `tables`."""
    tables: Annotated[list[str], Meta(max_length=PATHS_MAX)] | None = None
    """The only tables it may use, as ``database.table``, ``database.*`` or ``*``; absent: all, or none if there are
    `repositories`."""
    description: Annotated[str, Meta(max_length=256)] | None = None


class AccessKeyRow(msgspec.Struct, frozen=True):
    """An access key, without its secret, which is not stored."""

    access_key_id: str
    role: Role
    repositories: list[str] | None
    description: str
    creation_date: int
    tables: list[str] | None


class AccessKeyWithSecret(AccessKeyRow, frozen=True):
    """A new access key with its secret, which is shown only here."""

    secret_access_key: str


class AuditRow(msgspec.Struct, frozen=True):
    """A line of the audit log."""

    id: str
    at_ms: int
    access_key_id: str
    action: str
    repository: str
    subject: str
    status: int
    request_id: str
