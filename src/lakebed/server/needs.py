"""The permissions that a user needs for an operation: one table for REST, one for S3. Pure data.

Owns: the tables. Invariants: for an operation that is in no table, such as a verb, the user needs a whole role, so a
new operation is never open by mistake; permissions that depend on the body are checked where the body is decoded
(`lakebed.server.site.RepositoryCall.read`), before a handler sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lakebed.errors import InvalidRequest
from lakebed.http.declaration import Endpoint
from lakebed.repo.model.names import parse_reference
from lakebed.server.permissions import (
    EVERYTHING_OF_USERS,
    EVERYTHING_STORED,
    GROUPS,
    NAMESPACES,
    POLICIES,
    REPOSITORIES,
    USERS,
    Permission,
)

BodyNeeds = Callable[[Any, str], Iterable[Permission]]
"""The permissions that a decoded body needs, given the repository's name (or an empty text)."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an operation needs.

    Attributes:
        permissions: actions and resources; ``{name}`` is a parameter of the path, ``{query[name]}`` one of the query,
            ``{ref_name}`` the name in the reference of the path, without its steps: a rule of a branch also applies to
            ``branch~0``.
        whole_role: whether the role of the endpoint is needed too, as for operations that are in no table.
        body: further permissions, which depend on the body.
    """

    permissions: tuple[Permission, ...] = ()
    whole_role: bool = False
    body: BodyNeeds | None = None

    def of_request(self, path: Mapping[str, str], query: Mapping[str, str]) -> Iterable[Permission]:
        """Yield the permissions for the parameters of a request. Raises `InvalidRequest` (``missing_parameter``)."""
        ref_name = _name_of(path.get("ref", ""))
        for permission in self.permissions:
            resource = permission.resource.format(**path, ref_name=ref_name, query=_Query(query))
            yield Permission(permission.action, resource, permission.is_prefix)


def _name_of(reference: str) -> str:
    try:
        return parse_reference(reference).name
    except InvalidRequest:
        return reference  # the operation reports what is wrong with it


class _Query(dict[str, str]):
    def __missing__(self, name: str) -> str:
        raise InvalidRequest(f"The query has no parameter {name!r}: add it.", kind="missing_parameter")


WHOLE_ROLE: Final = Needs(whole_role=True)
_FREE: Final = Needs()
"""Open to every user: the operation shows nothing of a repository, or only what the user may see."""

_REPOSITORY: Final = REPOSITORIES + "{repository}"
_OBJECT: Final = _REPOSITORY + "/object/{query[path]}"
_BRANCH: Final = _REPOSITORY + "/branch/{branch}"
_TAG: Final = _REPOSITORY + "/tag/{tag}"
_USER: Final = USERS + "{user}"
_GROUP: Final = GROUPS + "{group}"
_POLICY: Final = POLICIES + "{policy}"


def _need(action: str, resource: str = _REPOSITORY) -> Needs:
    return Needs((Permission(action, resource),))


def _everywhere(action: str, prefix: str = EVERYTHING_OF_USERS) -> Needs:
    return Needs((Permission(action, prefix, is_prefix=True),))


def object_resource(repository: str, path: str) -> str:
    """Return the name of an object, on whatever branch it is."""
    return f"{REPOSITORIES}{repository}/object/{path}"


def _of_branch(body: Any, repository: str) -> list[Permission]:
    return [Permission("fs:CreateBranch", f"{REPOSITORIES}{repository}/branch/{body.name}")]


def _of_tag(body: Any, repository: str) -> list[Permission]:
    return [Permission("fs:CreateTag", f"{REPOSITORIES}{repository}/tag/{body.id}")]


def _of_repository(body: Any, _: str) -> list[Permission]:
    return [
        Permission("fs:CreateRepository", REPOSITORIES + body.name),
        Permission("fs:AttachStorageNamespace", NAMESPACES + body.storage_namespace),
    ]


def _of_deletion(body: Any, repository: str) -> list[Permission]:
    return [Permission("fs:DeleteObject", object_resource(repository, path)) for path in body.paths]


def _of_copy(body: Any, repository: str) -> list[Permission]:
    return [Permission("fs:ReadObject", object_resource(repository, body.src_path))]


def _of_part_copy(body: Any, _: str) -> list[Permission]:
    source = body.copy_source
    return [Permission("fs:ReadObject", object_resource(source.repository, source.path))]


def _of_stage(body: Any, _: str) -> list[Permission]:
    return [Permission("fs:ImportFromStorage", NAMESPACES + body.physical_address)]


def _of_import(body: Any, repository: str) -> Iterable[Permission]:
    for location in body.paths:
        is_prefix = location.type != "object"
        target = object_resource(repository, location.destination)
        yield Permission("fs:ImportFromStorage", NAMESPACES + location.path, is_prefix)
        yield Permission("fs:WriteObject", target, is_prefix)


_IMPORTS: Final = Needs((Permission("fs:ImportFromStorage", NAMESPACES, is_prefix=True),), whole_role=True)
"""The needs of verbs that name places outside of the repository."""

REST: Final[dict[str, Needs]] = {
    # ---- objects
    **dict.fromkeys(
        ("statObject", "getObject", "headObject", "getUnderlyingProperties"), _need("fs:ReadObject", _OBJECT)
    ),
    **dict.fromkeys(
        ("uploadObject", "uploadObjectPreflight", "updateObjectUserMetadata", "getPhysicalAddress",
         "linkPhysicalAddress", "createPresignMultipartUpload", "abortPresignMultipartUpload",
         "completePresignMultipartUpload", "uploadPart"),
        _need("fs:WriteObject", _OBJECT),
    ),
    "uploadPartCopy": Needs((Permission("fs:WriteObject", _OBJECT),), body=_of_part_copy),
    "createSymlinkFile": _need("fs:WriteObject", _REPOSITORY + "/object/{ref}"),
    "stageObject": Needs((Permission("fs:WriteObject", _OBJECT),), body=_of_stage),
    "deleteObject": _need("fs:DeleteObject", _OBJECT),
    "deleteObjects": Needs(body=_of_deletion),
    "copyObject": Needs(
        (Permission("fs:WriteObject", _REPOSITORY + "/object/{query[dest_path]}"),), body=_of_copy
    ),
    **dict.fromkeys(("listObjects", "diffBranch", "diffRefs"), _need("fs:ListObjects")),
    # ---- branches, tags, commits
    "getBranch": _need("fs:ReadBranch", _BRANCH),
    "listBranches": _need("fs:ListBranches"),
    "createBranch": Needs(body=_of_branch),
    "deleteBranch": _need("fs:DeleteBranch", _BRANCH),
    **dict.fromkeys(("resetBranch", "hardResetBranch", "revertBranch"), _need("fs:RevertBranch", _BRANCH)),
    **dict.fromkeys(("commit", "mergeIntoBranch"), _need("fs:CreateCommit", _BRANCH)),
    "cherryPick": Needs((Permission("fs:CreateCommit", _BRANCH), Permission("fs:ReadCommit", _REPOSITORY))),
    "findMergeBase": _need("fs:ListCommits"),
    "logCommits": Needs(
        tuple(Permission("fs:ReadBranch", f"{_REPOSITORY}/branch/{part}") for part in ("{ref}", "{ref_name}"))
    ),
    "getCommit": _need("fs:ReadCommit"),
    "listTags": _need("fs:ListTags"),
    "createTag": Needs(body=_of_tag),
    "getTag": _need("fs:ReadTag", _TAG),
    "deleteTag": _need("fs:DeleteTag", _TAG),
    # ---- imports, pull requests, actions
    "importStart": Needs((Permission("fs:CreateCommit", _BRANCH),), body=_of_import),
    "importStatus": _need("fs:ReadBranch", _BRANCH),
    "importCancel": _need("fs:ImportCancel", _BRANCH),
    "listPullRequests": _need("pr:ListPullRequests"),
    "getPullRequest": _need("pr:ReadPullRequest"),
    **dict.fromkeys(("createPullRequest", "updatePullRequest", "mergePullRequest"), _need("pr:WritePullRequest")),
    **dict.fromkeys(("listRepositoryRuns", "getRun", "listRunHooks", "getRunHookOutput"), _need("ci:ReadAction")),
    # ---- repositories and their settings
    "listRepositories": _FREE,
    "createRepository": Needs(body=_of_repository),
    **dict.fromkeys(("getRepository", "getRepositoryMetadata"), _need("fs:ReadRepository")),
    **dict.fromkeys(("setRepositoryMetadata", "deleteRepositoryMetadata"), _need("fs:UpdateRepository")),
    "deleteRepository": _need("fs:DeleteRepository"),
    **dict.fromkeys(
        ("getBranchProtectionRules", "internalGetBranchProtectionRules"), _need("branches:GetBranchProtectionRules")
    ),
    **dict.fromkeys(
        ("setBranchProtectionRules", "internalCreateBranchProtectionRule", "internalDeleteBranchProtectionRule",
         "createBranchProtectionRulePreflight"),
        _need("branches:SetBranchProtectionRules"),
    ),
    **dict.fromkeys(
        ("getGCRules", "internalGetGarbageCollectionRules"), _need("retention:GetGarbageCollectionRules")
    ),
    **dict.fromkeys(
        ("setGCRules", "deleteGCRules", "internalSetGarbageCollectionRules", "internalDeleteGarbageCollectionRules",
         "setGarbageCollectionRulesPreflight"),
        _need("retention:SetGarbageCollectionRules"),
    ),
    **dict.fromkeys(
        ("prepareGarbageCollectionCommits", "prepareGarbageCollectionCommitsAsync",
         "prepareGarbageCollectionCommitsStatus"),
        _need("retention:PrepareGarbageCollectionCommits"),
    ),
    "prepareGarbageCollectionUncommitted": _need("retention:PrepareGarbageCollectionUncommitted"),
    **dict.fromkeys(
        ("getMetaRange", "getRange"),
        Needs((Permission("fs:ListObjects", _REPOSITORY), Permission("fs:ReadRepository", _REPOSITORY))),
    ),
    **dict.fromkeys(
        ("dumpRefs", "dumpSubmit", "dumpStatus"),
        Needs(tuple(Permission(f"fs:List{kind}", _REPOSITORY) for kind in ("Tags", "Branches", "Commits"))),
    ),
    **dict.fromkeys(
        ("restoreRefs", "restoreSubmit", "restoreStatus"),
        Needs(tuple(Permission(f"fs:Create{kind}", _REPOSITORY) for kind in ("Tag", "Branch", "Commit"))),
    ),
    # ---- the server
    **dict.fromkeys(
        ("getCurrentUser", "getConfig", "getLakeFSVersion", "getGarbageCollectionConfig", "postStatsEvents"), _FREE
    ),
    **dict.fromkeys(("getStorageConfig", "getUsageReportSummary"), _everywhere("fs:ReadConfig", EVERYTHING_STORED)),
    # ---- users, groups, policies, credentials
    "listUsers": _everywhere("auth:ListUsers"),
    "createUser": Needs(body=lambda body, _: [Permission("auth:CreateUser", USERS + body.id)]),
    **dict.fromkeys(("getUser", "listUserGroups", "listUserPolicies"), _need("auth:ReadUser", _USER)),
    "deleteUser": _need("auth:DeleteUser", _USER),
    "listGroups": _everywhere("auth:ListGroups"),
    "createGroup": Needs(body=lambda body, _: [Permission("auth:CreateGroup", GROUPS + body.id)]),
    **dict.fromkeys(
        ("getGroup", "getGroupACL", "listGroupMembers", "listGroupPolicies"), _need("auth:ReadGroup", _GROUP)
    ),
    "deleteGroup": _need("auth:DeleteGroup", _GROUP),
    "addGroupMembership": _need("auth:AddGroupMember", _GROUP),
    "deleteGroupMembership": _need("auth:RemoveGroupMember", _GROUP),
    "listPolicies": _everywhere("auth:ListPolicies"),
    "createPolicy": Needs(body=lambda body, _: [Permission("auth:CreatePolicy", POLICIES + body.id)]),
    "getPolicy": _need("auth:ReadPolicy", _POLICY),
    "updatePolicy": _need("auth:UpdatePolicy", _POLICY),
    "deletePolicy": _need("auth:DeletePolicy", _POLICY),
    "attachPolicyToUser": _need("auth:AttachPolicy", _USER),
    "detachPolicyFromUser": _need("auth:DetachPolicy", _USER),
    "attachPolicyToGroup": _need("auth:AttachPolicy", _GROUP),
    "setGroupACL": Needs((Permission("auth:AttachPolicy", _GROUP), Permission("auth:DetachPolicy", _GROUP))),
    "detachPolicyFromGroup": _need("auth:DetachPolicy", _GROUP),
    "listUserCredentials": _need("auth:ListCredentials", _USER),
    "createCredentials": _need("auth:CreateCredentials", _USER),
    "getCredentials": _need("auth:ReadCredentials", _USER),
    "deleteCredentials": _need("auth:DeleteCredentials", _USER),
    # ---- verbs that name places outside
    **dict.fromkeys(("verbImportObjects", "verbLink", "verbRestoreRefs", "verbStageMany"), _IMPORTS),
}  # fmt: skip
"""Needs by the operation's name. An operation that is missing here needs a whole role."""

