#!/bin/sh
# Builds lakeFS, which the server is measured and tested against: its server, its command-line client and its system
# tests. Called by the Makefile, from the checkout's root. Without Go or a network it says what is left out, and ends well.
#
#   lakefs.sh FOLDER    FOLDER/lakefs, FOLDER/lakectl, FOLDER/esti.test and FOLDER/source; FOLDER/.ready when all is there
#
# LAKEFS_SOURCE=CHECKOUT takes the sources from a git repository of this machine, in place of GitHub.
set -eu

# What the lists of known differences in tests/interop/lakefs were made with.
version=v1.84.0
folder=$1
use="the benchmarks and long tests against lakeFS"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
log="$folder/build.log"
rm -f "$folder/.ready"

leave_out() {
    echo "$*: $use will be left out." >&2
    exit 0
}

command -v git >/dev/null 2>&1 || leave_out "git is not installed"
command -v go >/dev/null 2>&1 || leave_out "Go is not installed (https://go.dev/dl has it; lakeFS needs 1.26)"

if [ ! -d "$folder/source/esti" ]; then
    rm -rf "$folder/source"
    git clone --quiet --depth 1 --branch "$version" -c advice.detachedHead=false \
        "${LAKEFS_SOURCE:-https://github.com/treeverse/lakeFS}" "$folder/source" 2>"$log" ||
        leave_out "lakeFS $version could not be cloned (git's own words: $log)"
fi

# As lakeFS is released: without C. The web pages are not built: the server then shows a page that says so. The folder of them has to exist.
cd "$folder/source"
mkdir -p webui/dist
[ -e webui/dist/.gitkeep ] || touch webui/dist/.gitkeep
echo "Building lakeFS $version in $folder, once: some minutes." >&2
export CGO_ENABLED=0
flags="-X github.com/treeverse/lakefs/pkg/version.Version=${version#v}"
if ! {
    go build -buildvcs=false -ldflags "$flags" -o "$folder/" ./cmd/lakectl ./cmd/lakefs &&
        go test -buildvcs=false -c -o "$folder/esti.test" ./esti
} >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    leave_out "lakeFS does not build (Go's own words: $log). Is there a network, and is Go new enough"
fi
touch "$folder/.ready"
