#!/bin/sh
# Makes the environments that the Makefile's targets run in. Quiet unless something is missing; then it says, in one
# sentence each, what is missing and what to do. Called by the Makefile and .ci/run, from the checkout's root.
#
#   setup.sh venv FOLDER GROUP [EXTRAS]   a virtual environment with one dependency group of pyproject.toml and,
#                                         when EXTRAS is given, lakebed itself (editable) with those extras
#   setup.sh java                         Java 17 or newer is there, or a sentence saying that it is not
#   setup.sh node FOLDER                  the packages of FOLDER/package.json, by npm
#   setup.sh java-worker FOLDER USE       the jars that FOLDER/pom.xml names, by Maven, and FOLDER's Java sources, by javac
#   setup.sh jars FOLDER USE              the jars that FOLDER/pom.xml names, by Maven, for a use that is left out without
#   setup.sh postgresql                   PostgreSQL's programs are there, or a sentence saying that they are not
#   setup.sh install-postgresql           the same, installed by apt-get when they are missing; for machines of tests
#   setup.sh install-maven                Maven, installed by apt-get when it is missing; for machines of tests
set -eu

fail() {
    printf '\n%s\n\n' "$*" >&2
    exit 1
}

# The first interpreter of the versions named that really runs and can make environments: a version manager's stub may
# exist and still fail. Sets `python`, or `seen` to what there is instead.
find_python() {
    seen=""
    for name in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3.14 python3 python; do
        version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        case " $* " in
        *" $version "*)
            if "$name" -c 'import ensurepip, venv' 2>/dev/null; then
                python=$name
                return
            fi
            ;;
        esac
        seen="${seen:+$seen, }$name is $version"
    done
    seen=${seen:-there is no Python on the PATH}
    return 1
}

run_pip() {
    folder=$1
    shift
    # Python compiles what it imports, a small part of what pip would compile, and keeps it.
    if ! "$folder/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile "$@" \
        >"$folder/pip.log" 2>&1; then
        tail -n 5 "$folder/pip.log" >&2
        fail "The packages that pyproject.toml names could not be installed in $folder. Is there a network, or a" \
            "package mirror that pip knows (PIP_INDEX_URL)? pip's own words: $folder/pip.log. Then run make again."
    fi
}

make_venv() {
    folder=$1 group=$2 extras=${3:-}
    if [ ! -x "$folder/bin/python" ]; then
        case "$group" in
        peers) versions="3.11 3.12 3.13" ;; # pypaimon asks for a pyarrow that no newer Python can have
        *) versions="3.11 3.12 3.13 3.14" ;;
        esac
        # shellcheck disable=SC2086
        if ! find_python $versions; then
            if [ "$group" = peers ]; then
                echo "pypaimon needs one of Python $versions ($seen): the tests against it will be skipped." >&2
                mkdir -p "$folder"
                return
            fi
            fail "lakebed needs one of Python $versions that can make environments, and none was found ($seen). Install" \
                "one, on Debian and Ubuntu with its package python3-venv, or name it: make PYTHON=/path/to/python3.11 ..."
        fi
        echo "Making $folder ($group), once: this takes a minute or two." >&2
        if ! "$python" -m venv "$folder" >/dev/null 2>&1; then
            rm -rf "$folder"
            fail "$python cannot make an environment in $folder: run $python -m venv $folder to see why."
        fi
    fi
    # Dependency groups need pip 25.1; a fresh Python 3.11 brings 23.
    "$folder/bin/python" -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (25, 1))' ||
        run_pip "$folder" --upgrade "pip>=25.1"
    if [ -n "$extras" ]; then
        run_pip "$folder" --group "$group" --editable ".[$extras]"
    else
        run_pip "$folder" --group "$group"
    fi
}

check_java() {
    java=java
    [ -z "${JAVA_HOME:-}" ] || java="$JAVA_HOME/bin/java"
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || version=""
    [ "${version:-0}" -ge 17 ] && return
    found="no Java was found"
    [ -z "$version" ] || found="the one found is Java $version"
    [ -z "${JAVA_HOME:-}" ] || found="$found (JAVA_HOME is $JAVA_HOME)"
    fail "Spark needs Java 17 or newer, and $found. Install a JDK 17 or set JAVA_HOME to one." \
        "(lakebed without Spark needs no Java.)"
}