_S3_OBJECT: Final = _REPOSITORY + "/object/{path}"
_S3_READ: Final = _need("fs:ReadRepository")

S3: Final[dict[str, Needs]] = {
    "ListBuckets": _FREE,
    **dict.fromkeys(("HeadBucket", "GetBucketLocation", "GetBucketVersioning"), _S3_READ),
    **dict.fromkeys(
        ("ListObjects", "ListObjectsV2", "ListObjectVersions", "ListMultipartUploads"),
        Needs((Permission("fs:ListObjects", _REPOSITORY), Permission("fs:ListBranches", _REPOSITORY))),
    ),
    "CreateBucket": _need("fs:CreateBranch", _BRANCH),
    "DeleteBucket": _need("fs:DeleteBranch", _BRANCH),
    **dict.fromkeys(("GetObject", "HeadObject", "GetObjectTagging"), _need("fs:ReadObject", _S3_OBJECT)),
    **dict.fromkeys(
        ("PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart", "UploadPartCopy", "ListParts",
         "CompleteMultipartUpload", "AbortMultipartUpload"),
        _need("fs:WriteObject", _S3_OBJECT),
    ),
    "DeleteObject": _need("fs:DeleteObject", _S3_OBJECT),
    "DeleteObjects": _FREE,
}  # fmt: skip
"""Needs by the operation's name; ``{path}`` is the object's path. ``DeleteObjects`` is checked for each key."""


def needs_of(endpoint: Endpoint) -> Needs:
    """Return the permissions that an operation of the REST interface needs."""
    return REST.get(endpoint.name, WHOLE_ROLE)
