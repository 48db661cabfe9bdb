"""Commands about lakebed itself: version, completion."""

from __future__ import annotations

from typing import Annotated, Literal

import lakebed
from lakebed.cli import commands, completion, output
from lakebed.cli.command import Command
from lakebed.cli.grammar import argument


class Version(Command, name="version"):
    """Print lakebed's version."""

    def run(self) -> None:
        self.result({"version": lakebed.__version__}, f"lakebed {lakebed.__version__}")


class Completion(Command, name="completion"):
    """Print the completion script of a shell: `eval "$(lakebed completion bash)"`."""

    shell: Annotated[Literal["bash", "zsh", "fish"], argument("SHELL", help="bash, zsh or fish.")]

    def run(self) -> None:
        script = completion.script(commands.ROOT, self.shell)
        if self.json:
            output.document({"shell": self.shell, "script": script})
        else:
            output.lines([script.rstrip("\n")])