install_node() {
    folder=$1
    if ! command -v npm >/dev/null 2>&1; then
        echo "npm is not installed: the tests against Azurite will be skipped (install Node.js to run them)." >&2
        return
    fi
    if ! (cd "$folder" && npm install --no-package-lock --no-audit --no-fund --loglevel=error >npm.log 2>&1); then
        tail -n 5 "$folder/npm.log" >&2
        fail "npm could not install the packages of $folder/package.json. Is there a network? Then run make again."
    fi
}

have_postgresql() {
    command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

check_postgresql() {
    have_postgresql || echo "PostgreSQL is not installed: the tests against it will be skipped (on Debian and Ubuntu," \
        "apt-get install postgresql, to run them)." >&2
}

# Installs one package of Debian or Ubuntu: PACKAGE, and its name for people.
install_by_apt() {
    package=$1 name=$2
    command -v apt-get >/dev/null 2>&1 || fail "$name is not installed, and there is no apt-get to install it."
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true >/dev/null 2>&1 ||
            fail "$name is not installed, and only root can: run apt-get install $package once."
        as_root="sudo -n"
    fi
    log=$(mktemp)
    echo "Installing $name, once." >&2
    if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "$package"; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        fail "apt-get could not install $package; its own words: $log. Is there a network, or a package mirror?"
    fi
    rm -f "$log"
}

install_postgresql() {
    have_postgresql && return
    install_by_apt postgresql PostgreSQL
    have_postgresql || fail "apt-get installed postgresql, and there is still no initdb in /usr/lib/postgresql."
}

install_maven() {
    command -v mvn >/dev/null 2>&1 && return
    install_by_apt maven Maven
    command -v mvn >/dev/null 2>&1 || fail "apt-get installed maven, and there is still no mvn on the PATH."
}

# Copies the jars of FOLDER/pom.xml to FOLDER/lib. Fails with a sentence that says what is left out then.
copy_jars() {
    folder=$1 use=$2
    if ! command -v mvn >/dev/null 2>&1; then
        echo "Maven is not installed: $use will be left out (on Debian and Ubuntu, apt-get install maven" \
            "openjdk-17-jdk-headless, to run them)." >&2
        return 1
    fi
    if ! (cd "$folder" && mvn --batch-mode --quiet dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory=lib >mvn.log 2>&1); then
        tail -n 5 "$folder/mvn.log" >&2
        echo "Maven could not get the packages of $folder/pom.xml: $use will be left out. Is there a network? Maven's" \
            "own words: $folder/mvn.log. Then run make again." >&2
        return 1
    fi
}

make_jars() {
    copy_jars "$1" "$2" || return 0
    touch "$1/.ready"
}

# Stamps the folder only when all is there, so that a machine that gets Maven, a JDK or a network later tries again.
make_java_worker() {
    folder=$1 use=$2
    javac=javac
    [ -z "${JAVA_HOME:-}" ] || javac="$JAVA_HOME/bin/javac"
    rm -rf "$folder/.ready" "$folder/classes"
    if ! command -v "$javac" >/dev/null 2>&1; then
        echo "There is no javac of a JDK: $use will be left out (on Debian and Ubuntu, apt-get install maven" \
            "openjdk-17-jdk-headless, to run them)." >&2
        return
    fi
    copy_jars "$folder" "$use" || return 0
    (cd "$folder" && "$javac" -d classes -cp "lib/*" ./*.java) || fail "The worker in $folder does not compile."
    touch "$folder/.ready"
}

verb=$1
shift
case "$verb" in
venv) make_venv "$@" ;;
java) check_java ;;
node) install_node "$@" ;;
postgresql) check_postgresql ;;
install-postgresql) install_postgresql ;;
install-maven) install_maven ;;
java-worker) make_java_worker "$@" ;;
jars) make_jars "$@" ;;
*) fail "setup.sh knows venv, java, node, java-worker, jars, postgresql, install-postgresql and install-maven, not $verb." ;;
esac
