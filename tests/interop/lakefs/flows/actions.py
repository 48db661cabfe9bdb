"""Actions, with the SDK: what runs, what is refused, and what is shown of it."""

import http.server
import json
import threading
from contextlib import contextmanager

import lakefs_sdk
from flows.expect import refused

ACTION = """
name: checks
on:
  pre-commit:
    branches: [main]
  post-commit:
hooks:
  - id: check
    type: {kind}
    properties:
      url: http://127.0.0.1:{port}/check
      timeout: 20s
"""


@contextmanager
def _webhook():
    """A server of webhooks: its port, and what it heard; it answers with the first status of a list."""
    heard, statuses = [], [200]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(statuses[0])
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], heard, statuses
    finally:
        server.shutdown()
        server.server_close()


def hooks_run_and_refuse(lake):
    """A webhook is asked before a commit and told after; its refusal is 412, and the SDK shows runs and outputs."""
    made, api = lake.repository(), lake.client.sdk_client.actions_api
    main = made.branch("main")
    with _webhook() as (port, heard, statuses):
        main.object("_lakefs_actions/a.yaml").upload(ACTION.format(kind="webhook", port=port))
        commit = main.commit("with actions").get_commit()
        assert [body["event_type"] for body in heard] == ["pre-commit", "post-commit"]
        assert heard[1]["commit_id"] == commit.id
        statuses[0] = 503
        main.object("a").upload(b"1")
        with refused(412):
            main.commit("refused")
        assert [change.path for change in main.uncommitted()] == ["a"]
        made.branch("dev").create("main").object("b").upload(b"2")
        made.branch("dev").commit("not on main")
    runs = api.list_repository_runs(made.id).results
    assert [(run.event_type, run.status) for run in runs] == [
        ("post-commit", "failed"),
        ("pre-commit", "failed"),
        ("post-commit", "completed"),
        ("pre-commit", "completed"),
    ]
    assert [run.run_id for run in api.list_repository_runs(made.id, branch="dev").results] == [runs[0].run_id]
    assert api.get_run(made.id, runs[2].run_id).commit_id == commit.id
    (hook,) = api.list_run_hooks(made.id, runs[1].run_id).results
    assert (hook.hook_id, hook.action, hook.status) == ("check", "checks", "failed")
    output = api.get_run_hook_output(made.id, runs[1].run_id, hook.hook_run_id)
    assert b"answered 503" in bytes(output)
    with refused(404):
        api.get_run(made.id, "missing")


def other_hooks_are_refused(lake):
    """A hook of Lua refuses the commit, and the output says why."""
    made, api = lake.repository(), lake.client.sdk_client.actions_api
    main = made.branch("main")
    main.object("_lakefs_actions/a.yaml").upload(ACTION.format(kind="lua", port=1))
    with refused(412):
        main.commit("refused")
    (run,) = api.list_repository_runs(made.id).results
    (hook,) = api.list_run_hooks(made.id, run.run_id).results
    assert b"lua" in bytes(api.get_run_hook_output(made.id, run.run_id, hook.hook_run_id))
    main.object("_lakefs_actions/a.yaml").delete()
    main.object("a").upload(b"1")
    main.commit("without")
    assert isinstance(run, lakefs_sdk.ActionRun)
