"""Guarantees of access: nobody reads or changes what a key does not permit, and nothing leads outside."""

from __future__ import annotations

from lakebed.http import authentication, call, endpoint, signing, tls
from lakebed.http.slot_pool import SlotPool
from lakebed.objects.port import ObjectStore
from lakebed.objects.vendor import VendorDriver
from lakebed.repo import directories
from lakebed.repo.heads import actions, importing, write
from lakebed.repo.objects import data
from lakebed.repo.outside import foreign, outbound
from lakebed.repo.outside.import_policy import ImportPolicy
from lakebed.repo.records import records
from lakebed.repo.references import branches, tags
from lakebed.server import auth, errors, identity, keys, needs, permissions, places, reference_tables, site
from lakebed.server.routes import presigned_parts, staging
from lakebed.server.s3 import application, body, metadata, objects, signature, signature_v2
from lakebed.server.s3.call import S3Call
from mutations.defects import (
    answer,
    change_arguments,
    change_result,
    forget,
    never,
    pass_on,
    raise_nothing,
    replace,
    returns,
    see,
    set_value,
    several,
    skip,
)
from mutations.guarantee import Guarantee
from mutations.guarantees.repositories import decode_known

ISOLATION = "behaviour/server/test_isolation.py"

GUARANTEES = [
    # ---- keys, tokens, signatures
    Guarantee(
        "An access key that is limited to some tables reaches no other one through a catalog.",
        raise_nothing(auth.check_table),
        "behaviour/server/test_paimon.py::test_no_route_shows_another_ones_table",
    ),
    Guarantee(
        "An access key that is limited to some tables does not learn the names of others.",
        returns(auth.may_see_table, value=True),
        "behaviour/server/test_paimon.py::test_a_key_sees_its_tables_alone",
    ),
    Guarantee(
        "An access key that is limited to some tables changes no database.",
        raise_nothing(auth.check_database),
        "behaviour/server/test_paimon.py::test_a_key_sees_its_tables_alone",
    ),
    Guarantee(
        "Limits of repositories hold for the tables in their branches.",
        returns(keys.Principal.sees, value=True),
        "behaviour/server/test_paimon_branches.py::test_a_key_of_a_repository_sees_its_branches_alone",
    ),
    Guarantee(
        "A secret that the client of a bucket quotes reaches no error.",
        replace(VendorDriver._redact, lambda original, driver, error: error),
        "behaviour/objects/test_vendors.py::test_secrets_that_the_vendor_quotes_do_not_reach_an_error",
    ),
    Guarantee(
        "A commit to a table in a branch is not acknowledged when a reset took its files.",
        raise_nothing(reference_tables.check_kept),
        "behaviour/server/test_paimon_branches.py::test_a_commit_whose_files_a_reset_took_is_not_acknowledged",
    ),
    Guarantee(
        "Roles hold in the catalog of tables.",
        skip(auth.check_catalog, auth._check_rank),
        "behaviour/server/test_paimon.py::test_prefixes_keys_and_bodies",
    ),
    Guarantee(
        "What a client asks for in a header of S3 and does not get is refused: an append replaces nothing.",
        raise_nothing(application._check_headers_served),
        "behaviour/server/s3/test_refused.py::test_headers_that_ask_for_more_are_not_ignored",
    ),
    Guarantee(
        "The metadata of an object frames no reply and sets no cookie.",
        returns(metadata._is_system_header, True),
        "behaviour/server/s3/test_refused.py::test_metadata_decides_no_header_of_a_reply",
    ),
    Guarantee(
        "A service does nothing without its token.",
        raise_nothing(authentication.check_token),
        "behaviour/fleet/log/test_service.py::test_the_token",
    ),
    Guarantee(
        "A service refuses what a known caller may not do.",
        skip(endpoint.EndpointApp._authenticate, lambda it: it.authorize),
        "behaviour/http/test_service.py::test_two_routes_a_token_and_errors",
    ),
    Guarantee(
        "A fleet's token is not sent unencrypted to another machine.",
        raise_nothing(tls.check_clear),
        "behaviour/http/test_tls.py::test_a_token_does_not_travel_in_clear_text",
    ),
    Guarantee(
        "A server that asks callers for a certificate refuses those without one.",
        never(tls.Tls.context, lambda it: it.client_ca),
        "behaviour/http/test_tls.py::test_callers_show_a_certificate",
    ),
    Guarantee(
        "A token ends with the rotation of its access key, also of one at that moment.",
        never(keys.AccessKeys.verify, lambda it: it.compare_digest),
        "unit/server/test_keys.py::test_a_token_that_outlived_its_key_is_refused",
    ),
    Guarantee(
        "A login leaves no token of an access key that is revoked at that moment.",
        pass_on(keys.AccessKeys.login, keys.AccessKeys._store, expected={}),
        "unit/server/test_keys.py::test_a_token_made_beside_a_change_of_its_key_is_dead",
    ),
    Guarantee(
        "A signed upload address permits nothing once its key was revoked or rotated.",
        change_result(keys.AccessKeys.holder, lambda holder: (holder[0], "")),
        "behaviour/server/test_objects.py::test_a_signed_url_ends_with_the_key_that_got_it",
    ),
    Guarantee(
        "The S3 gateway does nothing for a request whose signature is wrong.",
        raise_nothing(signature.check_signature),
        "unit/server/test_s3_signature.py::test_the_example_of_awss_documents_is_verified",
    ),
    Guarantee(
        "The same holds for signatures of version 2.",
        raise_nothing(signature_v2.check_version_2),
        "behaviour/server/s3/test_version_2.py::test_who_changes_a_request_is_refused",
    ),
    Guarantee(
        "What a signature for S3 does not cover is refused.",
        raise_nothing(signature.check_headers),
        "unit/server/test_s3_signature.py::test_what_botocore_signs_is_verified_and_what_is_changed_is_not",
    ),
    Guarantee(
        "A signature for S3 ends with its time.",
        raise_nothing(signature.check_time),
        "unit/server/test_s3_signature.py::test_a_signature_of_another_time_is_refused",
    ),
    Guarantee(
        "A signed chunk that was changed stores nothing.",
        raise_nothing(body._unchunk),
        "unit/server/test_s3_signature.py::test_chunks_that_differ_are_refused",
    ),
    Guarantee(
        "Roles and limits of access keys hold in the S3 gateway.",
        skip(application.S3Application._answer, lambda it: it.check_role),
        "behaviour/server/s3/test_refused.py::test_keys_and_roles_hold_as_over_rest",
    ),
    Guarantee(
        "A copy between repositories needs to read its source.",
        skip(objects.source_context, lambda it: it.check_role),
        "behaviour/server/s3/test_objects.py::test_a_copy_between_repositories_is_one_of_the_bytes",
    ),
    # ---- actions
    Guarantee(
        "An action before a change that fails refuses it, and nothing has changed.",
        raise_nothing(actions.run_before),
        "behaviour/server/test_actions.py::test_a_hook_that_fails_refuses_the_change",
    ),
    Guarantee(
        "A branch that moved while a hook before its deletion decided goes only if the hook permits that too.",
        raise_nothing(branches._check_head),
        "behaviour/server/test_actions.py::test_what_was_asked_about_is_deleted",
    ),
    Guarantee(
        "A tag that got the name while a hook before the deletion of another decided goes only if it is permitted too.",
        change_arguments(tags.delete_tag, commit_id=None),
        "behaviour/server/test_actions.py::test_what_was_asked_about_is_deleted",
    ),
    Guarantee(
        "A file of actions that cannot be used refuses the change that it is about.",
        see(actions._run, lambda it: it.problems, []),
        "behaviour/server/test_actions.py::test_a_file_that_cannot_be_used_refuses_every_change",
    ),
    Guarantee(
        "A run is recorded before its first hook.",
        skip(actions._run, lambda it: it.store_run),
        "behaviour/server/test_actions.py::test_a_process_that_dies_in_a_hook_leaves_a_failed_run",
    ),
    # ---- users
    Guarantee(
        "A user may do nothing that no policy allows.",
        raise_nothing(auth.check_permission),
        "behaviour/server/test_users.py::test_a_user_without_policies_may_do_nothing",
    ),
    Guarantee(
        "What has no permission of its own needs a whole role of a user.",
        raise_nothing(auth._check_whole_role),
        "behaviour/server/test_users.py::test_a_user_without_policies_may_do_nothing",
    ),
    Guarantee(
        "What a body says is held to the policies of the user.",
        skip(site.RepositoryCall.read, lambda it: it.check),
        "behaviour/server/test_users.py::test_one_permission_permits_one_operation",
    ),
    Guarantee(
        "A statement that denies wins.",
        see(permissions.Grants.permits, lambda it: it._deny, ()),
        "unit/server/test_permissions.py::test_what_is_permitted_is_allowed_and_not_denied",
    ),
    Guarantee(
        "No spelling of a place leads a user around a policy about it.",
        replace(places.name_place, lambda original, permission, *, root_url: permission),
        "behaviour/server/test_users.py::test_no_spelling_of_a_place_reaches_more",
    ),
    Guarantee(
        "Policies of users hold in the S3 gateway.",
        skip(application.S3Application._answer, lambda it: it.check_needs),
        "behaviour/server/s3/test_users.py::test_a_user_without_policies_may_nothing",
    ),
    Guarantee(
        "A list shows no address of an object that a user may not read.",
        returns(site.RepositoryCall.may_read, True),
        "behaviour/server/test_users.py::test_a_denial_wins",
    ),
    Guarantee(
        "A key of a user is not a key of a later user of the same name.",
        answer(identity.IdentityStore.create_user, identity.mint_file_id, lambda original, **_: "0" * 26),
        "unit/server/test_keys.py::test_a_key_of_a_user_ends_with_the_user",
    ),
    Guarantee(
        "A signature is of the time of expiry too.",
        change_arguments(signing.Signer.sign, expires_at_s=0),
        "unit/http/test_signing.py",
    ),
    Guarantee(
        "A letter that moves from one signed part to the next makes another signature.",
        replace(
            signing.Signer.sign,
            lambda original, self, *parts, expires_at_s: original(self, "".join(parts), expires_at_s=expires_at_s),
        ),
        "unit/http/test_signing.py",
    ),
    # ---- uploads
    Guarantee(
        "A late PUT to a signed address of the server changes nothing.",
        pass_on(staging._put, ObjectStore.put_stream, create_only=False),
        "behaviour/server/test_late_uploads.py::test_a_late_put_to_a_signed_address_is_refused",
    ),
    Guarantee(
        "What is put to a vendor's signed URL after it was linked changes nothing.",
        answer(data.link_object, data._take_over, lambda original, context, address: address),
        "behaviour/repo/test_data.py::test_what_was_put_to_a_signed_url_is_copied_when_it_is_linked",
    ),
    Guarantee(
        "A body that has not the MD5 of its Content-MD5 is refused.",
        raise_nothing(call._check_digest),
        "behaviour/server/test_objects.py::test_a_body_that_is_not_what_was_announced_is_refused[raw-5]",
    ),
    # ---- what an entry may name
    Guarantee(
        "Entries in columns name only what may be imported.",
        skip(write.stage_many, lambda it: it.check),
        f"{ISOLATION}::test_no_key_names_what_nobody_allowed",
    ),
    Guarantee(
        "No entry names an object of another repository or store, also where a folder of the storage is listed.",
        returns(ImportPolicy._is_taken, False),
        "unit/repo/test_import_policy.py",
    ),
    Guarantee(
        "A symbolic link in a listed folder leads nowhere else.",
        answer(foreign.ForeignStores._locate, foreign.real_url, lambda original, place: place),
        f"{ISOLATION}::test_an_entry_that_names_what_is_not_allowed_is_not_read",
    ),
    Guarantee(
        "A 404 names no other repository.",
        see(errors.shown_error, lambda it: it._PLAIN, {}),
        f"{ISOLATION}::test_a_404_tells_neither_paths_nor_other_names",
    ),
    Guarantee(
        "A download writes nothing outside of its directory, wherever links in it lead.",
        raise_nothing(directories._check_names),
        "behaviour/repo/test_directories.py::test_nothing_is_written_outside_of_the_directory[in/out]",
    ),
    # ---- requests of the server to others
    Guarantee(
        "A webhook reaches no private address that is not listed.",
        returns(outbound._is_public, True),
        "behaviour/repo/test_outbound.py::test_loopback_is_refused_however_it_is_spelled",
    ),
    Guarantee(
        "A webhook connects to the address that was checked.",
        answer(
            outbound.post,
            outbound._pool,
            lambda original, scheme, address, port, *, host, **facts: original(scheme, host, port, host=host, **facts),
        ),
        "behaviour/repo/test_outbound.py::test_a_name_that_resolves_anew_is_not_asked_again",
    ),
    Guarantee(
        "A webhook follows no redirect.",
        pass_on(outbound._ask, lambda it: it.urlopen, redirect=True, retries=1),
        "behaviour/repo/test_hooks.py::test_an_answer_that_is_not_2xx_refuses",
    ),
    Guarantee(
        "A webhook whose reply drips wins no time.",
        replace(outbound._TimedBytes.readinto, lambda original, reply, buffer: reply._source.recv_into(buffer)),
        "behaviour/repo/test_outbound.py::test_a_reply_that_drips_is_none",
    ),
    Guarantee(
        "Webhooks that hang stop no other repository.",
        forget(SlotPool._work, lambda it: it.pool),
        "behaviour/server/test_actions.py::test_hooks_that_hang_stop_no_other_repository",
        is_long=True,
    ),
    Guarantee(
        "A branch begins with the commit that its actions were asked about.",
        answer(
            actions.create_branch,
            branches.create_branch,
            lambda create, context, name, *, source, **rest: create(context, name, source="main", **rest),
        ),
        "behaviour/server/test_actions.py::test_a_branch_begins_with_what_the_hooks_were_asked_about",
    ),
    Guarantee(
        "A policy that denies a branch denies what is written with steps behind its name.",
        replace(needs._name_of, lambda original, reference: reference),
        "behaviour/server/test_users.py::test_a_rule_of_a_branch_holds_for_every_spelling_of_it",
    ),
    Guarantee(
        "Who may cancel imports into one branch cancels none into another.",
        raise_nothing(importing._load_into),
        "behaviour/server/test_lakefs.py::test_an_import_is_of_its_branch",
    ),
    Guarantee(
        "A second upload to a signed address is told that it is stored only if the first one was the same.",
        raise_nothing(staging._put),
        "behaviour/server/test_late_uploads.py::test_a_put_to_a_signed_address_is_repeated",
    ),
    Guarantee(
        "A signed address permits nothing in a later repository of the same name.",
        several(
            see(staging.get_physical_address, lambda it: it.record.uid, ""),
            see(staging.upload_presigned, lambda it: it.record.uid, ""),
        ),
        "behaviour/server/test_late_uploads.py::"
        "test_a_signed_address_is_of_one_repository_and_of_no_later_one_of_its_name",
    ),
    Guarantee(
        "Two admins who revoke each other's keys at the same time leave one of them.",
        answer(keys.AccessKeys.revoke, lambda it: it._end, lambda end, ids, *, expected: end(ids)),
        "unit/server/test_keys.py::test_two_admins_who_revoke_each_other_leave_one",
    ),
    Guarantee(
        "A body that was begun with a key that has ended since changes nothing.",
        set_value(site.RepositoryCall, lambda it: it.check_late, call.Call.check_late),
        "behaviour/server/test_late_uploads.py::test_a_caller_who_may_no_longer_is_refused_at_the_end_of_a_body",
    ),
    Guarantee(
        "An upload over S3 that was begun with a key that has ended since stores nothing.",
        set_value(S3Call, lambda it: it.check_late, call.Call.check_late),
        "behaviour/server/s3/test_refused.py::test_a_small_upload_that_ends_after_its_key_is_refused",
    ),
    Guarantee(
        "A signed URL of a part permits that part of that upload, and nothing else.",
        skip(presigned_parts.upload_part, signing.Signer.check),
        "behaviour/server/test_presigned_parts.py::test_a_url_is_for_one_part_of_one_key",
    ),
    Guarantee(
        "A key that is limited to some repositories takes over nothing that lakeFS left of another.",
        raise_nothing(auth.check_bare),
        "behaviour/server/test_dumps.py::test_a_limited_key_makes_no_bare_repository",
    ),
    Guarantee(
        "A key that a newer server has limited in a way of its own lets nobody in on an older one.",
        replace(records.decode_record, decode_known),
        "unit/server/test_keys.py::test_a_key_with_a_limit_that_is_not_known_lets_nobody_in[False]",
    ),
    Guarantee(
        "A policy with a condition that only a newer server knows permits nothing on an older one.",
        replace(records.decode_record, decode_known),
        "unit/server/test_keys.py::test_a_condition_of_a_policy_that_is_not_known_permits_nothing[statement]",
    ),
]
