"""Every command with arguments that no one means, in one process: prints what ended with a bug, or not in one sentence.

    python nasty_arguments.py FOLDER SEED EACH

Each argument but the lake, and each option with a value, is given EACH texts of `NASTY`, drawn by the seed.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

from lakebed.cli.commands import ROOT
from lakebed.cli.main import run
from lakebed.cli.parser import CommandSpec, find

STORY = runpy.run_path(str(Path(__file__).parent / "every_command.py"))
PROCESSES = {("serve",), ("pipeline", "run"), *(("fleet", word) for word in ("up", "control", "node", "log"))}
"""They do not end by themselves."""
NASTY = (
    *(
        "",
        " ",
        "\n",
        "a\nb",
        "\udcff",
        "é\udc80",
        "x" * 5_000,
        "\u202e",
        "\x1b[31m",
        "💥",
        "--",
        "-",
        "=",
        "a=",
        "=a",
        "a=\udcff",
    ),
    *(
        "-1",
        "0",
        "1.5",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775809",
        "9" * 400,
        "１２",
        "NaN",
        "inf",
    ),
    *(
        "1e400",
        "0x1",
        "..",
        "a/../b",
        *(() if os.geteuid() == 0 else ("/", "//")),  # the superuser may write there, and the commands would
        "%00",
        "%",
        "{",
        "[1",
        "null",
        "'",
        '"',
        "a b",
        "a;b",
        "$x",
        "s3://",
        "s3:x",
    ),
    *(
        "0s",
        "-1d",
        "1 ns",
        "99999999 d",
        "300000 years",
        "292000000 years",
        "9" * 30 + " d",
        "P99999999W",
        "PT0.0000001S",
    ),
    *(
        "0000-01-01",
        "0001-01-01T00:00:00+14:00",
        "99999-01-01T00:00:00Z",
        "-0001-01-01",
        "9999-12-31T23:59:59.999Z",
        "2026-02-30",
    ),
    *(
        "9999-12-31T23:59:59-14:00",
        "1969-12-31T23:59:59Z",
        "253402300800000",
        "-62135596800001",
        "main~99999999999",
        "main^9" * 9,
    ),
    *(
        "id = NaN",
        "id = 1e999",
        "id = '\udcff'",
        "v > ",
        "(" * 500,
        "id in (" + "1," * 2_000 + "1)",
        "id BIGINT",
        "x DECIMAL(99,98)",
    ),
)


def lines(folder: Path, lake: Path, generator: random.Random, each: int) -> Iterator[list[str]]:
    """Command lines, each with one such text."""
    shown = set()
    for line, _ in STORY["COMMANDS"]:
        spec = find(ROOT, line.split(" "))
        if spec is None or spec.path in PROCESSES or spec.path in shown:
            continue
        shown.add(spec.path)
        words = STORY["words_of"](line, folder=folder, lake=lake)
        yield from mutated(spec, words, generator, each)


def mutated(spec: CommandSpec, words: list[str], generator: random.Random, each: int) -> Iterator[list[str]]:
    """The words of a command with one of them replaced, or with one option more."""
    first = len(spec.path)
    yes = ["--yes"] if any("--yes" in option.opts for option in spec.options) else []
    for position in range(first, len(words)):
        if not words[position].startswith("-") and position > first:
            for text in generator.sample(NASTY, each):
                yield [*words[:position], text, *words[position + 1 :]]
    for option in spec.options:
        if not (option.is_flag or option.count):
            for text in generator.sample(NASTY, each):
                yield [*words, *yes, option.opts[0], text]


PREPARED = """table create LAKE t --like rows.csv --primary-key id -o bucket=1
table upsert LAKE t rows.csv
table tag LAKE t jan
table branch LAKE t dev
table create LAKE plain --like rows.csv
table append LAKE plain rows.csv
kv put LAKE serving k v
kv tag LAKE serving weekly
repo create LAKE rep
repo put LAKE rep main a.csv rows.csv
repo commit LAKE rep main -m first
repo branch LAKE rep dev
repo tag LAKE rep v1 dev
key create LAKE"""


def prepare(lake: str) -> None:
    """Make what the commands act on."""
    for line in PREPARED.splitlines():
        words = [lake if word == "LAKE" else word for word in line.split(" ")]
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
            assert run(words) == 0, line


def main() -> None:
    """Run them all; the exit code is 1 if one of them is wrong."""
    folder, generator, each = Path(sys.argv[1]), random.Random(int(sys.argv[2])), int(sys.argv[3])
    (folder / "in").mkdir()
    (folder / "in" / "c.txt").write_text("c")
    (folder / "rows.csv").write_text("id,n,v\n1,1,a\n2,2,b\n")
    os.chdir(folder)
    lake = folder / "lake"
    count, wrong = 0, 0
    prepare(str(lake))
    for words in lines(folder, lake, generator, each):
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code: object = run(words)
            except BaseException as bug:
                code = repr(bug)
        err.seek(0)
        text = err.read()
        count += 1
        if code not in (0, 2, 3, 4, 5, 6, 7, 8) or "Traceback" in text or "\x1b" in text:
            wrong += 1
            print(f"WRONG {code} {[word[:80] for word in words]!r}\n{text[-700:]}\n")
    print(f"{count:,} commands, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
