"""Pages of listings, of which the server keeps the encoded rows: always what is there now."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

STEPS = 60


@pytest.mark.parametrize("bytes_max", [32 << 20, 100_000], ids=["all", "few"])
def test_pages_show_what_is_there(serve: Callable[..., Any], connect: Callable[[Any], Any], bytes_max: int) -> None:
    """As a dictionary has it, through uploads, deletions of one path and of a prefix, commits and new metadata."""
    client = connect(serve(listing_cache_bytes_max=bytes_max))
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://x"})
    rng, model = random.Random(11), {}
    names = [f"{folder}/{number:03d}" for folder in ("a", "b", "ä") for number in range(60)]

    def upload(name: str) -> None:
        body = rng.randbytes(rng.randint(0, 9))
        client.put(name, body)
        model[name] = (len(body), {})

    def set_metadata(name: str) -> None:
        tags = {"step": str(rng.random())}
        answer = client.ask("PUT", ":/branches/main/objects/stat/user_metadata", {"set": tags}, None, path=name)
        assert answer.status == (204 if name in model else 404)
        if name in model:
            model[name] = (model[name][0], tags)

    def delete(name: str) -> None:
        assert client.ask("DELETE", ":/branches/main/objects", None, None, path=name).status == 204
        model.pop(name, None)

    def delete_prefix(name: str) -> None:
        prefix = name[:-1]
        client.ask("POST", ":/verbs/delete_prefix", {"branch": "main", "prefix": prefix})
        for gone in [path for path in model if path.startswith(prefix)]:
            del model[gone]

    for name in names:
        upload(name)
    client.commit()
    for _ in range(STEPS):
        rng.choice([upload, set_metadata, delete, delete_prefix])(rng.choice(names))
        if rng.random() < 0.3:
            client.ask("POST", ":/branches/main/commits", {"message": "a step", "allow_empty": True})
        for _ in range(3):
            prefix, after, amount = rng.choice(["", "a/", "ä"]), rng.choice(["", *names]), rng.randint(1, 90)
            for with_metadata in ("true", "false"):
                answer = client.ask(
                    "GET", ":/refs/main/objects/ls", None, None,
                    prefix=prefix, after=after, amount=amount, user_metadata=with_metadata,
                ).json  # fmt: skip
                expected = sorted(path for path in model if path.startswith(prefix) and path > after)
                rows = [(row["path"], row["size_bytes"], row.get("metadata")) for row in answer["results"]]
                shown = expected[:amount]
                assert rows == [
                    (path, model[path][0], model[path][1] if with_metadata == "true" else None) for path in shown
                ]
                has_more = len(expected) > amount
                pagination = answer["pagination"]
                assert (pagination["has_more"], pagination["results"]) == (has_more, len(shown))
                assert pagination["next_offset"] == (shown[-1] if has_more else "")
