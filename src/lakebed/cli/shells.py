"""The scripts by which bash, zsh and fish ask lakebed for completions."""

from __future__ import annotations

from typing import Final, Literal

COMPLETE: Final = "--complete"
"""The hidden option by which a shell asks for completions: ``lakebed --complete LINE``."""


Shell = Literal["bash", "zsh", "fish"]

SCRIPTS: Final[dict[Shell, str]] = {
    "bash": f"""\
_lakebed() {{
    local IFS=$'\\n' line="${{COMP_LINE:0:COMP_POINT}}" word
    COMPREPLY=($(lakebed {COMPLETE} "$line" 2>/dev/null | cut -f1))
    # Words end at colons here: the text before the last colon is not inserted again.
    word="${{line##* }}"
    COMPREPLY=("${{COMPREPLY[@]#"${{word%"${{COMP_WORDS[COMP_CWORD]}}"}}"}}")
}}
complete -o default -F _lakebed lakebed
""",
    "zsh": f"""\
#compdef lakebed
_lakebed() {{
    local one
    local -a found shown
    found=("${{(@f)$(lakebed {COMPLETE} "${{(j: :)${{(@q)words[1,CURRENT-1]}}}} $PREFIX" 2>/dev/null)}}")
    if [[ -z "$found" ]]; then
        _files
        return
    fi
    for one in $found; do
        shown+=("${{${{one%%$'\\t'*}}//:/\\\\:}}:${{one#*$'\\t'}}")
    done
    _describe lakebed shown
}}
compdef _lakebed lakebed
""",
    "fish": f"""\
function __lakebed_complete
    set -l found (lakebed {COMPLETE} (commandline -cp) 2>/dev/null)
    if test (count $found) -eq 0
        __fish_complete_path (commandline -ct)
    else
        printf '%s\\n' $found
    end
end
complete -c lakebed -f -a '(__lakebed_complete)'
""",
}
"""What a shell evaluates to complete lakebed's commands."""
